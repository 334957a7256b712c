"""Errors that a user sees."""

import pytest

from ponder import cli
from ponder.base.errors import UserError
from ponder.config.resolve import parse_overrides


def test_an_error_is_one_line_whatever_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(UserError("a\nb\r\x1b[31m \ud800 ä 🙂")) == "a\\nb\\r\\x1b[31m \\ud800 ä 🙂"
    with pytest.raises(UserError, match=r"^unknown option --tr\\nain.lr: "):
        parse_overrides(["--tr\nain.lr", "1"])
    assert cli.main(["no\nverb\x07"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "\x07" not in err
