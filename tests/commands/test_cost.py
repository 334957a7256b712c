"""`ponder cost`: what its table shows."""

import pytest

from ponder.base.errors import UserError
from ponder.commands import cost as command
from ponder.config.resolve import resolve
from ponder.model.cost import cost


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, list[str]]:
    """The table that the command shows: first cell -> the others."""
    command.main(list(args))
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {row[0]: row[1:] for row in cells if len(row) > 1}


def test_a_model_is_measured_on_sudoku(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "hrm")
    assert shown["params"] == ["27.3M"]
    assert shown["layers per step"] == ["24"]
    assert shown["dense passes"] == ["3T"]
    assert shown["T"] == ["16"]


def test_a_preset_brings_its_domain_and_a_mini_model_its_width(capsys: pytest.CaptureFixture[str]) -> None:
    config = resolve("sudoku-mini")
    domain = config.data.make()
    expected = cost(config.model, len(domain.vocab), domain.seq_len)
    shown = printed(capsys, "sudoku-mini")
    assert shown["params"] == [f"{expected.work.parameters / 1e3:.3g}k"]
    assert shown["FLOP per update"] == [f"{expected.work.training / 1e6:.3g}M"]
    mini = cost(resolve("sudoku-mini", "ponder").model, len(domain.vocab), domain.seq_len)
    assert printed(capsys, "ponder-mini")["params"] == [f"{mini.work.parameters / 1e3:.3g}k"] != shown["params"]


def test_length_and_steps_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    plain, given = printed(capsys, "sudoku-mini"), printed(capsys, "sudoku-mini", "--seq-len", "160", "--steps", "9")
    assert given["T"] == ["9"]
    per_step = [float(shown["FLOP per step"][0].rstrip("MG")) for shown in (plain, given)]
    assert per_step[1] > 8 * per_step[0]


def test_all_models_beneath_each_other(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAPER_MODELS", ("dense", "hrm"))
    shown = printed(capsys, "all")
    assert shown["dense"][:3] == ["27.3M", "8", "1"]
    assert shown["hrm"][:3] == ["27.3M", "24", "3T"]


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(UserError, match="did you mean 'ponder'"):
        command.main(["pondr"])
    with pytest.raises(UserError, match="--steps 0"):
        command.main(["hrm", "--steps", "0"])
