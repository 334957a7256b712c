"""Pages that hold something generated: tables, and what stands between two lines that nobody sees."""

from collections.abc import Sequence
from pathlib import Path

from ponder.base import files
from ponder.base.errors import UserError


def put_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the two markers of a page."""
    before, after = around(path, begin, end)
    files.write(path, f"{before}{begin}\n{text}\n{end}{after}")


def around(path: Path, begin: str, end: str) -> tuple[str, str]:
    """What stands before and after the two markers of a page."""
    try:
        page = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}): name a page that has the lines {begin} and {end}"
        ) from None
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise UserError(f"{path} lacks the lines {begin} and {end}: put them where it belongs")
    return before, after


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
