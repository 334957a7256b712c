"""How a process is struck while it changes a folder, and what a power cut leaves of the folder.

A blow falls at one of Python's own reports (audit events) before it changes the disk, or, where strace is installed, at
one of the system calls themselves.
"""

import errno
import json
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ponder.base.errors import UserError, disk_in_words

REFUSED, BROKEN = 2, 9
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
"""What Python reports, beside opening a file to write, before it changes something on the disk."""
CALLS = (
    "write,pwrite64,writev,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir,fsync,ftruncate,truncate,chmod,"
    "sendto,sendmsg"
)
"""System calls that write, to the disk or the net."""


# One process ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    code: int
    """Less than 0: the signal."""
    said: str
    """What went wrong, where something did."""


def child(work: Callable[[], object], before: Callable[[int], Callable[[], None]] | None = None) -> Ended:
    """Run in a process of its own. `before` gets its pid while it waits; what it gives back is called at the end."""
    with tempfile.TemporaryFile() as said:
        ready, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.read(ready, 1)
            _run(work, said.fileno())
        os.close(ready)
        after = before(pid) if before is not None else None
        os.write(go, b"!")
        os.close(go)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if after is not None:
            after()
        said.seek(0)
        return Ended(code, said.read().decode(errors="replace"))


def _run(work: Callable[[], object], said: int) -> None:
    code = BROKEN
    os.dup2(said, 2)
    try:
        with disk_in_words():
            work()
        code = 0
    except UserError as error:
        code = REFUSED if "\n" not in str(error) else BROKEN
        os.write(2, f"{error}\n".encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Flag:
    """Set in a child, read by its parent."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1)

    def __bool__(self) -> bool:
        return self.memory[0] == 1

    def set(self) -> None:
        self.memory[0] = 1


# At a report of Python's ----------------------------------------------------------------------------------------------


def on_change(folder: Path, strike: Callable[[int, str, tuple[Any, ...]], None]) -> None:
    """Call with number, event and its arguments before every change that this process makes in the folder."""
    count = [0]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        changes = event in CHANGES or (event == "open" and isinstance(args[1], str) and args[1][:1] in "wax")
        if changes and str(folder) in str(args[0]):
            count[0] += 1
            strike(count[0], event, args)

    sys.addaudithook(hook)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number: int) -> Callable[[], None]:
    def blow() -> None:
        raise OSError(number, os.strerror(number), "the disk")

    return blow


full, read_only = refuse(errno.ENOSPC), refuse(errno.EROFS)


# At a system call -----------------------------------------------------------------------------------------------------


def strace() -> bool:
    """Whether system calls can be struck here."""
    return shutil.which("strace") is not None and not child(lambda: None, traced("write", [])).code


def traced(calls: str, more: list[str], out: Path | None = None) -> Callable[[int], Callable[[], None]]:
    """Has strace attached to a child before it begins."""

    def begin(pid: int) -> Callable[[], None]:
        words = ["strace", "-f", "-qq", "-o", str(out or os.devnull), "-e", f"trace={calls}", *more, "-p", str(pid)]
        tracer = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while tracer.poll() is None:
            if f"TracerPid:\t{tracer.pid}\n" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8"):
                break
            time.sleep(0.002)
        return lambda: void(tracer.wait())

    return begin


def void(_: object) -> None:
    pass


def count_calls(trace: Path) -> Counter[str]:
    """Of an undisturbed run: name -> how often."""
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    return Counter(found[1] for line in lines if (found := re.match(r"\d+ +(\w+)\(", line)))


# A power cut ----------------------------------------------------------------------------------------------------------


@dataclass
class Journal:
    """What a process did to a folder, so that what was never synced can be taken back: names by directory, in any order
    between directories, and the ends of files. Lies outside of the folder, with a link to each file that is removed."""

    folder: Path
    place: Path
    sizes: Mapping[int, int] = field(init=False)
    """Inode -> bytes that lay on the disk before."""

    def __post_init__(self) -> None:
        self.place.mkdir(parents=True)
        self.sizes = {p.stat().st_ino: p.stat().st_size for p in self.folder.rglob("*") if p.is_file()}

    def keep(self) -> None:
        """From now on, in this process."""
        handle = os.open(self.place / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        number = [0]

        def note(**what: Any) -> None:
            os.write(handle, json.dumps(what).encode() + b"\n")

        def link(path: Path) -> str | None:
            number[0] += 1
            stash = self.place / f"stash-{number[0]}"
            if path.is_symlink() or not path.is_file():
                return None
            os.link(path, stash)
            return str(stash)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == "os.rename":
                src, dst = _at(args[0], args[2]), _at(args[1], args[3])
                if self.folder in src.parents:
                    note(op="rename", path=str(dst), src=str(src), stash=link(dst))
            elif event in ("os.remove", "os.rmdir"):
                path = _at(args[0], args[1])
                if self.folder in path.parents:
                    gone = path.stat().st_ino if event == "os.remove" and path.exists() else None
                    note(op=event, path=str(path), stash=link(path), inode=gone)

        real = os.fsync

        def fsync(fd: int) -> None:
            real(fd)
            about, name = os.fstat(fd), str(Path(f"/proc/self/fd/{fd}").readlink())
            note(op="fsync", path=name, inode=about.st_ino, size=about.st_size)

        sys.addaudithook(hook)
        os.fsync = fsync  # type: ignore[assignment]

    def cut(self, rng: random.Random) -> None:
        """Take back a part of what was not synced."""
        lines = (self.place / "journal").read_text(encoding="utf-8").splitlines()
        done = [json.loads(line) for line in lines]
        loose: dict[Path, list[int]] = {}
        sizes = dict(self.sizes)
        for number, each in enumerate(done):
            if each["op"] == "fsync":
                sizes[each["inode"]] = each["size"]
                loose.pop(Path(each["path"]), None)
            else:
                sizes.pop(each.get("inode"), None)
                loose.setdefault(Path(each["path"]).parent, []).append(number)
        lost = [number for names in loose.values() for number in names[rng.randint(0, len(names)) :]]
        for number in sorted(lost, reverse=True):
            with suppress(OSError):  # what was done to it since, in another directory, came to the disk
                _undo(done[number])
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                _tear(path, sizes.get(path.stat().st_ino, 0), rng)


def _at(path: Any, folder: int) -> Path:
    above = Path(f"/proc/self/fd/{folder}").readlink() if folder not in (-1, None) else Path()
    return (above / os.fsdecode(path)).absolute()


def _undo(done: Mapping[str, Any]) -> None:
    path = Path(done["path"])
    if done["op"] == "rename":
        path.rename(done["src"])
    if done["op"] == "os.rmdir":
        path.mkdir()
    elif done["stash"] is not None:
        os.link(done["stash"], path)


def _tear(path: Path, safe: int, rng: random.Random) -> None:
    """The end of a file that was not synced: there, cut, or zeros."""
    size = path.stat().st_size
    if size > safe and rng.random() < 0.7:
        left = rng.randint(safe, size)
        os.truncate(path, left)
        if rng.random() < 0.5:
            os.truncate(path, size)
