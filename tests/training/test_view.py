"""What one sees of a training: plain lines, the live screen, and the warning that halting has collapsed."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from ponder.training.rows import collapse
from ponder.training.view import Plain, Terminal
from tests.conftest import tiny

TRAIN: dict[str, Any] = {
    "kind": "train", "update": 8, "loss": 1.25, "exact": 0.25, "steps": 2.5, "grad_norm": 0.5, "norm_h": 4.0,
    "norm_l": 3.0, "ratio": 1.5, "q_halt": -2.0, "example_steps_per_second": 16.0, "peak_fraction": 0.5,
}  # fmt: skip
EVAL = {"kind": "eval", "update": 8, "n": {"val": 20}, "ema": {"val": {"exact": 0.75, "valid": 0.8}}}


def test_plain_lines_say_what_the_screen_says(capsys: pytest.CaptureFixture[str]) -> None:
    view = Plain()
    view.begin(tiny(), 128, 0)  # batches of 16 at 16 a second: 120 updates are two minutes
    view.row(TRAIN)
    view.row(EVAL)
    begun, meant, trained, evaluated = capsys.readouterr().out.splitlines()
    assert "own halting" in meant and "full budget" in meant
    assert "sudoku-mini: 128 updates of 16" in begun
    for part in ("loss 1.2500", "exact 25.0%", "steps 2.50", "grad 0.500", "norms 4.00 3.00", "ratio 1.500"):
        assert part in trained
    assert "50% of peak" in trained and trained.endswith("2.0 min left")
    assert "val 75.0% exact, 80.0% valid" in evaluated and "left" not in evaluated


def test_the_live_screen_shows_every_watched_number() -> None:
    screen = StringIO()
    view = Terminal(Console(file=screen, force_terminal=True, width=100))
    view.begin(tiny(), 128, 0)
    view.row(TRAIN)
    view.row(EVAL)
    view.say("a warning")
    view.close()
    shown = screen.getvalue()
    for part in ("8/128", "left", "1.2500", "25.0%", "2.50", "0.500", "4.00", "3.00", "1.500", "16", "50%", "75.0%"):
        assert part in shown, part
    assert "a warning" in shown


@pytest.mark.parametrize(
    ("q", "exact", "collapsed"),
    [(-2, 0.1, False), (-20, 0.0, False), (-20, 0.5, True), (4, 0.9, False), (4, 0.1, True), (40, 1.0, True)],
)  # fmt: skip
def test_collapse_is_being_sure_of_the_wrong_thing(q: float, exact: float, collapsed: bool) -> None:
    assert (collapse({"q_halt": q, "exact": exact}) is not None) is collapsed
    assert collapse({"exact": exact}) is None
