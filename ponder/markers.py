"""Pages that hold something generated, between two lines that nobody sees."""

from pathlib import Path

from ponder.errors import UserError


def put_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the two markers of a page."""
    before, found, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise UserError(f"{path} lacks the lines {begin} and {end}: put them where it belongs")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
