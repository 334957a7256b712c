"""What a busy neighbour costs: `python -m benchmarks.neighbour [--seconds 15] [--rounds 2] [--active] [--save]`.

Training, evaluating, solving and serving by their plain commands, alone and with one process beside them that keeps a
core busy, in turns. The neighbour may cost its share and no more: of three that want two cores, each gets two thirds of
one. `--active` adds the training with threads that spin while they wait, as they do when nobody tells them otherwise;
the other jobs would then take minutes each. About five minutes on an idle machine, a minute more with `--active`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serve import measure, serving
from ponder import checkpoint
from ponder.base import cores, runtime
from ponder.inference.solver import Solver

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench_neighbour.json"
MODEL = "sudoku-6x6"
PUZZLES, CLIENTS, LARGE = 1000, 64, 5


@dataclass(frozen=True)
class Place:
    folder: Path
    seconds: float
    puzzles: list[str]


@contextmanager
def neighbour(there: bool) -> Iterator[None]:
    if not there:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            yield
        finally:
            busy.kill()


def ponder(place: Place, *words: str) -> float:
    """Seconds of a plain command."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "ponder", *words]
    done = subprocess.run(command, cwd=place.folder, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):  # 1: some puzzle stays unsolved
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}")
    return time.perf_counter() - began


def training(place: Place) -> float:
    """Updates a second."""
    ponder(place, "train", "sudoku-mini", "--out", "run", "--fresh", "--max-seconds", str(place.seconds), "--quiet")
    saved = checkpoint.newest(place.folder / "run/checkpoints")
    assert saved is not None
    return float(saved.state["update"] / saved.state["seconds"])  # of the wall: a neighbour takes no CPU time of ours


def evaluating(place: Place) -> float:
    """Puzzles a second, the start of the command included; likewise below."""
    words = ("eval", MODEL, "--split", "test", "--limit", str(PUZZLES), "--steps", "8", "--out", "eval")
    return PUZZLES / ponder(place, *words)


def solving(place: Place) -> float:
    return PUZZLES / ponder(place, "solve", MODEL, "--file", "puzzles.txt", "--json")


def one_large(place: Place) -> float:
    """A board of 900 cells, without torch: large products in NumPy. Random mazes, the same ones each time."""
    return LARGE / sum(ponder(place, "solve", "maze-30x30", "--random", str(seed)) for seed in range(LARGE))


def serving_clients(place: Place) -> float:
    """Without the start of the server."""
    shares = [place.puzzles[i::CLIENTS] for i in range(CLIENTS)]
    with serving(MODEL, 64, None) as server:
        measure(server, 64, MODEL, [share[:1] for share in shares])  # allocates
        return measure(server, 64, MODEL, shares).per_second


TRAINING = "training, updates/s"
JOBS: dict[str, Callable[[Place], float]] = {
    TRAINING: training,
    "evaluating, puzzles/s": evaluating,
    "solving, puzzles/s": solving,
    "solving a 30x30 maze, mazes/s": one_large,
    "serving, puzzles/s": serving_clients,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each training")
    parser.add_argument("--rounds", type=int, default=2, help="the best of each counts")
    parser.add_argument("--active", action="store_true", help="also training with threads that spin")
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    domain = Solver(MODEL).domain
    puzzles = [domain.format(row) for row in domain.sample(0, PUZZLES)[0]]
    rows: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), args.seconds, puzzles)
        (place.folder / "puzzles.txt").write_text("\n".join(puzzles) + "\n", encoding="utf-8")
        ponder(place, "data", "build", "sudoku-mini")
        evaluating(place)  # builds its data
        for waiting in ("PASSIVE", "ACTIVE") if args.active else ("PASSIVE",):
            os.environ["OMP_WAIT_POLICY"] = waiting
            for name, job in JOBS.items() if waiting == "PASSIVE" else [(TRAINING, training)]:
                best = {"alone": 0.0, "beside a busy process": 0.0}
                for _ in range(args.rounds):
                    for which in best:
                        with neighbour(which != "alone"):
                            best[which] = max(best[which], job(place))
                kept = best["beside a busy process"] / best["alone"]
                rows.setdefault(waiting.lower(), {})[name] = {**best, "kept": kept}
                print(
                    f"{waiting.lower():<8} {name:<30} alone {best['alone']:8.2f}  "
                    f"beside a busy process {best['beside a busy process']:8.2f}  kept {kept:.0%}",
                    flush=True,
                )
    if args.save:
        about = {"cores": cores.usable(), "rounds": args.rounds, "environment": runtime.environment()}
        RESULT.write_text(json.dumps({**about, "waiting": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
