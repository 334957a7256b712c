"""What is learned of ARC in minutes: `python -m benchmarks.arc_slice`, after the four commands of docs/arc.md.

Writes results/bench_arc_slice.json and the table in docs/arc.md, from what those commands wrote.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from ponder.base import files
from ponder.base.markers import markdown, put_between
from ponder.base.stats import share
from ponder.domains.arc.competition import read_challenges, read_solutions
from ponder.evaluation.schema import read_eval
from ponder.training.log import read_log

ROOT = Path(__file__).resolve().parents[1]
STORED, PAGE = ROOT / "results" / "bench_arc_slice.json", ROOT / "docs" / "arc.md"
BEGIN, END = "<!-- slice: benchmarks/arc_slice.py -->", "<!-- end of slice -->"
ATTEMPTS = 2


def measure(run: Path, folder: Path) -> dict[str, Any]:
    """Each way's number of tasks all of whose test inputs are among two attempts, and of test inputs that are."""
    tasks = read_challenges(folder / "challenges.json")
    solutions = read_solutions(folder / "solutions.json", tasks)
    score = files.read_json(folder / "submission" / "score.json")
    result = read_eval(run / "eval" / "eval.json")
    splits = [split.arc for split in result.scores["ema"].values() if split.arc is not None]
    copied = {
        task.name: [
            pair.input.tolist() == grid.tolist() for pair, grid in zip(task.tests, solutions[task.name], strict=True)
        ]
        for task in tasks
    }
    outputs = {task.name: Counter(json.dumps(pair.output.tolist()) for pair in task.demos) for task in tasks}
    repeated = {
        name: [json.dumps(grid.tolist()) in dict(outputs[name].most_common(ATTEMPTS)) for grid in grids]
        for name, grids in solutions.items()
    }
    ranks = {name: each for split in splits for name, each in split.label_rank.items()}
    trained = {name: [rank is not None and rank <= ATTEMPTS for rank in each] for name, each in ranks.items()}
    assert copied.keys() == trained.keys() == score["solved"].keys()
    blank = sum(split.blank_id.all_test_inputs.two.value * split.tasks for split in splits)
    rows = {
        "the test input itself": copied,
        "the two most frequent outputs of its demonstrations": repeated,
        "trained": trained,
        "trained and submitted": score["solved"],
    }
    ways = [
        {
            "way": way,
            "tasks": share(sum(map(all, solved.values())) / len(solved), len(solved)),
            "test_inputs": share(sum(map(sum, solved.values())) / score["test_inputs"], score["test_inputs"]),
        }
        for way, solved in rows.items()
    ]
    ways.insert(2, {"way": "trained, every task id replaced by 0", "tasks": share(blank / len(tasks), len(tasks))})
    last = read_log(run / "metrics.jsonl")[-1]
    return {
        "protocol": "held-out test pairs of all tasks whose grids fit 5x5; two attempts at each test input, by votes",
        "tasks": len(tasks),
        "test_inputs": score["test_inputs"],
        "ways": ways,
        "solved": {name: sorted(task for task, each in solved.items() if all(each)) for name, solved in rows.items()},
        "updates": {"trained": last["update"], "submitted": score["updates"]},
        "seed": result.seed,
        "data_hash": result.data.hash,
        "weights": result.weights,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/arc1-5x5-mini-s0"))
    parser.add_argument("--folder", type=Path, default=Path("runs/arc-5x5"))
    asked = parser.parse_args()
    found = measure(asked.run, asked.folder)
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    tasks, inputs = found["tasks"], found["test_inputs"]
    rows = []
    for way in found["ways"]:
        row = [way["way"]]
        for what, n in (("tasks", tasks), ("test_inputs", inputs)):
            part = way.get(what)
            row.append("–" if part is None else f"{round(part['value'] * n)} of {n}: {part['value']:.1%}")
            row.append("–" if part is None else f"{part['low']:.1%} to {part['high']:.1%}")
        rows.append(row)
    table = markdown(["answer", "tasks solved", "95% interval", "test inputs solved", "95% interval"], rows)
    put_between(PAGE, BEGIN, END, table)
    print(table)


if __name__ == "__main__":
    main()
