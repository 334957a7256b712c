"""What the model's order of answers is worth on expressions: `python -m benchmarks.likely [--answers 10 36]`.

Writes results/bench_likely.json and the table in docs/boards.md.

Its own answer, and whether a right one is among so many, looked at from the likeliest on; beside it the same number of
answers in the fixed order + - * /, and by chance, whatever the model says.
"""

import argparse
import json
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from ponder.base.markers import markdown, put_between
from ponder.base.stats import share
from ponder.data import Dataset, build
from ponder.domains.contract import Domain, Tokens
from ponder.inference.engine import logits_of
from ponder.inference.tries import likeliest
from ponder.inference.weights import open_weights

ROOT = Path(__file__).resolve().parents[1]
STORED, PAGE = ROOT / "results" / "bench_likely.json", ROOT / "docs" / "boards.md"
BEGIN, END = "<!-- likely: benchmarks/likely.py -->", "<!-- end of likely -->"


def every_answer(domain: Domain, puzzle: Tokens) -> Tokens:
    """All of them, in the fixed order."""
    cells, symbols = domain.open_cells(puzzle)
    answers = np.zeros((len(symbols) ** len(cells), len(puzzle)), dtype=np.uint8)
    answers[:, cells] = list(product(symbols, repeat=len(cells)))
    return answers


def measure(name: str, most: list[int], count: int, data_dir: Path) -> dict[str, Any]:
    opened = open_weights(name)
    domain, steps = opened.domain, opened.model.config.max_steps
    assert domain is not None and opened.config is not None
    dataset = Dataset.open(build(opened.config.data, data_dir))
    rows = []
    for split in ("id", "ood"):
        inputs = np.asarray(dataset.arrays(split)["inputs"][:count])
        ranks, fixed, right, total = (np.zeros(len(inputs), dtype=np.int64) for _ in range(4))
        for i, puzzle in enumerate(inputs):
            answers, logits = every_answer(domain, puzzle), logits_of(opened.model, puzzle, steps)
            own = logits.argmax(axis=1).astype(np.uint8)[None]
            order = np.concatenate([own, likeliest(domain, puzzle, logits, len(answers))])
            good, fits = (domain.check(np.repeat(puzzle[None], len(each), axis=0), each) for each in (order, answers))
            ranks[i], fixed[i], right[i] = good.argmax(), fits.argmax(), fits.sum()
            total[i] = len(answers)
        operands = (np.log2(total) / 2).round().astype(int) + 1
        for number in (*np.unique(operands), None):
            inside = operands == number if number else np.ones(len(inputs), dtype=np.bool_)
            chance = {
                k: np.mean(
                    [1 - comb(n - r, k) / comb(n, min(k, n)) for n, r in zip(total[inside], right[inside], strict=True)]
                )
                for k in most
            }
            n = int(inside.sum())
            rows.append(
                {
                    "split": split,
                    "operands": None if number is None else int(number),
                    "n": n,
                    "alone": share((ranks[inside] == 0).mean(), n),
                    "within": {
                        str(k): {
                            "model": share((ranks[inside] < k).mean(), n),
                            "fixed": share((fixed[inside] < k).mean(), n),
                            "chance": float(chance[k]),
                        }
                        for k in most
                    },
                }
            )
    return {"model": name, "steps": steps, "data_hash": dataset.hash, "answers": most, "rows": rows}


def table(found: dict[str, Any]) -> str:
    def words(score: dict[str, float]) -> str:
        return f"{score['value']:.1%} ({score['low']:.1%} to {score['high']:.1%})"

    head = ["split", "operands", "n", f"alone, after {found['steps']} steps"]
    for k in found["answers"]:
        head += [f"{k} answers, the model's order", "fixed order", "chance"]
    rows = []
    for row in found["rows"]:
        cells = [row["split"], str(row["operands"] or "all"), str(row["n"]), words(row["alone"])]
        for k in found["answers"]:
            got = row["within"][str(k)]
            cells += [words(got["model"]), f"{got['fixed']['value']:.1%}", f"{got['chance']:.1%}"]
        rows.append(cells)
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="arithmetic-3-5")
    parser.add_argument("--answers", type=int, nargs="+", default=[10, 36], help="the model's own among them")
    parser.add_argument("--count", type=int, default=1000, help="puzzles of each split")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    asked = parser.parse_args()
    found = measure(asked.model, asked.answers, asked.count, asked.data_dir)
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    put_between(PAGE, BEGIN, END, table(json.loads(STORED.read_text(encoding="utf-8"))))
    print(table(found))


if __name__ == "__main__":
    main()
