"""The same cells on a Slurm cluster, through submitit: one job per cell, one rank per GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.base.errors import UserError, needs_extra, unknown
from ponder.studies.run import Assignment, attempt, build_data
from ponder.studies.spec import Training
from ponder.studies.store import Store

PARAMETERS = {
    "partition": "slurm_partition",
    "account": "slurm_account",
    "qos": "slurm_qos",
    "time": "timeout_min",
    "array": "slurm_array_parallelism",
    "gpus": "gpus_per_node",
    "cpus": "cpus_per_task",
    "mem": "mem_gb",
}
"""What --slurm takes -> submitit's name for it."""
NUMBERS = ("time", "array", "gpus", "cpus", "mem")
REQUEUES = 10_000


@dataclass(frozen=True)
class SlurmCell:
    """What a job does. A job that runs into its time limit is queued again and goes on from its last checkpoint."""

    work: Assignment

    def __call__(self) -> int:
        from submitit import JobEnvironment
        from submitit.helpers import TorchDistributedEnvironment

        if JobEnvironment().num_tasks > 1:
            TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        code = attempt(self.work)
        if code == 1:
            raise RuntimeError(f"{self.work.labels[0]} failed: `ponder study status` says why")
        return code

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """partition=gpu,time=600,gpus=1,array=8 -> (cluster, submitit's parameters). `time` is in minutes."""
    cluster = "slurm"
    out: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise UserError(f"--slurm {part!r} has no value: write partition=gpu,time=600,gpus=1,array=8")
        if name == "cluster":
            cluster = value
            continue
        if name not in PARAMETERS:
            raise unknown("--slurm setting", name, [*PARAMETERS, "cluster"])
        if name in NUMBERS and not value.isdecimal():
            raise UserError(f"--slurm {name} is a whole number (time in minutes, mem in GB), got {value!r}")
        out[PARAMETERS[name]] = int(value) if name in NUMBERS else value
    if out.get("gpus_per_node", 0) > 1:
        out["tasks_per_node"] = out["gpus_per_node"]
    if cluster not in ("slurm", "local", "debug"):
        raise unknown("--slurm cluster", cluster, ("slurm", "local", "debug"))
    return cluster, out


def submit(jobs: Sequence[Training], text: str, scale: str, store: Store, data_dir: Path) -> list[Any]:
    """Submit what is neither done nor running; returns submitit's jobs. Data is built here, on the shared disk."""
    cluster, parameters = parse(text)
    try:
        from submitit import AutoExecutor
    except ImportError:
        raise needs_extra("--slurm", "slurm") from None
    todo = [job for job in jobs if any(store.state(cell) in ("left", "failed") for cell in job.cells)]
    hopeless = build_data(todo, data_dir)
    for key, error in hopeless.items():
        store.fail(key, error)
    try:
        # submitit would give a job up after three time limits; ours go on from a checkpoint as often as it takes.
        executor = AutoExecutor(folder=store.runs / "slurm" / "%j", cluster=cluster, slurm_max_num_timeout=REQUEUES)
    except RuntimeError:
        raise UserError("no Slurm here (srun was not found): run this on a login node, or use --workers") from None
    executor.update_parameters(name="ponder-study", **parameters)
    root = Store(store.root.resolve(), store.runs.resolve())
    with executor.batch():
        out = [
            executor.submit(SlurmCell(Assignment(tuple(job.labels), scale, root, data_dir.resolve(), key=job.key)))
            for job in todo
            if job.key not in hopeless
        ]
    print(f"submitted {len(out)} cells; `ponder study status` shows how they stand")
    if hopeless:
        raise UserError(f"{len(hopeless)} cells have no data: {next(iter(hopeless.values()))}")
    return out
