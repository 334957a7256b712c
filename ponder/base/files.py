"""Files that survive a power cut, on any system: written aside, synced, renamed; locks and hashes.

What lies under its own name is whole. Text is UTF-8 with plain line ends, so that the same words are the same bytes
everywhere. A lock is released by the system when its holder dies, however it dies.
"""

import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from ponder.base.errors import FULL, UserError

# One file -------------------------------------------------------------------------------------------------------------


def write(path: Path, content: str | bytes) -> None:
    """Put `content` in the place of the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _named(path), part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        to_disk(path.parent)
    finally:
        part.unlink(missing_ok=True)


def append(path: Path, content: str) -> None:
    """Add to the file, all or nothing as far as the system lives. `to_disk` makes it survive a power cut."""
    with _named(path), path.open("ab") as file:
        before = file.tell()
        try:
            file.write(content.encode())
            file.flush()
        except OSError:
            with suppress(OSError):
                os.truncate(path, before)
            raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Say which file it was: a write that fails does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value, indent=1))


LARGEST = 64 * 2**20
"""Bytes of a file that is read whole. The longest of ours, the names of an augmented ARC, take forty million."""


def read(path: Path, limit: int | None = LARGEST) -> bytes:
    """All of a regular file."""
    with _regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
        return file.read(size)


@contextmanager
def _regular(path: Path) -> Iterator[BufferedReader]:
    """The file to be read: one that is a pipe would keep us waiting for ever."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield file


def read_json(path: Path) -> Any:
    return parse_json(read(path))


def parse_json(content: str | bytes) -> Any:
    """What is nested deeper than Python can follow is an error like every other."""
    try:
        return json.loads(content)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def read_object(path: Path, do: str) -> dict[str, Any]:
    """A file of names and values. `do`: what to do about one that is something else."""
    try:
        value = read_json(path)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({str(error).partition(';')[0]}): {do}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged (it holds no names and values): {do}")
    return value


def sha256(path: Path) -> str:
    with _regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SEAL = "seal"
"""Where an object on the disk holds the hash of all the rest of it."""


def sealed(value: Mapping[str, Any], name: str = SEAL) -> dict[str, Any]:
    """As it is read back from JSON, with its own hash."""
    whole = {key: each for key, each in json.loads(json.dumps(value)).items() if key != name}
    return {**whole, name: hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()}


def intact(value: Mapping[str, Any], name: str = SEAL) -> bool:
    """Whether nothing was changed since it was sealed, if it was."""
    return name not in value or sealed(value, name)[name] == value[name]


def unfinished(path: Path) -> bool:
    """Whether this is what a `write` left that was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


# Folders --------------------------------------------------------------------------------------------------------------


@contextmanager
def folder_aside(target: Path, whole: str | None = None) -> Iterator[Path]:
    """A folder to fill, which takes the place of `target` when the block ends well and is gone when it does not.

    A `target` that meanwhile got the file `whole` was finished by another process and stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield part
        part.chmod(0o755)
        if whole is None or not (target / whole).exists():
            put_folder(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def put_folder(part: Path, target: Path) -> None:
    """Give a folder its name. One that has it is set aside first: see `restore`."""
    for path in (*part.rglob("*"), part):
        to_disk(path)
    old = _old(target)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    part.rename(target)
    to_disk(target.parent)  # now: a disk may keep what is done next, in another folder, and lose this
    shutil.rmtree(old, ignore_errors=True)


def restore(target: Path) -> None:
    """Undo a `put_folder` that was killed between its two renames."""
    if not target.exists() and _old(target).exists():
        _old(target).rename(target)


def remove_folder(target: Path) -> None:
    """Delete a folder that must not be seen half deleted."""
    old = _old(target)
    target.rename(old)
    to_disk(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _old(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, survive a power cut. A system that cannot sync folders need not."""
    folder = path.is_dir()
    try:
        with _named(path):
            handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        if not folder or error.errno in (errno.EIO, *FULL):
            raise


# Locks ----------------------------------------------------------------------------------------------------------------

GLIMPSE = 0.05
"""Seconds that a look at a lock may have to wait for another look."""


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Whether the lock is ours, for as long as the block lasts; waits up to `patience` seconds for it."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=-1 if patience == float("inf") else patience)
    except Timeout:
        yield False
        return
    try:
        with suppress(OSError):  # a full disk
            _signature(path).write_text(
                json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8"
            )
        yield True
    finally:
        _signature(path).unlink(missing_ok=True)
        lock.release()


def holder(path: Path) -> str | None:
    """Who holds the lock, as `pid 123 on host`; None where nobody who is alive does."""
    from filelock import FileLock, Timeout

    if not path.exists():
        return None
    try:
        with FileLock(path, timeout=GLIMPSE, poll_interval=GLIMPSE / 5):
            return None
    except Timeout:
        pass
    with suppress(OSError, ValueError, KeyError):  # between taking the lock and signing it
        owner = read_json(_signature(path))
        return f"pid {owner['pid']} on {owner['host']}"
    return "someone"


def _signature(path: Path) -> Path:
    """Beside the lock: what is locked cannot be read everywhere."""
    return path.with_name(f"{path.name}.by")
