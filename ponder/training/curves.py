"""curves.png: how a training went, from its log."""

from pathlib import Path
from typing import Any

from ponder.base import plots


def draw_curves(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    trains = [r for r in rows if r["kind"] == "train"]
    evals = [r for r in rows if r["kind"] == "eval"]
    with plots.figure([path], 2, 2, (11, 7)) as (figure, axes):
        figure.suptitle(title)
        at = [r["update"] for r in trains]
        axes[0, 0].plot(at, [r["loss"] for r in trains])
        axes[0, 0].set(title="training loss", xlabel="update", yscale="log")
        for split in evals[-1]["ema"] if evals else ():
            line = axes[0, 1].plot(
                [r["update"] for r in evals], [100 * r["ema"][split]["exact"] for r in evals], label=split
            )
            plain = [r for r in evals if "online" in r]
            axes[0, 1].plot(
                [r["update"] for r in plain],
                [100 * r["online"][split]["exact"] for r in plain],
                ".:",
                color=line[0].get_color(),
            )
        axes[0, 1].set(title="exact accuracy, % (EMA; dotted: online)", xlabel="update", ylim=(-2, 102))
        axes[0, 1].legend()
        axes[1, 0].plot(at, [r["grad_norm"] for r in trains], label="mean")
        axes[1, 0].plot(at, [r["grad_norm_max"] for r in trains], alpha=0.4, label="max")
        axes[1, 0].set(title="gradient norm before clipping", xlabel="update", yscale="log")
        axes[1, 0].legend()
        axes[1, 1].plot(at, [r["steps"] for r in trains], label="mean ACT steps")
        axes[1, 1].set(title="ACT steps of finished examples", xlabel="update", ylim=(0, None))
