"""How fast sudokus are made (goal on two cores: 200 minimal unique 9x9 a second) and the published CSVs are read."""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Literal

import numpy as np

from ponder.domains.hub import COLUMNS
from ponder.domains.sudoku.domain import Sudoku, SudokuParams

PUBLISHED_ROWS = 3_831_994 + 422_786


def time_generator(size: Literal[4, 6, 9], count: int, workers: int) -> None:
    domain = Sudoku(SudokuParams(size=size, source="generate", train=count - 2, val=1, test=1))
    start = time.perf_counter()
    arrays = domain.build(seed=0, workers=workers)["train"]
    seconds = time.perf_counter() - start
    clues, rating = (arrays["inputs"] > 1).sum(axis=1).mean(), arrays["rating"]
    print(
        f"{size}x{size}: {count} minimal unique puzzles in {seconds:.1f} s = {count / seconds:.0f} a second with "
        f"{workers} workers; {clues:.2f} clues, {rating.mean():.2f} guesses on average, {rating.max()} at most"
    )


def write_csv(path: Path, rows: int) -> None:
    """Rows like the published ones: a few puzzles, their digits renamed at random."""
    puzzles, answers = Sudoku(SudokuParams()).sample(seed=0, count=50)
    rng = np.random.default_rng(rows)
    with path.open("wb") as file:
        file.write(",".join(COLUMNS).encode() + b"\n")
        for _ in range(rows // 50):
            names = np.concatenate([[0, ord(".")], ord("1") + rng.permutation(9)]).astype(np.uint8)
            for question, answer in zip(names[puzzles], names[answers], strict=True):
                file.write(b"puzzles5_forum_hardest,%s,%s,%d\n" % (question.tobytes(), answer.tobytes(), 42))


def time_reader(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, count in (("train.csv", rows), ("test.csv", rows // 9)):
            write_csv(Path(folder) / name, count)
        domain = Sudoku(SudokuParams(source="csv", folder=folder))
        start = time.perf_counter()
        domain.build(seed=0)
        seconds = time.perf_counter() - start
    total = rows + rows // 9
    print(
        f"CSV: {total} rows read, checked and split in {seconds:.1f} s = {total / seconds:.0f} a second; "
        f"at that rate the published files ({PUBLISHED_ROWS} rows) take {PUBLISHED_ROWS / total * seconds:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    scale = 1 if options.quick else 10
    print(f"{os.cpu_count()} cores")
    time_generator(4, 2_000 * scale, options.workers)
    time_generator(6, 1_000 * scale, options.workers)
    time_generator(9, 500 * scale, options.workers)
    time_reader(90_000 * scale)
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
