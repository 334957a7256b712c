"""An environment to install packages into, with the packages of this interpreter to borrow, without a network."""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

RUNNER = """\
import shlex, sys
from ponder.cli import main

if __name__ == "__main__":  # a dataset's worker processes import this file
    for line in sys.argv[1:]:
        try:
            code = main(shlex.split(line))
        except SystemExit as end:
            code = end.code
        if code and not (line.startswith("solve ") and code == 1):  # a model of a few updates may answer wrongly
            sys.exit(f"ponder {line} ended with {code}")
"""


@dataclass(frozen=True)
class Scratch:
    folder: Path
    """Where the commands are run."""
    python: Path

    @staticmethod
    def make(folder: Path, with_ponder: bool = True) -> "Scratch":
        """With the repository's own ponder in it, or with none."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        found = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        borrowed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
        borrowed += [path for path in sys.path if path.endswith("site-packages")]  # of an environment that borrows too
        paths = dict.fromkeys([*([str(ROOT)] if with_ponder else []), *borrowed])
        Path(found.stdout.strip(), "parent.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
        (folder / "work").mkdir()
        (folder / "work" / "run_ponder.py").write_text(RUNNER, encoding="utf-8")
        return Scratch(folder / "work", python)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PONDER_DOMAINS")}
        return kept | {"XDG_DATA_HOME": str(self.folder / "share"), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}

    def install(self, package: Path | str, *options: str) -> None:
        """Without the network: what the package needs is there."""
        self.pip("install", "--no-index", "--no-deps", "--no-build-isolation", *options, str(package))

    def pip(self, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(self.python), "--quiet", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def run(self, *words: str | Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """`python WORDS` in this environment; fails the test where it ends with another code."""
        done = subprocess.run(
            [self.python, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    def ponder(self, *commands: str) -> str:
        """`ponder COMMAND` for each, in one process; what they print."""
        return self.run("run_ponder.py", *commands).stdout


@contextmanager
def served(scratch: Scratch, *options: str) -> Iterator[str]:
    """`ponder serve` in this environment: its address, once it has said that."""
    command = [str(scratch.python), "-m", "ponder", "serve", "--port", "0", "--threads", "1", *options]
    with subprocess.Popen(
        command, cwd=scratch.folder, env=scratch.environment, stdout=subprocess.PIPE, encoding="utf-8"
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, f"the server said {line!r}"
            yield found[0]
        finally:
            server.kill()
