"""What the tests share."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
SHARED = ROOT.parent / "shared"
"""Large golden files and data sets, where they are at hand."""
