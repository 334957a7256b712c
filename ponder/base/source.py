"""Where this ponder comes from: a folder of source or an installed package, and of which commit. Only the standard
library is used: the build hook (tools/hatch_build.py) runs this file alone."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAMP = Path(__file__).parents[1] / "COMMIT"
"""The commit, as the build hook put it into a wheel or an sdist."""


def folder() -> Path | None:
    """The folder of source this runs from; None for an installed package."""
    return ROOT if (ROOT / "pyproject.toml").is_file() and (ROOT / "constraints.txt").is_file() else None


def commit() -> str | None:
    """The commit of the source this runs from, with `+` where files differ from it; of a package, the one it was built
    from. A package that lies inside somebody else's repository does not take that one's commit for its own."""
    if folder() is not None and (ROOT / ".git").exists():
        try:
            out = subprocess.run(
                ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
                cwd=ROOT,
                capture_output=True,
                encoding="utf-8",
                timeout=5,
                check=True,
            )
            return out.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None
    return STAMP.read_text(encoding="utf-8").strip() if STAMP.is_file() else None
