"""The tables of docs/performance.md, made from results/bench_*.json: `python -m benchmarks.report`.

Each table stands between two comments that name it. A result that is not stored is said to be missing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ponder.base.markers import put_between

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
AIMS = {"mini 4x4, width 64": (0.6, 0.6), "mini 6x6, width 96": (0.6, 0.6), "paper, width 512": (0.85, 0.90)}


def table(head: str, rows: list[list[str]]) -> str:
    columns = head.split(" | ")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [columns, ["---"] * len(columns), *rows])


def model(stored: dict[str, Any]) -> str:
    rows, loads = [], []
    for way, run in stored.items():
        loads.append(f"{way}: load {run['load']:.1f} before{', quick form' if run['quick'] else ''}")
        for row in run["steps"]:
            training, inference = AIMS[row["shape"]]
            rows.append(
                [
                    row["shape"],
                    way,
                    row["form"],
                    f"{row['peak']:.0f}",
                    f"{row['training_fraction']:.0%}",
                    f"{row['inference_fraction']:.0%}",
                    f"{training:.0%} / {inference:.0%}",
                ]
            )
    rows.sort(key=lambda cells: list(AIMS).index(cells[0]))
    head = "shape | processes x threads | form | peak, GFLOP/s | training | inference | aim"
    return f"{table(head, rows)}\n\n{'; '.join(loads)}."


def train(stored: dict[str, Any]) -> str:
    ponder = stored["models"]["ponder"]["example_steps_per_second"]
    rows = [
        [
            name,
            f"{row['example_steps_per_second']:,.0f}",
            f"{row['flops'] / 1e6:.1f}",
            f"{row['peak_fraction']:.0%}",
            f"{row['example_steps_per_second'] / ponder:.2f}",
        ]
        for name, row in stored["models"].items()
    ]
    about = f"`{stored['preset']}`, batch {stored['batch']}, {stored['threads']} threads, best of {stored['rounds']}."
    return f"{about}\n\n{table('model | example-steps a second | MFLOP each | of peak | relative to ponder', rows)}"


def inference(stored: dict[str, Any]) -> str:
    rows = [
        [
            row["checkpoint"],
            row["policy"],
            str(row["n"]),
            f"{row['mean_steps']:.2f}",
            f"{row['ratio']:.1f}",
            f"{row['wanted']:.1f}",
            f"{row['full_exact']:.1%}",
            f"{row['exact']:.1%}",
        ]
        for row in stored["rows"]
    ]
    head = "checkpoint | policy | n | mean steps | times as many puzzles a second | aim | exact, full budget | exact"
    return f"Full budget: {stored['budget']} steps.\n\n{table(head, rows)}"


def serve(stored: dict[str, Any]) -> str:
    rows = []
    for row in stored["rows"]:
        for name, key in (("continuous batching", "continuous"), ("one at a time", "single")):
            one = row[key]
            speed = [f"{one['per_second']:.0f}", f"{one['p50_ms']:.0f} ms", f"{one['p99_ms']:.0f} ms"]
            ratio = f"{row['ratio']:.1f} (CPU {row['cpu_ratio']:.1f})" if key == "continuous" else "1"
            steps = list(stored.get("steps", {}).get(row["model"], {}).values())
            step = f"{steps[0] if key == 'single' else min(steps):.2f} ms" if steps else "–"
            rows.append(
                [row["model"], name, str(one.get("n", row.get("n"))), *speed, f"{one['cpu_ms']:.1f} ms", step, ratio]
            )
    clients = stored["rows"][0]["clients"]
    head = (
        "model | way | puzzles | a second | p50 | p99 | server CPU a puzzle | an ACT step, one thread | times (aim 5)"
    )
    return f"{clients} clients at a time.\n\n{table(head, rows)}"


def peers(stored: dict[str, Any]) -> str:
    rows = [
        [
            row["peer"],
            str(row["layers"]),
            row["what"],
            f"{row['theirs_ms']:,.0f} ms",
            f"{row['ours_ms']:,.0f} ms",
            f"{row['ratio']:.2f}",
            f"{row['of_limit']:.0%}",
        ]
        for row in stored["rows"]
    ]
    clock = "CPU time of one thread" if stored["threads"] == 1 else f"{stored['threads']} threads"
    about = (
        f"Width 512, {stored['tokens']} tokens, batch {stored['batch']}, float32, {clock}, medians of "
        f"{stored['rounds']} alternating rounds; load {stored['load']:.1f} before."
    )
    head = "authors' code | layers a module | one ACT step of | theirs | ours | times as fast | of the products' limit"
    return f"{about}\n\n{table(head, rows)}"


def neighbour(stored: dict[str, Any]) -> str:
    rows = [
        [
            job,
            {"passive": "asleep", "active": "spinning"}[waiting],
            *(f"{found[k]:,.{1 if found[k] >= 10 else 2}f}" for k in ("alone", "beside a busy process")),
            f"{found['kept']:.0%}",
        ]
        for waiting, jobs in stored["waiting"].items()
        for job, found in jobs.items()
    ]
    return table("the plain command | threads wait | alone | beside a busy process | kept", rows)


def start(stored: dict[str, Any]) -> str:
    rows = [
        [row["model"], *(f"{row[way][clock]:.2f} s" for way in ("one", "file") for clock in ("seconds", "cpu"))]
        for row in stored["rows"]
    ]
    rows.append(["`import torch` alone", *(f"{stored['torch'][clock]:.2f} s" for clock in ("seconds", "cpu")), "", ""])
    head = "model | one puzzle (aim 1.5 s) | CPU | a file of one, by torch | CPU"
    return f"{table(head, rows)}\n\nThe least of {stored['rounds']} rounds; load {stored['load']:.1f} before."


def growth(stored: dict[str, Any]) -> str:
    rows = [
        [
            row["name"],
            f"{row['values'][0]:,} to {row['values'][-1]:,}",
            f"{row['seconds'][0] * 1e3:,.0f} to {row['seconds'][-1] * 1e3:,.0f} ms",
            f"{row['time']:.2f}",
            f"{row['bytes'][0] / 1e6:,.1f} to {row['bytes'][-1] / 1e6:,.1f} MB",
            f"{row['memory']:.2f}",
            row["why"],
        ]
        for row in stored["rows"]
    ]
    head = "quantity | values | CPU time | exponent | peak memory | exponent | above linear because"
    return f"{table(head, rows)}\n\nOne thread; load {stored['load']:.1f} before."


def kernels(stored: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['preset']}, {row['model']}",
            str(row["batch"]),
            *(f"{row['ms'][way]:,.1f} ms" for way in ("plain", "ours")),
            f"{row['ratio']:.2f}",
            *(f"{row['of_peak'][way]:.0%}" for way in ("plain", "ours")),
        ]
        for row in stored["rows"]
    ]
    head = "update of | batch | without | with our kernels | times as fast | of peak, without | with"
    return f"{table(head, rows)}\n\nOne thread, CPU time; load {stored['load']:.1f} before."


def whole(stored: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['preset']}, {row['model']}",
            row["on"],
            f"{row['command']:.1f} s",
            f"{row['training']:.1f} s",
            f"{row['right_after']:.1f} s" if row["right_after"] is not None else "not reached",
            f"{row['at_the_end']:.1%} of {row['n']}",
            f"{row['of_peak']:.0%}",
            f"{row['with_evaluations']:.0%}",
        ]
        for row in stored["rows"]
    ]
    head = "`ponder train` | on | command | training | 95% of val after | at the end | of peak | and with evaluations"
    return f"{table(head, rows)}\n\nOne seed each; load {stored['load']:.1f} before."


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "model": model,
    "train": train,
    "inference": inference,
    "serve": serve,
    "peers": peers,
    "neighbour": neighbour,
    "start": start,
    "growth": growth,
    "kernels": kernels,
    "whole": whole,
}


def main() -> None:
    for name, make in TABLES.items():
        stored = ROOT / "results" / f"bench_{name}.json"
        made = (
            make(json.loads(stored.read_text(encoding="utf-8")))
            if stored.exists()
            else f"Not measured: {stored.name} is missing."
        )
        put_between(PAGE, f"<!-- {name}: benchmarks/report.py -->", f"<!-- end of {name} -->", made)
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
