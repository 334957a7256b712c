#!/bin/bash
# A study of twelve cells on a real Slurm, with a time limit shorter than its jobs: run as root on Debian, from this folder's parent.
# `apt-get install slurm-wlm munge` first. One node, arrays of at most five jobs; everything of Slurm's own lies in one temporary folder.
set -euo pipefail
PYTHON=${PYTHON:-.venv/bin/python}
here=$(mktemp -d)
export SLURM_CONF=$here/slurm.conf

cat > "$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$(hostname -s)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/spool
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/slurmd.pid
SlurmctldLogFile=$here/slurmctld.log
SlurmdLogFile=$here/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
MaxArraySize=5
KillWait=5
NodeName=$(hostname -s) CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
mkdir -p "$here/state" "$here/spool"

if ! munge -n > /dev/null 2>&1; then
  mkdir -p /run/munge && chown munge: /run/munge && runuser -u munge -- munged
fi
slurmctld
slurmd
trap 'scancel --user=root || true; kill "$(cat "$here/slurmd.pid")" "$(cat "$here/slurmctld.pid")"; rm -rf "$here"' EXIT
until sinfo --noheader --format=%T | grep -q idle; do sleep 1; done

ponder() { "$PYTHON" -m ponder "$@"; }
where=(--results "$here/results/cells" --runs "$here/runs")
study=(study run stabilization --smoke "${where[@]}" --data-dir "$here/data")
slurm=time=2,cpus=1,array=2,pack=2,--comment=tried
shown() { sed "s#$here#HERE#g; s#$(realpath "$PYTHON")#python#g; s#$PYTHON#python#g; s#$(hostname -s)#node#g"; }

echo "\$ scontrol show config | grep MaxArraySize"
scontrol show config | grep MaxArraySize
echo "\$ ponder study run ... --slurm $slurm --print"
ponder "${study[@]}" --slurm $slurm --print | shown
echo "\$ ponder study run ... --slurm $slurm"
ponder "${study[@]}" --slurm $slurm | shown
# Each job is told once, ten seconds after its start, what Slurm tells it before its time limit: on a fast machine it would be done by then.
told=" "
before=
while squeue --noheader | grep -q .; do
  for job in $(squeue --noheader --array --states=RUNNING --Format=JobArrayID:12); do
    if [[ $told != *" $job "* ]]; then
      told+="$job "
      (sleep 10 && scancel --signal=USR2 "$job" 2> /dev/null) &
    fi
  done
  now=$(squeue --noheader --array --Format='JobArrayID:12,State:12,RestartCnt:4' | sort)
  [ "$now" = "$before" ] || printf '%s\n%s\n' "after $SECONDS s:" "$now"
  before=$now
  sleep 5
done
echo "\$ ponder study status stabilization --smoke"
ponder study status stabilization --smoke "${where[@]}" | shown
echo "cells stored: $(ls "$here/results/cells" | wc -l)"
