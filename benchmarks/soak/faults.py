"""Every kind of fault against every kind of work, and the verdict: is finished work lost, is any end another one?

After a fault the same command is given again, as a user would. The work survives when it ends as the undisturbed one
does, bit for bit; it is refused when ponder says in one line what is damaged; everything else is wrong. A fault that
damages nothing that was on the disk must not be refused.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from benchmarks.soak.blows import CALLS, REFUSED, Ended, Flag, Journal, child, full, kill, on_change, read_only, traced
from benchmarks.soak.works import Work

Verdict = Literal["survived", "refused", "wrong", "missed"]
Fault = Callable[[Work, Path, random.Random, list[str]], Verdict]
"""Strikes one work in a folder; what it ended with is added to the list. Missed: the blow never fell."""


def again(work: Work, folder: Path, said: list[str], do: Callable[[Path], None] | None = None) -> Verdict:
    ended = child(lambda: (do or work.do)(folder))
    said.append(f"again: {ended.code} {ended.said}")
    if ended.code == REFUSED:
        return "refused"
    if ended.code:
        return "wrong"
    found = child(lambda: same(work, folder))
    said.append(found.said)
    return "survived" if found.code == 0 else "wrong"


def same(work: Work, folder: Path) -> None:
    assert work.end(folder) == work.whole, "it ended otherwise"


def undamaged(work: Work, folder: Path, said: list[str]) -> Verdict:
    """What was there before the blow is there, and the same command ends well."""
    kept = child(lambda: work.kept(folder))
    said.append(kept.said)
    if kept.code:
        return "wrong"
    verdict = again(work, folder, said)
    return "wrong" if verdict == "refused" else verdict


def struck(blow: Callable[[], None], code: int, on: bool = False) -> Fault:
    """A blow at a change of the disk; `on`: and at every later one."""

    def fault(work: Work, folder: Path, rng: random.Random, said: list[str]) -> Verdict:
        if not work.changes:
            return "missed"
        at, landed = rng.randint(1, work.changes), Flag()

        def strike(number: int, *_: object) -> None:
            if number == at or (on and number > at):
                landed.set()
                blow()

        def do() -> None:
            on_change(folder, strike)
            work.do(folder)

        ended = child(do)
        return judged(work, folder, said, ended, bool(landed), code)

    return fault


def judged(work: Work, folder: Path, said: list[str], ended: Ended, landed: bool, code: int) -> Verdict:
    said.append(f"struck: {ended.code} {ended.said}")
    if not landed:
        return "missed"
    return undamaged(work, folder, said) if ended.code in (0, code) else "wrong"


def called(what: str, code: int) -> Fault:
    """A blow at a system call that writes; `what` it is, in strace's words."""

    def fault(work: Work, folder: Path, rng: random.Random, said: list[str]) -> Verdict:
        names = [name for name in work.calls.elements() if "ENOSPC" not in what or not name.startswith("send")]
        if not names:
            return "missed"
        name = rng.choice(names)
        inject = f"inject={name}:{what}:when={rng.randint(1, work.calls[name])}"
        said.append(inject)
        out = folder.with_name(f"{folder.name}.trace")
        ended = child(lambda: work.do(folder), traced(CALLS, ["-e", inject], out))
        landed = ended.code == -signal.SIGKILL or "(INJECTED)" in out.read_text(encoding="utf-8", errors="replace")
        out.unlink()
        return judged(work, folder, said, ended, landed, code)

    return fault


def power_cut(work: Work, folder: Path, rng: random.Random, said: list[str]) -> Verdict:
    if not work.changes:
        return "missed"
    at = rng.randint(1, work.changes)
    journal = Journal(folder, folder.with_name(f"{folder.name}.journal"))

    def do() -> None:
        journal.keep()
        on_change(folder, lambda number, *_: kill() if number == at else None)
        work.do(folder)

    ended = child(do)
    journal.cut(rng)
    shutil.rmtree(journal.place)
    return judged(work, folder, said, ended, ended.code == -signal.SIGKILL, -signal.SIGKILL)


def spoilt(spoil: Callable[[Path, random.Random], None]) -> Fault:
    """One of the files is damaged between two commands."""

    def fault(work: Work, folder: Path, rng: random.Random, said: list[str]) -> Verdict:
        ended = child(lambda: work.part(folder, rng))
        if ended.code:
            said.append(ended.said)
            return "wrong"
        files = [p for p in sorted(folder.rglob("*")) if p.is_file() and ".lock" not in p.name and p.stat().st_size]
        file = rng.choice([p for p in files if "cache" not in p.parts])
        said.append(f"in {file}")
        spoil(file, rng)
        return again(work, folder, said, work.use)

    return fault


def flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def tear(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def race(work: Work, folder: Path, rng: random.Random, said: list[str]) -> Verdict:
    """Two at once: one of them is refused, or comes when the other is done."""
    other = os.fork()
    if other == 0:
        time.sleep(rng.random() * 0.2)
        os._exit(child(lambda: work.do(folder)).code)
    ended = child(lambda: work.do(folder))
    codes = {ended.code, os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])}
    said.append(f"raced: {codes} {ended.said}")
    if not codes <= {0, REFUSED} or 0 not in codes:
        return "wrong"
    return undamaged(work, folder, said)


def jumps(work: Work, folder: Path, rng: random.Random, said: list[str]) -> Verdict:
    """The clock jumps by years while it works, and is elsewhere again when it goes on after a kill."""

    def mad(seed: int) -> None:
        drawn = random.Random(seed)
        time.time = lambda: drawn.uniform(0, 2**32)

    at = rng.randint(1, max(work.changes, 1))

    def do() -> None:
        mad(at)
        on_change(folder, lambda number, *_: kill() if number == at else None)
        work.do(folder)

    ended = child(do)
    for path in folder.rglob("*"):
        os.utime(path, (when := rng.uniform(0, 2**32), when))
    said.append(f"struck: {ended.code} {ended.said}")
    if ended.code not in (0, -signal.SIGKILL):
        return "wrong"

    def go_on(folder: Path) -> None:
        mad(at + 1)
        work.do(folder)

    verdict = again(work, folder, said, go_on)
    return "wrong" if verdict == "refused" else verdict


FAULTS: dict[str, Fault] = {
    "killed at a change of the disk": struck(kill, -signal.SIGKILL),
    "killed at a system call that writes": called("signal=KILL", -signal.SIGKILL),
    "power cut: what was not synced torn, lost or reordered": power_cut,
    "disk full at a change": struck(full, REFUSED),
    "disk full at a system call that writes": called("error=ENOSPC", REFUSED),
    "disk read-only from a change on": struck(read_only, REFUSED, on=True),
    "a bit of a file flipped": spoilt(flip),
    "a file cut short": spoilt(tear),
    "two at once": race,
    "the clock jumps": jumps,
}


def strike(works: dict[str, Work], place: Path, seed: int, number: int) -> tuple[str, str, Verdict, list[str]]:
    """Fault `number` of a seed: its kind, the work it strikes, the verdict, and what was said."""
    turn, kinds, names = number // len(FAULTS), list(FAULTS), list(works)
    kind, name = kinds[number % len(kinds)], names[(number + turn) % len(names)]
    folder, said = place / f"struck-{number}", list[str]()
    works[name].prepare(folder)
    folder.mkdir(exist_ok=True)
    try:
        verdict = FAULTS[kind](works[name], folder, random.Random(f"{seed} {number}"), said)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return kind, name, verdict, said
