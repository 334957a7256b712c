"""General-purpose models as baselines: the same examples put into words, answers judged by the same checker.

A folder holds `transcript.jsonl`, one line for each answer as it came, and `llm.json`, the scores drawn from it. What
the transcript answers is not asked again, and is read and judged anew each time.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ponder import __version__
from ponder.base import files
from ponder.base.console import Bar, plain_table, printable
from ponder.base.errors import UserError
from ponder.data import Dataset
from ponder.llm.client import Endpoint, Reply, Unanswered, ask_all
from ponder.llm.prompt import LlmJob, Question, jobs_of
from ponder.llm.score import Answered, judge, score_split, tokens_and_cost

console = Console(highlight=False)

TRANSCRIPT, RESULT = "transcript.jsonl", "llm.json"
VERSION = 1
SHOWN = 3
"""Unparseable answers and errors shown in the terminal; the transcript has all."""


class Transcript:
    """transcript.jsonl: every reply and every failure, appended as it comes. One process at a time."""

    def __init__(self, path: Path) -> None:
        self.held = ExitStack()
        try:
            ours = self.held.enter_context(files.locked(path.with_name(f".{path.name}.lock")))
            self.file = self.held.enter_context(path.open("a+b"))
        except OSError as error:
            raise UserError(f"cannot write to {path.parent} ({error.strerror}): choose another --out") from None
        if not ours:
            self.close()
            raise UserError(f"another process is writing {path}: wait for it, or choose another --out")
        self.file.seek(0)
        text = self.file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            self.file.truncate(whole)  # a crash cut the last line short
        self.rows: dict[str, dict[str, Any]] = {}
        """The answers by key; failures are asked again."""
        for number, line in enumerate(text[:whole].splitlines(), 1):
            try:
                row = files.parse_json(line)
                if "error" not in row:
                    self.rows[row["key"]] = row
            except (ValueError, TypeError, KeyError):
                raise UserError(
                    f"{path} is damaged in line {number}: delete that line, or choose another --out"
                ) from None

    def write(self, row: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(row).encode() + b"\n")
            self.file.flush()
        except OSError as error:
            raise UserError(f"cannot write {self.file.name} ({error.strerror}): free some space") from None

    def close(self) -> None:
        self.held.close()


@dataclass(frozen=True)
class LlmPlan:
    preset: str
    model: str
    parameters: dict[str, Any]
    attempts: int = 1
    price_in: float | None = None
    price_out: float | None = None


def evaluate(
    plan: LlmPlan,
    dataset: Dataset,
    asked: Mapping[str, Sequence[Question]],
    endpoint: Endpoint,
    concurrency: int,
    out: Path,
) -> dict[str, Any]:
    """Ask what is not answered yet, then write, print and return what `llm.json` says; an error where answers are
    missing in the end."""
    jobs = {
        split: jobs_of(some, dataset.hash, plan.model, plan.parameters, plan.attempts) for split, some in asked.items()
    }
    everything = [job for some in jobs.values() for job in some]
    about = {
        "kind": "llm",
        "version": VERSION,
        "model": plan.model,
        "preset": plan.preset,
        "domain": dataset.config.domain,
        "data_hash": dataset.hash,
        "parameters": plan.parameters,
    }
    _same_folder(out, about)
    answered: dict[str, Answered] = {}
    errors: list[str] = []
    stopped = ""
    with closing(Transcript(out / TRANSCRIPT)) as transcript, Bar() as bar:
        for job in everything:
            if (row := transcript.rows.get(job.key)) is not None:
                answered[job.key] = Answered(job, row, judge(job.question, row["answer"]))
        if answered:
            console.print(f"[dim]{len(answered)} of {len(everything)} answers are in {out / TRANSCRIPT}[/]")

        def record(job: LlmJob, reply: Reply | Unanswered) -> None:
            row = _row(job, dataset.hash)
            if isinstance(reply, Unanswered):
                errors.append(str(reply))
                transcript.write({**row, "error": str(reply)})
            else:
                verdict, fields = judge(job.question, reply.text), asdict(reply)
                row |= {"request": dict(job.request), "answer": fields.pop("text"), **fields, **asdict(verdict)}
                transcript.write(row)
                answered[job.key] = Answered(job, row, verdict)
            bar(f"asking {plan.model}", len(answered), len(everything))

        # From now on the folder says whose answers it holds
        files.write_json(out / RESULT, {**about, **_scores(plan, jobs, answered)})
        if todo := [job for job in everything if job.key not in answered]:
            stopped = asyncio.run(ask_all(todo, endpoint, concurrency, record))
    result = {**about, **_scores(plan, jobs, answered)}
    files.write_json(out / RESULT, result)
    _print(result, [answered[job.key] for job in everything if job.key in answered], errors, out)
    if missing := len(everything) - len(answered):
        why = f" ({stopped})" if stopped else ""
        raise UserError(
            f"incomplete, so no score: {missing} answers are missing{why}; the same command asks only those"
        )
    return result


def _row(job: LlmJob, data_hash: str) -> dict[str, Any]:
    """How every line of the transcript begins."""
    q = job.question
    return {
        "key": job.key,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "data_hash": data_hash,
        "split": q.split,
        "index": q.index,
        "attempt": job.attempt,
        "prompt_sha256": hashlib.sha256(q.prompt.encode()).hexdigest(),
    }


def _same_folder(out: Path, about: Mapping[str, Any]) -> None:
    try:
        there = files.read_json(out / RESULT)
        changed = [key for key in ("model", "data_hash", "parameters") if there[key] != about[key]]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{out / RESULT} is damaged: delete it (the answers are in {TRANSCRIPT})") from None
    if changed:
        was = ", ".join(f"{key} {there[key]!r}, now {about[key]!r}" for key in changed)
        raise UserError(f"{out} holds the answers of another evaluation ({was}): choose another --out")


def _scores(plan: LlmPlan, jobs: Mapping[str, Sequence[LlmJob]], answered: Mapping[str, Answered]) -> dict[str, Any]:
    from ponder.base.source import commit

    splits = {split: score_split(some, answered) for split, some in jobs.items()}
    rows = [a.row for a in answered.values()]
    return {
        "protocol": _protocol(plan, any(some[0].question.domain.grouped for some in jobs.values())),
        "attempts": plan.attempts,
        "complete": all(score["complete"] for score in splits.values()),
        "served_as": sorted({row["served"] for row in rows if row["served"]}),
        "splits": splits,
        **tokens_and_cost(rows, plan.price_in, plan.price_out),
        "ponder": __version__,
        "commit": commit(),
    }


def _protocol(plan: LlmPlan, grouped: bool) -> str:
    each = "test input, with the demonstrations of its task" if grouped else "example"
    return (
        f"zero-shot: one prompt for each {each}; "
        f"{plan.attempts} independent answer{'s' if plan.attempts > 1 else ''} each, exact and valid are of the first; "
        f"unparseable answers count as wrong; parameters: {json.dumps(plan.parameters)}, all others the server's own"
    )


def _print(result: Mapping[str, Any], answered: Sequence[Answered], errors: Sequence[str], out: Path) -> None:
    def shown(value: Mapping[str, float] | None) -> str:
        if value is None:
            return "incomplete"
        return f"{value['value']:.1%} [dim]({100 * value['low']:.1f}-{100 * value['high']:.1f})[/]"

    console.print(f"[bold]{escape(result['model'])}[/] on {escape(result['preset'])}, data {result['data_hash']}")
    console.print(f"[dim]{escape(result['protocol'])}; 95% intervals[/]")
    numbers = ("n", "exact", "valid", "unparseable", "truncated")
    table = plain_table("split", *numbers, right=numbers)
    for split, score in result["splits"].items():
        counts = (str(score[key]) for key in ("unparseable", "truncated"))
        table.add_row(split, str(score["n"]), shown(score["exact"]), shown(score["valid"]), *counts)
    console.print(table)
    for split, score in result["splits"].items():
        if score["not_answered"]:
            console.print(f"{split}: {score['not_answered']} answers are missing")
        for reading, ks in (score.get("passes") or {}).items():
            values = ", ".join(f"{k} {shown(value)}" for k, value in ks.items())
            console.print(f"{split}, {score['tasks']} tasks, {reading.replace('_', ' ')}: {values}")
    tokens, cost = result["tokens"], result["cost"]
    uncounted = tokens["answers"] - tokens["answers_counted"]
    console.print(
        f"{tokens['in']:,} tokens in, {tokens['out']:,} out"
        + (f" (the server counted none for {uncounted} answers)" if uncounted else "")
        + (f", cost {cost['total']:.4f}" if cost else "")
        + f"; {result['retries']} retries; {out / RESULT}"
    )
    unread = [a for a in answered if a.verdict.parsed is None]
    for a in unread[:SHOWN]:
        end = " ".join(str(a.row["answer"]).split())[-100:]
        where = f"{a.job.question.split} {a.job.question.index}"
        problem = printable(a.verdict.problem)
        console.print(f"[yellow]unparseable[/] {where}: {escape(problem)}; ends in {escape(ascii(end))}")
    if len(unread) > SHOWN:
        console.print(f"[dim]... and {len(unread) - SHOWN} more in {out / TRANSCRIPT}[/]")
    for error, count in Counter(errors).most_common(SHOWN):
        console.print(f"[red]not answered[/] {count} times: {escape(error)}")
