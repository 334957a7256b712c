"""What hatchling runs when it packs ponder: the commit goes into the package, for `ponder --version` to tell."""

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        source = Path(self.root, "ponder", "base", "source.py")
        commit = runpy.run_path(str(source))["commit"]()
        if version == "editable" or commit is None:  # a checkout is asked itself
            return
        self.aside = tempfile.TemporaryDirectory()
        stamp = Path(self.aside.name, "COMMIT")
        stamp.write_text(commit + "\n", encoding="utf-8")
        build_data["force_include"][str(stamp)] = "ponder/COMMIT"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "aside"):
            self.aside.cleanup()
