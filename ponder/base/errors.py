"""Errors a user can act on. The CLI prints them as one line, without a traceback."""

import difflib
import errno
import json
import os
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ponder.base import source

LAUNCHED = "PONDER_LAUNCHED"
"""Set in processes that `ponder train` started, to its pid: they leave their errors to it instead of printing each its
own, and end when it does."""


class UserError(Exception):
    """Something the user gave is wrong. The message says what was given, what is allowed and what to do, in one line:
    what was given may hold line ends, or words for a terminal, which are shown as Python would write them."""

    code = 2
    """What the process ends with."""

    def __init__(self, message: str) -> None:
        plain = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)
        super().__init__("".join(plain))


class RankLost(UserError):
    """Another process of this training is gone. Whoever started both should rather say why that one ended."""

    code = 3


def needs_extra(what: str, extra: str) -> UserError:
    """The error for an import that failed because an optional dependency is not installed."""
    return UserError(f"{what} needs an extra: {install_extra(extra)}")


def install_extra(extra: str) -> str:
    """What to type to get an extra: in a checkout it is installed from there."""
    where = source.folder()
    if where is None:
        return f"pip install 'ponder[{extra}]'"
    return f"pip install -c constraints.txt -e '.[{extra}]' in {where}"


def unknown(kind: str, given: object, allowed: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    return UserError(f"unknown {kind} {given!r}: {instead(given, allowed)}")


def instead(given: object, allowed: Iterable[str]) -> str:
    """The name that is nearest to the one given, and all there are."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + f"allowed: {', '.join(names)}"


def at_least(least: int, given: Mapping[str, int | None]) -> None:
    """Refuse numbers that are smaller; what was left out is None."""
    for name, value in given.items():
        if value is not None and value < least:
            raise UserError(f"{name} {value} is too small: give at least {least}, or leave it out")


FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
"""What a system says of a full disk."""


@contextmanager
def disk_in_words() -> Iterator[None]:
    """What the system says of a file, as an error that a user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is None:  # of a network, a pipe, a library
            raise
        do = "make room, then give the same command again" if error.errno in FULL else "give another place, or mend it"
        raise UserError(f"cannot use {error.filename} ({error.strerror}): {do}") from None


def handed_over(error: Exception) -> bool:
    """Leave an error to the process that launched this one, as torch's launcher reads it; whether there is one."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if LAUNCHED not in os.environ or file is None:
        return False
    text = str(error) if isinstance(error, UserError) else traceback.format_exc()
    told = {"message": {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}}
    Path(file).write_text(json.dumps(told), encoding="utf-8")
    return True
