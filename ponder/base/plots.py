"""Figures, all in one style: colours that the colour-blind tell apart, a pale grid; written aside and renamed."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ponder.base import files

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
"""Okabe and Ito's colours, and one more."""
STYLE = {"font.size": 10, "axes.grid": True, "grid.alpha": 0.25, "legend.fontsize": 8, "svg.hashsalt": "ponder"}


@contextmanager
def figure(
    paths: Sequence[Path], down: int, across: int, size: tuple[float, float], dpi: int = 110
) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, [down, across]; at the end it is written as each of the files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({**STYLE, "axes.prop_cycle": plt.cycler(color=COLOURS)}):
        made, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
        try:
            yield made, axes
            for path in paths:
                drawn, kind = io.BytesIO(), path.suffix[1:]
                made.savefig(drawn, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
                files.write(path, drawn.getvalue())
        finally:
            plt.close(made)
