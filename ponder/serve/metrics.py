"""What the server counts, in Prometheus' text format."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    escaped = (v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for v in values)
    inner = ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True))
    return f"{{{inner}}}" if inner else ""


class Counter:
    """A number per combination of labels, which only grows."""

    def __init__(self, name: str, about: str, *labels: str) -> None:
        self.name, self.about, self.labels = name, about, labels
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, by: float = 1) -> None:
        self.values[values] = self.values.get(values, 0) + by

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} counter"
        for values, number in sorted(self.values.copy().items()):
            yield f"{self.name}{_labels(self.labels, values)} {number:.12g}"


class Histogram:
    """How often a duration was at most so many seconds."""

    def __init__(self, name: str, about: str, label: str) -> None:
        self.name, self.about, self.label = name, about, label
        self.counts: dict[str, list[int]] = {}
        self.sums: dict[str, float] = {}

    def add(self, value: str, seconds: float) -> None:
        counts = self.counts.setdefault(value, [0] * (len(SECONDS) + 1))
        counts[bisect_left(SECONDS, seconds)] += 1
        self.sums[value] = self.sums.get(value, 0.0) + seconds

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} histogram"
        for value, counts in sorted(self.counts.items()):
            total = 0
            for edge, count in zip((*(f"{s:g}" for s in SECONDS), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_labels((self.label, 'le'), (value, edge))} {total}"
            yield f"{self.name}_sum{_labels((self.label,), (value,))} {self.sums[value]:.9g}"
            yield f"{self.name}_count{_labels((self.label,), (value,))} {total}"


class Metrics:
    def __init__(self) -> None:
        self.requests = Counter("ponder_requests_total", "Requests answered.", "path", "status")
        self.seconds = Histogram("ponder_request_seconds", "Time from a request's arrival to its last byte.", "path")
        self.puzzles = Counter(
            "ponder_puzzles_total", "Puzzles answered; verified says what the checker said.", "model", "verified", "by"
        )
        self.late = Counter("ponder_late_total", "Puzzles given up at the time limit.", "model")
        self.steps = Counter("ponder_steps_total", "ACT steps of single puzzles.", "model")
        self.turns = Counter("ponder_turns_total", "ACT steps of whole batches.", "model")
        self.working = Counter("ponder_working_seconds_total", "Time spent on ACT steps.", "model")

    def text(self, gauges: Mapping[str, tuple[str, Mapping[str, int]]]) -> str:
        """`gauges`: name -> (what it is, model -> value), as they are now."""
        lines = [line for each in vars(self).values() for line in each.lines()]
        for name, (about, values) in gauges.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
            lines += [f"{name}{_labels(('model',), (model,))} {value}" for model, value in values.items()]
        return "\n".join(lines) + "\n"
