"""Is it the labels' operators? `python -m benchmarks.prior [--seeds 0 1 2 3 4] [--runs DIR]`. Ten minutes.

Out of distribution most operators of Arithmetic's labels are multiplications, in training a quarter. Recipes of the
main results are trained where `--runs` has none of them, and answer twice: as they are, and with the probability of
every operator multiplied by how much more frequent it is in that split's labels than in those of training. That knows
what a solver does not, the split's own frequencies: what it gains is the most that this prior can be blamed for.

Declared before it was run: the gain is the difference in valid answers, seed by seed; it is there where the 95%
interval of a recipe's seeds (Student's t) is above 0, and "most of what is missing" where it closes more than half of
the gap between `ood` and `id`. Writes results/bench_prior.json and the table in docs/boards.md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ponder import api
from ponder.base import runtime
from ponder.base.markers import markdown, put_between
from ponder.base.stats import estimate
from ponder.data import Dataset, build
from ponder.domains.contract import Ints, Tokens
from ponder.inference.engine import Engine, Full, Seen
from ponder.inference.weights import open_weights
from ponder.model.losses import log_stablemax
from ponder.studies.spec import load
from ponder.training.runs import RESULT

ROOT = Path(__file__).resolve().parents[1]
STORED, PAGE = ROOT / "results" / "bench_prior.json", ROOT / "docs" / "boards.md"
BEGIN, END = "<!-- prior: benchmarks/prior.py -->", "<!-- end of prior -->"
RECIPES = ("dense", "hrm", "ponder")


def frequencies(answers: Tokens, operators: Ints) -> npt.NDArray[np.float64]:
    counts = np.array([(answers == operator).sum() for operator in operators], dtype=np.float64)
    out: npt.NDArray[np.float64] = counts / counts.sum()
    return out


def measure(folder: Path, dataset: Dataset) -> dict[str, Any]:
    model, domain = open_weights(folder).model, dataset.domain
    operators = domain.open_cells(np.asarray(dataset.arrays("id")["inputs"][0]))[1]
    times = [domain.vocab[operator] for operator in operators].index("*")
    usual = frequencies(np.asarray(dataset.arrays("train")["labels"]), operators)
    found: dict[str, Any] = {"times_in_training": float(usual[times])}
    for split in ("id", "ood"):
        inputs, labels = (np.asarray(dataset.arrays(split)[name]) for name in ("inputs", "labels"))
        steps: list[Seen] = []
        Engine(model, domain, len(inputs), Full()).run(inputs, watch=steps.append)
        own, sure = frequencies(labels, operators), log_stablemax(steps[-1].logits.double()).numpy()
        shift = np.zeros(sure.shape[-1])
        with np.errstate(divide="ignore"):  # an operator that the split never has is never answered
            shift[operators] = np.log(own / usual)
        plain, corrected = (values.argmax(axis=-1).astype(np.uint8) for values in (sure, sure + shift))
        found[split] = {
            "n": len(inputs),
            "times": float(own[times]),
            "times_answered": float(frequencies(np.where(np.isin(labels, operators), plain, 0), operators)[times]),
            "plain": float(domain.check(inputs, plain).mean()),
            "corrected": float(domain.check(inputs, corrected).mean()),
        }
    return found


def table(rows: dict[str, list[dict[str, Any]]]) -> str:
    def mean(found: list[dict[str, Any]], split: str, what: str) -> str:
        values = [each[split][what] for each in found]
        return f"{np.mean(values):.1%} ± {np.std(values, ddof=1):.1%}"

    out = []
    for recipe, found in rows.items():
        gain = estimate([each["ood"]["corrected"] - each["ood"]["plain"] for each in found], None)
        missing = np.mean([each["id"]["plain"] - each["ood"]["plain"] for each in found])
        assert gain.low is not None and gain.high is not None
        cells = [mean(found, *of) for of in (("id", "plain"), ("ood", "plain"), ("ood", "corrected"))]
        said = f"{gain.value:+.1%} ({gain.low:+.1%} to {gain.high:+.1%})"
        cells += [said, f"{gain.value / missing:.0%}", mean(found, "id", "times_answered")]
        out.append([f"`{recipe}`", str(len(found)), *cells, mean(found, "ood", "times_answered")])
    head = ["recipe", "seeds", "`id`", "`ood`", "`ood`, prior corrected", "gain (95% interval)", "of what is missing"]
    return markdown([*head, "× of the answers, `id`", "`ood`"], out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs/prior"))
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    runtime.start("cpu")
    rows: dict[str, list[dict[str, Any]]] = {}
    for cell in load("main-results").cells():
        if cell.task != "arithmetic" or cell.variant not in RECIPES or cell.seed != 0:
            continue
        for seed in asked.seeds:
            config = cell.config.model_copy(update={"seed": seed})
            folder = asked.runs / config.key()
            if not (folder / RESULT).is_file():
                api.train(config, folder, data_dir=asked.data_dir, device="cpu", quiet=True)
            found = measure(folder, Dataset.open(build(config.data, asked.data_dir)))
            rows.setdefault(cell.variant, []).append({"seed": seed, **found})
            print(cell.variant, seed, json.dumps(found), flush=True)
    said = {"environment": runtime.environment(), "recipes": rows}
    STORED.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    put_between(PAGE, BEGIN, END, table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
