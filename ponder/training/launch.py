"""How a training shares the cores: by threads where a micro-step is one program, else by processes.

Threads of a program have examples to themselves and meet once an update. Those of torch meet in every operation: there,
two processes of one thread, started by torch's own elastic launcher, do more than one process of two, and a busy
neighbour costs its share of a core instead of stopping both.
"""

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ponder import checkpoint
from ponder.base import cores
from ponder.base.console import counted
from ponder.base.errors import LAUNCHED, RankLost, UserError, at_least
from ponder.config.resolve import Config
from ponder.model.cost import applications
from ponder.training.micro import programmed

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

SLOTS = 16
"""A process with fewer slots than this spends its time on other things than products."""
WORTH = 2e11
"""Floating-point operations below which a training is over before other processes have started (ten seconds)."""
TABLE = 2**26
"""Numbers in a puzzle table above which one process holds it rather than each its copy."""
PATIENCE = 600
"""Seconds that processes have for saving when they are told to stop."""


@dataclass(frozen=True)
class Layout:
    processes: int
    threads: int
    """Of each process."""

    def __str__(self) -> str:
        each = counted(self.threads, "thread")
        return each if self.processes == 1 else f"{self.processes} processes of {each}"


@dataclass(frozen=True)
class Asked:
    """What the command line says about it; None where it is silent."""

    processes: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        at_least(1, {"--processes": self.processes, "--threads": self.threads})


def choose(config: Config, limit: int | None, asked: Asked, before: Layout | None = None) -> Layout:
    """As asked; else as the run was begun, which gives the same bits; else what suits this training and machine.
    `limit`: the updates this invocation does at most."""
    allowed = cores.usable()
    processes = asked.processes or (before.processes if before is not None else fitting(config, limit, allowed))
    if before is not None and before.processes == processes:
        return Layout(processes, asked.threads or before.threads)
    return Layout(processes, asked.threads or max(1, allowed // processes))


def fitting(config: Config, limit: int | None, allowed: int) -> int:
    """The most processes on so many cores that all have enough to do; one where its threads do as well."""
    updates = min((n for n in (config.train.updates, limit) if n is not None), default=None)
    large = config.data.make().task_ids * config.model.width > TABLE
    short = updates is not None and work(config, updates) < WORTH
    if large or short or sys.platform == "win32" or programmed(config):
        return 1
    slots = config.train.batch // config.train.accumulate
    return max(n for n in range(1, allowed + 1) if slots % n == 0 and (n == 1 or slots // n >= SLOTS))


def work(config: Config, updates: int) -> float:
    """Roughly the floating-point operations of so many updates: products with the weights, three passes."""
    model, tokens = config.model, config.data.make().seq_len + config.model.prefix
    return 3.0 * 24 * model.width**2 * applications(model) * tokens * config.train.batch * updates


def before(folder: Path) -> Layout | None:
    """The layout of the run that a folder holds: going on with it gives the same bits."""
    known = checkpoint.recall(folder, "ranks", "threads")
    return None if known is None else Layout(*map(int, known))


def launch(words: Sequence[str], layout: Layout) -> None:
    """`ponder train WORDS` in so many processes. What goes wrong in one of them is raised here, once."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # what matters of the launcher's own log is said below
    settings = {"OMP_NUM_THREADS": str(layout.threads), LAUNCHED: str(os.getpid()), **_loopback()}
    with tempfile.TemporaryDirectory(prefix="ponder-launch-") as logs, _environment(settings):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=layout.processes,
            run_id=f"ponder-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            shutdown_timeout=PATIENCE,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "ponder", "train", *words)
        except SignalException:
            return  # the processes were told, saved, and said so
        except ChildFailedError as error:
            raise UserError(_why(list(error.failures.values()))) from None


def _why(failures: "Sequence[ProcessFailure]") -> str:
    """The cause among what several processes say: a mistake that has words, else who was killed, else what broke. That
    the others lost their connection is no news."""
    told = {f.exitcode: m["message"] for f in failures if isinstance(m := f.error_file_data.get("message"), dict)}
    if UserError.code in told:
        return str(told[UserError.code])
    killed = [f.exitcode for f in failures if f.exitcode < 0]
    if killed:
        return (
            f"a training process was killed (signal {-killed[0]}; too little memory?): the same command goes on from "
            f"the last checkpoint, with --processes 1 in less memory"
        )
    if len(told) > 1:
        told.pop(RankLost.code, None)
    print(*told.values(), sep="\n", file=sys.stderr)
    return "a training process failed as shown above; --processes 1 trains in one"


def _loopback() -> dict[str, str]:
    """Processes of one machine talk over its loopback, whatever the machine's name resolves to."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return {"GLOO_SOCKET_IFNAME": names[0]} if names and "GLOO_SOCKET_IFNAME" not in os.environ else {}


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    earlier = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in earlier.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
