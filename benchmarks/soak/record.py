"""results/soak.json: what all runs of the campaign came to; docs/reliability.md, written from it."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ponder.base import files

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "results" / "soak.json", ROOT / "docs" / "reliability.md"
FAULTS = ("survived", "refused", "wrong")
FUZZ = ("tried", "refused", "tracebacks", "hangs")
FOUND = ROOT / "benchmarks" / "soak" / "found.md"
"""What the campaign found, and the test that keeps it mended."""


@dataclass
class Record:
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Seed, commit, seconds, failures."""
    faults: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    """Kind -> work -> verdict -> how often."""
    fuzz: dict[str, Counter[str]] = field(default_factory=dict)
    load: list[dict[str, float]] = field(default_factory=list)

    @staticmethod
    def read(path: Path = RECORD) -> "Record":
        if not path.exists():
            return Record()
        kept = files.read_json(path)
        faults = {k: {w: Counter(v) for w, v in by.items()} for k, by in kept["faults"].items()}
        return Record(kept["runs"], faults, {k: Counter(v) for k, v in kept["fuzz"].items()}, kept["load"])

    def write(self, path: Path = RECORD) -> None:
        files.write_json(path, vars(self))

    def add_fault(self, kind: str, work: str, verdict: str) -> None:
        self.faults.setdefault(kind, {}).setdefault(work, Counter())[verdict] += 1

    def add_fuzz(self, kind: str, counts: Counter[str]) -> None:
        self.fuzz.setdefault(kind, Counter()).update(counts)

    def add(self, other: "Record") -> None:
        for kind, by in other.faults.items():
            for work, count in by.items():
                self.faults.setdefault(kind, {}).setdefault(work, Counter()).update(count)
        for kind, count in other.fuzz.items():
            self.add_fuzz(kind, count)
        self.load += other.load

    @property
    def wrong(self) -> int:
        faults = sum(count["wrong"] for by in self.faults.values() for count in by.values())
        fuzz = sum(count["tracebacks"] + count["hangs"] for count in self.fuzz.values())
        return faults + fuzz + int(sum(run["lost"] + run["wrong"] + run["answered twice"] for run in self.load))


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---", *["---:"] * (len(head) - 1)], *rows])


def page(record: Record) -> str:
    works = list(dict.fromkeys(work for by in record.faults.values() for work in by))
    faults, total = [], Counter[str]()
    for kind, by in record.faults.items():
        count = sum((Counter({k: by[w][k] for k in FAULTS}) for w in by), Counter[str]())
        total += count
        tried = [str(sum(by.get(work, Counter[str]())[k] for k in FAULTS)) for work in works]
        faults.append([kind, *tried, *(str(count[k]) for k in FAULTS)])
    sums = [str(sum(record.faults[k].get(w, Counter())[v] for k in record.faults for v in FAULTS)) for w in works]
    faults.append([f"all {total.total():,}", *sums, *(str(total[k]) for k in FAULTS)])
    fuzz = [[kind, *(f"{count[k]:,}" for k in FUZZ)] for kind, count in record.fuzz.items()]
    whole = sum(record.fuzz.values(), Counter[str]())
    fuzz.append(["all", *(f"{whole[k]:,}" for k in FUZZ)])
    names = ["clients", "seconds", "requests", "answered", "left", "lost", "wrong", "answered twice"]
    memory = ["megabytes after warm-up", "megabytes at the end"]
    load = [[*(f"{run[k]:,.0f}" for k in names), *(f"{run[k]:,.1f}" for k in memory)] for run in record.load]
    hours = sum(run["seconds"] for run in record.runs) / 3600
    last = record.runs[-1] if record.runs else {}
    return PAGE_TEXT.format(
        runs=len(record.runs),
        failures=last.get("failures", 0),
        all_failures=record.wrong,
        hours=hours,
        faults=table(["fault", *works, *FAULTS], faults),
        fuzz=table(["input", *FUZZ], fuzz),
        load=table([*names, *memory], load),
        found=FOUND.read_text(encoding="utf-8").strip(),
    )


PAGE_TEXT = """# Reliability

Written by `make soak` (`python -m benchmarks.soak`) from its record, `results/soak.json`, to which every run adds:
{runs} runs, {hours:.1f} hours altogether. A run takes the next seed; a fault and an input are functions of the seed and
their number, so that each can be had again. `make soak SOAK=8` goes on for eight hours (TMPDIR in memory spares the
disk), `python -m benchmarks.soak --only faults` (or fuzz, or load) does one part, `make test` tries every kind once.
The last run found {failures} failures, all of them together {all_failures}: what they were stands at the end.

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
or reading. Lost: no answer to one that stayed. Wrong: another's answer, or an error.

{load}

{found}
"""


def show(record: Record) -> None:
    PAGE.write_text(page(record), encoding="utf-8")
    print(json.dumps({"wrong": record.wrong, "page": str(PAGE.relative_to(ROOT))}))
