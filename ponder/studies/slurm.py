"""The same cells on a Slurm cluster, through submitit: a job for each cell or a few short ones, one rank per GPU."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.base.errors import UserError, needs_extra, unknown
from ponder.studies.run import Assignment, attempt, build_data
from ponder.studies.spec import Training
from ponder.studies.store import Store

if TYPE_CHECKING:
    from submitit import AutoExecutor

PARAMETERS = {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "qos": "slurm_qos",
    "time": "timeout_min",
    "array": "slurm_array_parallelism",
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "mem": "mem_gb",
    "nodes": "nodes",
    "constraint": "slurm_constraint",
}
"""What --slurm takes -> submitit's name for it."""
OURS = ("cluster", "pack")
NUMBERS = ("time", "array", "gpus", "cpus", "mem", "nodes", "pack")
REQUEUES = 10_000
NOTICE = 90
"""Seconds before its time limit that a job is told, but no more than a quarter of the limit."""
DEAF = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Starts Python so that being told waits until it listens (`SlurmCell`): it would die of it, and not be queued anew."""


@dataclass(frozen=True)
class SlurmCell:
    """What a job does: its cells, one after the other. A job that runs into its time limit is queued again and goes on
    from its last checkpoint."""

    work: tuple[Assignment, ...]

    def __call__(self) -> list[int]:
        from submitit import JobEnvironment
        from submitit.helpers import TorchDistributedEnvironment

        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        if JobEnvironment().num_tasks > 1:
            TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        codes = [attempt(each) for each in self.work]
        if 1 in codes:
            raise RuntimeError(f"{self.work[codes.index(1)].labels[0]} failed: `ponder study status` says why")
        return codes

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(frozen=True)
class Wanted:
    """What --slurm says."""

    cluster: str = "slurm"
    pack: int = 1
    """Cells of a job."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Submitit's."""


def parse(text: str) -> Wanted:
    """partition=gpu,time=600,gpus=1,array=8,--nice=100. `time` is in minutes; what begins with -- is sbatch's own."""
    known: dict[str, Any] = {}
    out: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if name.startswith("--") and len(name) > 2:
            raw[name[2:]] = value if equals else True
            continue
        if not equals or not value:
            raise UserError(f"--slurm {part!r} has no value: write partition=gpu,time=600,gpus=1,array=8")
        if name not in (*PARAMETERS, *OURS):
            raise unknown("--slurm setting", name, [*PARAMETERS, *OURS])
        if name in NUMBERS and (not value.isdecimal() or int(value) < 1):
            raise UserError(f"--slurm {name} is a whole number from 1 on (time in minutes, mem in GB), got {value!r}")
        (known if name in OURS else out)[PARAMETERS.get(name, name)] = int(value) if name in NUMBERS else value
    if out.get("gpus_per_node", 0) > 1:
        out["tasks_per_node"] = out["gpus_per_node"]
    if raw:
        out["slurm_additional_parameters"] = raw
    wanted = Wanted(**known, parameters=out)
    if wanted.cluster not in ("slurm", "local", "debug"):
        raise unknown("--slurm cluster", wanted.cluster, ("slurm", "local", "debug"))
    return wanted


def submit(
    trainings: Sequence[Training], text: str, scale: str, store: Store, data_dir: Path, show: bool = False
) -> list[Any]:
    """Submit what is neither done nor running; returns submitit's jobs. Data is built here, on the shared disk. `show`:
    print the scripts instead."""
    wanted = parse(text)
    todo = [each for each in trainings if any(store.state(cell) in ("left", "failed") for cell in each.cells)]
    hopeless = {} if show else build_data(todo, data_dir)
    for key, error in hopeless.items():
        store.fail(key, error)
    root = Store(store.root.resolve(), store.runs.resolve())
    work = [
        Assignment(tuple(each.labels), scale, root, data_dir.resolve(), key=each.key)
        for each in todo
        if each.key not in hopeless
    ]
    jobs = [SlurmCell(tuple(work[i : i + wanted.pack])) for i in range(0, len(work), wanted.pack)]
    most = largest_array() if wanted.cluster == "slurm" else None
    arrays = [jobs[i : i + most] for i in range(0, len(jobs), most)] if most is not None else [jobs] if jobs else []
    executor = _executor(wanted, root)
    if (together := wanted.parameters.get("slurm_array_parallelism")) is not None:
        executor.update_parameters(slurm_array_parallelism=max(1, together // max(1, len(arrays))))
    if show:
        for each in arrays:
            print(_script(executor, len(each)))
        return []
    out = []
    for each in arrays:
        with executor.batch():
            out += [executor.submit(job) for job in each]
    print(f"submitted {_said(len(work), len(jobs), len(arrays))}; `ponder study status` shows how they stand")
    if hopeless:
        raise UserError(f"{len(hopeless)} cells have no data: {next(iter(hopeless.values()))}")
    return out


def _said(cells: int, jobs: int, arrays: int) -> str:
    return f"{cells} cells in {jobs} jobs" + (f" of {arrays} arrays" if arrays > 1 else "")


def largest_array() -> int | None:
    """Jobs that this cluster takes in one array; None where it cannot be asked."""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["scontrol", "show", "config"], capture_output=True, check=True, encoding="utf-8").stdout
        if found := re.search(r"^MaxArraySize\s*=\s*([1-9]\d*)$", said, re.MULTILINE):
            return int(found[1])
    return None


def _executor(wanted: Wanted, store: Store) -> "AutoExecutor":
    try:
        from submitit import AutoExecutor
    except ImportError:
        raise needs_extra("--slurm", "slurm") from None
    try:
        # submitit would give a job up after three time limits; ours go on from a checkpoint as often as it takes.
        more = {"slurm_max_num_timeout": REQUEUES, "slurm_python": shlex.join([sys.executable, "-c", DEAF])}
        executor = AutoExecutor(folder=store.runs / "slurm" / "%j", cluster=wanted.cluster, **more)
    except RuntimeError:
        raise UserError("no Slurm here (srun was not found): run this on a login node, or use --workers") from None
    notice = min(NOTICE, 15 * wanted.parameters.get("timeout_min", NOTICE))
    executor.update_parameters(name="ponder-study", slurm_signal_delay_s=notice, **wanted.parameters)
    return executor


def _script(executor: "AutoExecutor", jobs: int) -> str:
    """What sbatch is given for an array of so many."""
    inner: Any = executor._executor
    alone, inner.parameters = inner.parameters, {**inner.parameters, **({"map_count": jobs} if jobs > 1 else {})}
    try:
        return str(inner._make_submission_file_text(inner._submitit_command_str, ""))
    finally:
        inner.parameters = alone
