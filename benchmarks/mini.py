"""The mini presets' learning curves: stored from run folders, and the tables and figure made from what is stored.

    python -m benchmarks.mini store runs/sudoku-mini-s0 ...     results/mini/PRESET-MODEL.json
    python -m benchmarks.mini report                            docs/mini.md and docs/mini.png

Train each with `ponder train PRESET --model MODEL`; the seconds are wall-clock.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from ponder.base.plots import figure
from ponder.base.stats import share
from ponder.training.launch import Layout
from ponder.training.log import read_log

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "results" / "mini"


def store(run: Path) -> None:
    """Keep what a run's log says: the curve of each split, and what it was run with."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    evals = [row for row in read_log(run / "metrics.jsonl") if row["kind"] == "eval"]
    config = result["config"]
    name = config["preset"] + ("" if config["model"]["name"] == "ponder" else f"-{config['model']['name']}")
    kept: dict[str, Any] = {
        "preset": config["preset"],
        "model": config["model"]["name"],
        "seed": config["seed"],
        "key": result["key"],
        "data_hash": result["data_hash"],
        "cores": result["environment"]["cores"],
        "threads": result["environment"]["threads"],
        "commit": result["environment"]["commit"],
        "ranks": json.loads((run / "environment.json").read_text(encoding="utf-8")).get("ranks", 1),
        "compile": config["train"]["compile"],
        "updates": result["updates"],
        "seconds": result["seconds"],
        "n": result["n"],
        "curve": [
            {
                "update": row["update"],
                "seconds": round(row["seconds"], 1),
                **{split: {k: round(v, 4) for k, v in score.items()} for split, score in row["ema"].items()},
            }
            for row in evals
        ],
    }
    STORED.mkdir(parents=True, exist_ok=True)
    (STORED / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"stored {STORED / name}.json")


def reached(curve: list[dict[str, Any]], split: str, level: float) -> str:
    """Seconds after which the split's `valid` accuracy was at least `level` for the first time."""
    for point in curve:
        if point[split]["valid"] >= level:
            return f"{point['seconds']:.0f} s"
    return "not reached"


def by_half_an_hour(curve: list[dict[str, Any]], split: str) -> str:
    """`valid` at the last evaluation within 30 minutes; nothing where the training was over by then."""
    if curve[-1]["seconds"] <= 1800:
        return "–"
    return f"{[point for point in curve if point['seconds'] <= 1800][-1][split]['valid']:.1%}"


def table(stored: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| preset | model | split | valid at the end | 95% interval | exact | n | training | by 30 min | 95% after |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for run in stored:
        last = run["curve"][-1]
        for split, n in run["n"].items():
            score, interval = last[split], share(last[split]["valid"], n)
            layout = Layout(run.get("ranks", 1), run["threads"])
            compiled = ", compiled" if run.get("compile") == "block" else ""
            training = f"{run['seconds']:.0f} s, {layout}{compiled}, {run['updates']} updates"
            lines.append(
                f"| {run['preset']} | {run['model']} | {split} | {score['valid']:.1%} | {interval['low']:.1%}–"
                f"{interval['high']:.1%} | {score['exact']:.1%} | {n} | {training} | "
                f"{by_half_an_hour(run['curve'], split)} | {reached(run['curve'], split, 0.95)} |"
            )
    return lines


def report() -> None:
    stored = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(STORED.glob("*.json"))]
    lines = table(stored)
    intro = [
        "# Mini presets: learning curves",
        "",
        "Trained by `ponder train PRESET --model MODEL` (`OMP_NUM_THREADS=1` where it says 1 thread, "
        "`--train.compile block` where it says compiled), stored by "
        "`python -m benchmarks.mini store RUN`, and made by `python -m benchmarks.mini report` from `results/mini/`. "
        "EMA weights at the full ACT budget, held-out "
        "examples, one seed each; seconds are wall-clock on two cores. Trainings of one thread ran two or three at a "
        "time, beside other work, and before layers had kernels of our own; those of two processes are the plain "
        "command with them, alone on the machine (`python -m benchmarks.whole --runs DIR`). `ponder train PRESET` "
        "trains the preset's own recipe. The zoo holds the checkpoints chosen on `val`, measured on more puzzles, so "
        "that its cards give other numbers.",
        "",
    ]
    (ROOT / "docs" / "mini.md").write_text("\n".join([*intro, *lines, "", "![curves](mini.png)", ""]), encoding="utf-8")
    draw(stored, ROOT / "docs" / "mini.png")
    print("\n".join(lines))


def draw(stored: list[dict[str, Any]], path: Path) -> None:
    columns = min(3, len(stored))
    rows = -(-len(stored) // columns)
    with figure([path], rows, columns, (5 * columns, 3.6 * rows)) as (_, axes):
        for axis, run in zip(axes.flat, stored, strict=False):
            for split, n in run["n"].items():
                seconds = [p["seconds"] for p in run["curve"]]
                axis.plot(seconds, [100 * p[split]["valid"] for p in run["curve"]], label=f"{split}, n {n}")
            axis.axhline(95, color="0.6", linewidth=0.8, linestyle="--")
            axis.set(title=f"{run['preset']}, {run['model']}", xlabel="seconds of training", ylim=(-2, 102))
            axis.set_ylabel("valid, %")
            axis.legend()
        for axis in list(axes.flat)[len(stored) :]:
            axis.set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("store", "report"))
    parser.add_argument("runs", nargs="*", type=Path)
    args = parser.parse_args()
    if args.action == "store":
        for run in args.runs:
            store(run)
    else:
        report()


if __name__ == "__main__":
    main()
