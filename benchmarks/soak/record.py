"""results/soak.json: what each run of the campaign came to; docs/reliability.md, written from it."""

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ponder.base import files

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "results" / "soak.json", ROOT / "docs" / "reliability.md"
FAULTS = ("survived", "refused", "wrong")
FUZZ = ("tried", "refused", "tracebacks", "hangs")
LOAD = ("clients", "seconds", "requests", "answered", "left", "lost", "wrong", "answered twice")
MEMORY = ("megabytes after warm-up", "megabytes at half time", "megabytes at the end", "megabytes a minute")
FOUND = ROOT / "benchmarks" / "soak" / "found.md"
"""What the campaign found, and the test that keeps it mended."""

Part = Literal["faults", "fuzz", "load"]


@dataclass
class Run:
    seed: int
    commit: str | None
    """When it began."""
    seconds: int = 0
    faults: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    """Kind -> work -> verdict -> how often."""
    fuzz: dict[str, Counter[str]] = field(default_factory=dict)
    load: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""

    @staticmethod
    def of(kept: dict[str, Any]) -> "Run":
        faults = {k: {w: Counter(v) for w, v in by.items()} for k, by in kept["faults"].items()}
        return Run(**{**kept, "faults": faults, "fuzz": {k: Counter(v) for k, v in kept["fuzz"].items()}})

    def add_fault(self, kind: str, work: str, verdict: str) -> None:
        self.faults.setdefault(kind, {}).setdefault(work, Counter())[verdict] += 1

    def add_fuzz(self, kind: str, counts: Counter[str]) -> None:
        self.fuzz.setdefault(kind, Counter()).update(counts)

    def tried(self, part: Part) -> int:
        if part == "faults":
            return sum(count[k] for by in self.faults.values() for count in by.values() for k in FAULTS)
        return sum(count["tried"] for count in self.fuzz.values()) if part == "fuzz" else len(self.load)

    def wrong(self, part: Part) -> int:
        if part == "faults":
            return sum(count["wrong"] for by in self.faults.values() for count in by.values())
        if part == "fuzz":
            return sum(count["tracebacks"] + count["hangs"] for count in self.fuzz.values())
        return int(sum(each["lost"] + each["wrong"] + each["answered twice"] for each in self.load))

    @property
    def failures(self) -> int:
        return self.wrong("faults") + self.wrong("fuzz") + self.wrong("load")


@dataclass
class Record:
    runs: list[Run] = field(default_factory=list)

    @staticmethod
    def read(path: Path = RECORD) -> "Record":
        return Record([Run.of(each) for each in files.read_json(path)["runs"]] if path.exists() else [])

    def write(self, path: Path = RECORD) -> None:
        files.write_json(path, {"runs": [vars(run) for run in self.runs]})

    def split(self, part: Part) -> tuple[list[Run], list[Run]]:
        """The runs that did this part: those up to the last that found a failure, and those after it. The newest is
        always among the latter, so that what it found shows."""
        did = [run for run in self.runs if run.tried(part)]
        failed = [i + 1 for i, run in enumerate(did[:-1]) if run.wrong(part)]
        start = max(failed, default=0)
        return did[:start], did[start:]


# The page -------------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---", *["---:"] * (len(head) - 1)], *rows])


def faults_table(runs: list[Run]) -> str:
    whole: dict[str, dict[str, Counter[str]]] = {}
    for run in runs:
        for kind, by in run.faults.items():
            for work, count in by.items():
                whole.setdefault(kind, {}).setdefault(work, Counter()).update(count)
    works = list(dict.fromkeys(work for by in whole.values() for work in by))
    rows, total, struck = [], Counter[str](), Counter[str]()
    for kind, by in whole.items():
        verdicts = Counter({k: sum(count[k] for count in by.values()) for k in FAULTS})
        tried = Counter({work: sum(by[work][k] for k in FAULTS) for work in by})
        rows.append([kind, *(f"{tried[work]:,}" for work in works), *(f"{verdicts[k]:,}" for k in FAULTS)])
        total.update(verdicts)
        struck.update(tried)
    sums = [*(f"{struck[work]:,}" for work in works), *(f"{total[k]:,}" for k in FAULTS)]
    return table(["fault", *works, *FAULTS], [*rows, [f"all {total.total():,}", *sums]])


def fuzz_table(runs: list[Run]) -> str:
    whole: dict[str, Counter[str]] = {}
    for run in runs:
        for kind, count in run.fuzz.items():
            whole.setdefault(kind, Counter()).update(count)
    total = sum(whole.values(), Counter[str]())
    lines = {**whole, "all": total}
    return table(["input", *FUZZ], [[kind, *(f"{count[k]:,}" for k in FUZZ)] for kind, count in lines.items()])


def load_table(runs: list[Run]) -> str:
    def shown(value: float | None, digits: str) -> str:
        return "" if value is None else format(value, digits)

    rows = []
    for run in runs:
        for each in run.load:
            memory = [shown(each.get(name), ",.2f" if "minute" in name else ",.1f") for name in MEMORY]
            rows.append([run.commit or "", *(f"{each[k]:,}" for k in LOAD), *memory])
    return table(["commit", *LOAD, *MEMORY], rows)


