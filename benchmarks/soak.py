"""Faults, seeded and counted: is any finished work of a training lost, is any result another than undisturbed?

    python -m benchmarks.soak --faults 200 --seed 0       # writes docs/reliability.md from its own record

Each fault strikes a small training in a process of its own. Then the same command is given again, as a user would. It
survives when the end is that of the undisturbed run, bit for bit; it is refused when ponder says in one line what is
lost; everything else is wrong.
"""

import argparse
import errno
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file

from ponder import checkpoint, data
from ponder.base.errors import UserError
from ponder.base.runtime import Runtime
from ponder.config.resolve import Config, resolve
from ponder.training.log import TIMING, read_log
from ponder.training.loop import Limits
from ponder.training.runs import LOCK, train_in

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
Verdict = Literal["survived", "refused", "wrong"]
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
"""What Python reports, beside opening a file to write, before it changes something on the disk."""
REFUSED, BROKEN = 2, 9


def config() -> Config:
    small = {"width": 16, "heads": 2, "expansion": 1.0, "h_cycles": 1, "l_cycles": 1, "h_horizon": 1, "l_horizon": 1}
    train = {"batch": 16, "updates": 12, "warmup": 2, "log_every": 2, "eval_every": 4, "save_every": 3, "lr": 1e-3}
    sections: dict[str, Any] = {
        "data": {"train": 200, "val": 20, "test": 20},
        "model": {**small, "max_steps": 2, "dropout": 0.1},
        "train": train,
        "eval": {"examples": 10, "batch": 16},
    }
    return resolve("sudoku-mini", "ponder", sections)


# One process ----------------------------------------------------------------------------------------------------------


def child(work: Callable[[], object]) -> int:
    """Run in a process of its own; what it ended with (less than 0: the signal)."""
    pid = os.fork()
    if pid == 0:
        code = BROKEN
        try:
            work()
            code = 0
        except UserError as error:
            code = REFUSED if "\n" not in str(error) else BROKEN
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(folder: Path, data_dir: Path, limits: Limits | None = None) -> None:
    train_in(config(), folder, data_dir, Runtime(torch.device("cpu")), limits or Limits(), quiet=True)


def strike(folder: Path, at: int, blow: Callable[[], None]) -> None:
    """Let the `at`-th change that this process makes in the folder meet the blow instead of, or before, the disk."""
    left = [at]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        changes = event in CHANGES or (event == "open" and isinstance(args[1], str) and args[1][:1] in "wax")
        if changes and str(folder) in str(args[0]):
            left[0] -= 1
            if left[0] == 0:
                blow()

    sys.addaudithook(hook)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the disk")


# Faults ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """Where trainings are struck, and the undisturbed one."""

    place: Path
    data_dir: Path
    whole: Path

    @staticmethod
    def make(place: Path) -> "Bench":
        data.build(config().data, place / "data")
        bench = Bench(place, place / "data", place / "whole")
        assert child(lambda: train(bench.whole, bench.data_dir)) == 0
        return bench

    def again(self, folder: Path) -> Verdict:
        """Give the same command until it ends, and judge the end."""
        code = child(lambda: train(folder, self.data_dir))
        if code == REFUSED:
            return "refused"
        return "survived" if code == 0 and end(folder) == end(self.whole) else "wrong"


def end(folder: Path) -> Any:
    """All that repeats bit for bit: the rows, the result and every tensor of the last checkpoint and of the best."""
    rows = [{k: v for k, v in row.items() if k not in TIMING} for row in read_log(folder / "metrics.jsonl")]
    result = json.loads((folder / "result.json").read_bytes())
    scores = {k: result[k] for k in ("key", "data_hash", "updates", "n", "last", "chosen_on_val", "peak")}
    saved = [checkpoint.listed(folder / "checkpoints")[-1], folder / "best"]
    tensors = {
        f"{path.name}/{file.name}/{name}": tensor.numpy().tobytes()
        for path in saved
        for file in sorted(checkpoint.read(path).path.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    return rows, scores, tensors


def struck(blow: Callable[[], None], code: int) -> Callable[[Bench, Path, random.Random], Verdict]:
    def fault(bench: Bench, folder: Path, rng: random.Random) -> Verdict:
        def work() -> None:
            strike(folder, rng.randint(1, 60), blow)
            train(folder, bench.data_dir)

        ended = child(work)
        if ended not in (0, code):
            return "wrong"
        again = bench.again(folder)
        return "wrong" if again == "refused" else again  # nothing was damaged: nothing may be asked for

    return fault


def spoilt(spoil: Callable[[Path, random.Random], None]) -> Callable[[Bench, Path, random.Random], Verdict]:
    """A training stops halfway; one of its files is damaged."""

    def fault(bench: Bench, folder: Path, rng: random.Random) -> Verdict:
        assert child(lambda: train(folder, bench.data_dir, Limits(updates=rng.randint(4, 11)))) == 0
        whole = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith(LOCK)]
        spoil(rng.choice([p for p in whole if p.stat().st_size]), rng)
        return bench.again(folder)

    return fault


def flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def tear(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def race(bench: Bench, folder: Path, rng: random.Random) -> Verdict:
    """Two at once: one of them is refused, or comes when the other is done."""
    other = os.fork()
    if other == 0:
        os._exit(child(lambda: train(folder, bench.data_dir)))
    codes = {child(lambda: train(folder, bench.data_dir)), os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])}
    if not codes <= {0, REFUSED} or 0 not in codes:
        return "wrong"
    return bench.again(folder)


FAULTS: dict[str, Callable[[Bench, Path, random.Random], Verdict]] = {
    "killed at a change of the disk": struck(kill, -signal.SIGKILL),
    "full disk at a change": struck(full, REFUSED),
    "a bit of a file flipped": spoilt(flip),
    "a file cut short": spoilt(tear),
    "two trainings at once": race,
}


def campaign(count: int, seed: int, say: Callable[[str], None] = print) -> dict[str, Counter[Verdict]]:
    """`count` faults, of each kind in turn."""
    tally: dict[str, Counter[Verdict]] = {kind: Counter() for kind in FAULTS}
    with tempfile.TemporaryDirectory(prefix="ponder-soak-") as place:
        bench = Bench.make(Path(place).resolve())
        for number in range(count):
            kind = list(FAULTS)[number % len(FAULTS)]
            folder = bench.place / f"run-{number}"
            verdict = FAULTS[kind](bench, folder, random.Random(f"{seed} {number}"))
            tally[kind][verdict] += 1
            if verdict == "wrong":
                say(f"fault {number} of seed {seed} ({kind}): wrong")
            shutil.rmtree(folder, ignore_errors=True)
    return tally


def page(tally: dict[str, Counter[Verdict]], seed: int) -> str:
    rows = [f"| {kind} | {n.total()} | {n['survived']} | {n['refused']} | {n['wrong']} |" for kind, n in tally.items()]
    return "\n".join(
        [
            "# Reliability",
            "",
            f"Written by `make soak` (`python -m benchmarks.soak`, seed {seed}). A small training is struck, then",
            "the same command is given again. Survived: it ends bit for bit where the undisturbed run does. Refused:",
            "ponder says in one line what is lost, and starts over only when told to. Wrong: anything else.",
            "",
            "| fault | tried | survived | refused | wrong |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Faults, seeded and counted.")
    parser.add_argument("--faults", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    known = parser.parse_args()
    torch.set_num_threads(1)
    tally = campaign(known.faults, known.seed)
    PAGE.write_text(page(tally, known.seed), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    if any(each["wrong"] for each in tally.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
