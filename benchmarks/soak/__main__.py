"""`python -m benchmarks.soak [--hours H] [--only PART] [--seed N]`: a run of the campaign, added to the record."""

import argparse
import itertools
import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.soak import clients, faults, fuzz, record
from benchmarks.soak.works import Work, works
from ponder.base.source import commit

SHARES = {"faults": 0.7, "fuzz": 0.2, "load": 0.1}
"""Of the time."""
MOST = 100_000
"""Inputs of one kind in a run: the fast kinds leave the rest of their time to the slow ones."""


def campaign(
    place: Path, seed: int, seconds: Mapping[str, float], kept: record.Run, say: Callable[[str], None], jobs: int
) -> None:
    """As many faults, inputs and clients as there is time for in each part."""
    if seconds.get("faults"):
        strike_for(works(place), place, seed, seconds["faults"], kept, say, jobs)
    if seconds.get("fuzz"):
        fuzz_for(fuzz.sound(place / "sound"), seed, seconds["fuzz"], kept, say)
    if seconds.get("load", 0) >= 5:
        kept.load.append(clients.load(200, seconds["load"], seed))


def strike_for(
    made: dict[str, Work],
    place: Path,
    seed: int,
    seconds: float,
    kept: record.Run,
    say: Callable[[str], None],
    jobs: int = 1,
) -> None:
    """So many at a time, each in a process of its own."""
    until, context = time.monotonic() + seconds, multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def work(first: int) -> None:
        try:
            for number in itertools.count(first, jobs):
                if time.monotonic() >= until:
                    return
                told.put((number, *faults.strike(made, place, seed, number)))
        finally:
            told.put(None)

    for first in range(jobs):
        context.Process(target=work, args=(first,), daemon=True).start()
    for number, kind, name, verdict, said in itertools.chain.from_iterable(iter(told.get, None) for _ in range(jobs)):
        if verdict != "missed":
            kept.add_fault(kind, name, verdict)
        if verdict == "wrong":
            say(f"fault {number} of seed {seed} ({kind}: {name}): wrong\n" + "\n".join(said))


def fuzz_for(sound: Path, seed: int, seconds: float, kept: record.Run, say: Callable[[str], None]) -> None:
    described = find_spec("schemathesis") is not None
    until, left = time.monotonic() + seconds, len(fuzz.KINDS) + described
    for kind in fuzz.KINDS:
        found = fuzz.batch(kind, sound, seed, (until - time.monotonic()) / left, MOST)
        left -= 1
        kept.add_fuzz(kind, found.counts)
        for line in found.said:
            say(line)
    if described:
        kept.add_fuzz("HTTP by its description", clients.described(until - time.monotonic(), seed))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Faults, fuzzed inputs and load.")
    parser.add_argument("--hours", type=float, default=0.1, metavar="H")
    parser.add_argument("--only", choices=SHARES, help="give all of the time to one part")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time (default: 1)")
    parser.add_argument("--seed", type=int, help="default: the one after the last run's")
    parser.add_argument("--page", action="store_true", help="write the page from the record, and do no more")
    known = parser.parse_args()
    torch.set_num_threads(1)
    before = record.Record.read()
    if known.page:
        record.show(before)
        return
    seed = known.seed if known.seed is not None else max((run.seed for run in before.runs), default=-1) + 1
    run, began = record.Run(seed, commit()), time.monotonic()
    shares = {known.only: 1.0} if known.only else SHARES
    seconds = {part: share * known.hours * 3600 for part, share in shares.items()}

    def keep() -> None:
        """What was found so far, after what the record holds by now."""
        run.seconds = round(time.monotonic() - began)
        whole = record.Record.read()
        whole.runs.append(run)
        whole.write()
        record.show(whole)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was found is kept
    try:
        with tempfile.TemporaryDirectory(prefix="ponder-soak-") as place:
            here, say = Path(place).resolve(), lambda text: print(text, flush=True)
            campaign(here, seed, seconds, run, say, known.jobs)
    finally:
        keep()
    if run.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