NOUNS: dict[Part, tuple[str, str]] = {
    "faults": ("faults", "ended wrong"),
    "fuzz": ("inputs", "were tracebacks or hangs"),
    "load": ("loads", "answers were lost, wrong or twice"),
}


def counted(record: Record, part: Part) -> str:
    """Which runs the table is made of, and what those before came to."""
    before, now = record.split(part)
    of, wrong = NOUNS[part]
    each = ", ".join(f"{run.seed} ({run.commit})" for run in now) or "none yet"
    lines = [f"Counted: the runs after the last that found a failure, and the newest; by seed and commit {each}."]
    if now and now[-1].wrong(part):
        lines.append(f"The newest found {now[-1].wrong(part)} failures, which are not mended.")
    if before:
        tried, found = sum(run.tried(part) for run in before), sum(run.wrong(part) for run in before)
        seeds = ", ".join(str(run.seed) for run in before)
        lines.append(f"Of {tried:,} {of} before (by seed {seeds}) {found:,} {wrong}: what was found stands at the end.")
    return textwrap.fill(" ".join(lines), 120)


def page(record: Record) -> str:
    parts: dict[str, str] = {"found": FOUND.read_text(encoding="utf-8").strip()}
    tables = {"faults": faults_table, "fuzz": fuzz_table, "load": load_table}
    for part in NOUNS:
        parts[part] = f"{counted(record, part)}\n\n{tables[part](record.split(part)[1])}"
    loads = [each["megabytes"] for run in record.runs for each in run.load if "megabytes" in each]
    sizes = ", ".join(f"{size:.1f}" for size in loads[-1]) if loads else "not measured"
    parts["sizes"] = textwrap.fill(f"Resident megabytes in each twentieth of the last run: {sizes}.", 120)
    hours = sum(run.seconds for run in record.runs) / 3600
    return PAGE_TEXT.format(runs=len(record.runs), hours=hours, **parts)


PAGE_TEXT = """# Reliability

Written by `make soak` (`python -m benchmarks.soak`) from its record, `results/soak.json`, to which every run adds
itself, with its commit: {runs} runs, {hours:.1f} hours altogether. A run takes the next seed; a fault and an input are
functions of the seed and their number, so that each can be had again. `make soak SOAK=8` goes on for eight hours
(TMPDIR in memory spares the disk), `python -m benchmarks.soak --only faults` (or fuzz, or load) does one part,
`make test` tries every kind once. The record keeps every failure that was ever found; what they were stands at the end.

## Faults

A small piece of work (a dataset that is built, a training, a study of two cells, a model added to the zoo in the place
of another, one pulled from a Hub, a server that answers) is struck, then the same command is given again. Survived:
what was finished before is there, and the end is that of the undisturbed work, bit for bit. Refused: a damaged file is
named in one line; only a flipped bit and a cut file may end so. Wrong: anything else. The columns in between say how
often each work was struck. Blows that never fell are not counted: a server changes no disk. Those at system calls need
strace.

{faults}

## Fuzzed inputs

Inputs of ours, broken at random, to everything that reads. Each is taken or refused in one line; a traceback, more than
a line, a status of 500 or a minute without an answer is a failure. With schemathesis installed, requests are also made
from the server's own description of itself.

{fuzz}

## Serving

Clients of one server that ask puzzle after puzzle; a third of the requests are left in the middle of sending, waiting
or reading. Lost: no answer to one that stayed. Wrong: another's answer, or an error. Resident memory after warm-up and
at the end is the median of the second and of the last quarter of the time, that at half time of the tenth around it;
megabytes a minute are the slope of the second half.

{load}

{sizes}

The growth up to seed 12 was no leak: what is alive stayed. Looked at from inside, after 30 seconds, in four minutes and
75,282 requests, 117 to 129 MB of the heap were in use (medians of the halves 122.4 and 122.9) and 924,000 to 943,000
blocks of Python's (935,000 and 934,000), while the heap grew from 139.4 to 149.0 MB and resident memory from 360.5 to
369.7: freed memory was kept for ever, so that the next step need not fetch it again, and had holes. One heap for all
threads (seed 12) did not end it and cost CPU time (2% with sudoku-4x4, 7% with sudoku-9x9), so it was taken back. Since
seed 13 the server gives freed memory back every 20 seconds of work. Seed 13 ran on a busy machine and came to a quarter
of seed 12's requests, whose memory rose after some 40,000: a run of as many is still to be made. Nor were larger models
measured over ten minutes, which keep more (sudoku-9x9, 2,800 puzzles before that: from 487 to 922 MB, still rising),
nor what giving back costs.

{found}
"""


def show(record: Record) -> None:
    PAGE.write_text(page(record), encoding="utf-8")
    failures = record.runs[-1].failures if record.runs else 0
    print(json.dumps({"failures": failures, "page": str(PAGE.relative_to(ROOT))}))
