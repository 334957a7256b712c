"""General-purpose models as baselines: the same examples put into words, answers judged by the same checker.

A folder holds `transcript.jsonl`, one line for each answer as it came, and `llm.json`, the scores drawn from it. What
the transcript answers is not asked again, and is read and judged anew each time.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ponder import __version__
from ponder.base.console import Bar
from ponder.base.errors import UserError
from ponder.data import Dataset, open_named
from ponder.llm.client import Endpoint, Reply, Unanswered, ask_all, chat_url, load_httpx
from ponder.llm.prompt import Job, Question, jobs_of, questions
from ponder.llm.score import Answered, judge, score_split, tokens_and_cost

console = Console(highlight=False)

TRANSCRIPT, RESULT = "transcript.jsonl", "llm.json"
VERSION = 1
SHOWN = 3
"""Unparseable answers and errors shown in the terminal; the transcript has all."""


class Transcript:
    """transcript.jsonl: every reply and every failure, appended as it comes. One process at a time."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("a+b")
        except OSError as error:
            raise UserError(f"cannot write to {path.parent} ({error.strerror}): choose another --out") from None
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"another process is writing {path}: wait for it, or choose another --out") from None
        self.file.seek(0)
        text = self.file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            self.file.truncate(whole)  # a crash cut the last line short
        self.rows: dict[str, dict[str, Any]] = {}
        """The answers by key; failures are asked again."""
        for number, line in enumerate(text[:whole].splitlines(), 1):
            try:
                row = json.loads(line)
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
        self.file.close()


# The command ----------------------------------------------------------------------------------------------------------


def main(args: Sequence[str]) -> None:
    """`ponder eval-llm`."""
    known, overrides = _parser().parse_known_args(args)
    if not known.show_prompt:  # what can be refused at once is refused before a dataset is built
        if known.endpoint is None or known.model is None:
            raise UserError("--endpoint URL and --model NAME say whom to ask; --show-prompt asks nobody")
        chat_url(known.endpoint)
        load_httpx()
        endpoint = Endpoint(known.endpoint, _key(known.api_key_env), known.timeout, known.retries)
        parameters = _parameters(known)
    dataset = open_named(known.domain, overrides, known.data_dir)
    roles = {split: dataset.domain.splits[split].role for split in dataset.counts}
    splits = known.split or [split for split, role in roles.items() if role in ("test", "ood")]
    asked = {split: questions(dataset, split, known.limit or None) for split in splits}
    if known.show_prompt:
        print(asked[splits[0]][0].prompt)
        return
    preset = Path(known.domain).name
    name = re.sub(r"[^\w.-]+", "-", f"{known.model}-{preset}")
    evaluate(
        Plan(preset, known.model, parameters, known.attempts, known.price_in, known.price_out),
        dataset,
        asked,
        endpoint,
        known.concurrency,
        known.out or Path("runs") / f"llm-{name}",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ponder eval-llm",
        description="Put a domain's examples to a language model behind an OpenAI-compatible endpoint and judge its "
        "answers as a solver's are. Answers that are there already are not asked for again.",
        epilog="Parameters of the data can be overridden as in `ponder data`: --data.size 6. See docs/llm.md.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--domain", required=True, metavar="PRESET", help="whose examples: a preset or a dataset's folder")
    add("--show-prompt", action="store_true", help="print the prompt of the first example and ask nothing")
    add("--endpoint", metavar="URL", help="as in http://localhost:8000/v1")
    add("--model", metavar="NAME", help="the model's name at that endpoint")
    add("--split", nargs="+", metavar="S", help="default: every test and out-of-distribution split")
    add("--limit", type=_whole, default=100, metavar="N", help="examples of each split (default 100; 0 is all)")
    add("--attempts", type=_positive, default=1, metavar="N", help="answers to each example, for pass@N (default 1)")
    add("--temperature", type=float, metavar="X", help="default: the server's own")
    add(
        "--max-tokens", type=_positive, metavar="N", help="longest answer, thinking included; default: the server's own"
    )
    add("--body", metavar="JSON", help='more fields of the request, as in \'{"reasoning_effort": "low"}\'')
    add("--concurrency", type=_positive, default=8, metavar="N", help="questions under way at once (default 8)")
    add("--timeout", type=_seconds, default=600, metavar="S", help="seconds for one answer (default 600)")
    add("--retries", type=_whole, default=6, metavar="N", help="repetitions after a failure that may pass (default 6)")
    add("--api-key-env", metavar="VAR", help="environment variable that holds the key (default: no key is sent)")
    add("--price-in", type=float, metavar="X", help="price of a million prompt tokens")
    add("--price-out", type=float, metavar="Y", help="price of a million answer tokens")
    add("--out", type=Path, metavar="DIR", help="folder of transcript and scores (default runs/llm-MODEL-PRESET)")
    add("--data-dir", type=Path, default=Path("data"))
    return parser


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")


def _key(variable: str | None) -> str | None:
    """Only sent where asked for: a key for one server must not go to another."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UserError(f"--api-key-env {variable}: the environment has no usable key under that name; export it first")
    return key


def _parameters(known: argparse.Namespace) -> dict[str, Any]:
    """The request's fields beside model and messages; what is not given is left to the server."""
    if known.attempts > 1 and known.temperature == 0:
        raise UserError(f"--attempts {known.attempts} at temperature 0 gives one answer again and again: raise either")
    if (known.price_in is None) != (known.price_out is None):
        raise UserError("give both --price-in and --price-out, or neither")
    given = {"temperature": known.temperature, "max_tokens": known.max_tokens}
    try:
        body = json.loads(known.body or "{}")
    except ValueError:
        body = None
    if not isinstance(body, dict) or {"model", "messages", "stream", "n"} & set(body):
        raise UserError(
            f"--body {known.body!r} should be a JSON object without model, messages, stream and n, as in "
            '\'{"reasoning_effort": "low"}\''
        )
    return {key: value for key, value in given.items() if value is not None} | body


@dataclass(frozen=True)
class Plan:
    preset: str
    model: str
    parameters: dict[str, Any]
    attempts: int = 1
    price_in: float | None = None
    price_out: float | None = None


def evaluate(
    plan: Plan,
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

        def record(job: Job, reply: Reply | Unanswered) -> None:
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

        _write(out, {**about, **_scores(plan, jobs, answered)})  # from now on the folder says whose answers it holds
        if todo := [job for job in everything if job.key not in answered]:
            stopped = asyncio.run(ask_all(todo, endpoint, concurrency, record))
    result = {**about, **_scores(plan, jobs, answered)}
    _write(out, result)
    _print(result, [answered[job.key] for job in everything if job.key in answered], errors, out)
    if missing := len(everything) - len(answered):
        why = f" ({stopped})" if stopped else ""
        raise UserError(
            f"incomplete, so no score: {missing} answers are missing{why}; the same command asks only those"
        )
    return result


def _row(job: Job, data_hash: str) -> dict[str, Any]:
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
        there = json.loads((out / RESULT).read_text())
        changed = [key for key in ("model", "data_hash", "parameters") if there[key] != about[key]]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{out / RESULT} is damaged: delete it (the answers are in {TRANSCRIPT})") from None
    if changed:
        was = ", ".join(f"{key} {there[key]!r}, now {about[key]!r}" for key in changed)
        raise UserError(f"{out} holds the answers of another evaluation ({was}): choose another --out")


def _scores(plan: Plan, jobs: Mapping[str, Sequence[Job]], answered: Mapping[str, Answered]) -> dict[str, Any]:
    from ponder.base.runtime import commit

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


def _protocol(plan: Plan, grouped: bool) -> str:
    each = "test input, with the demonstrations of its task" if grouped else "example"
    return (
        f"zero-shot: one prompt for each {each}; "
        f"{plan.attempts} independent answer{'s' if plan.attempts > 1 else ''} each, exact and valid are of the first; "
        f"unparseable answers count as wrong; parameters: {json.dumps(plan.parameters)}, all others the server's own"
    )


def _write(out: Path, result: Mapping[str, Any]) -> None:
    part = out / f".{RESULT}.part"
    part.write_text(json.dumps(result, indent=1))
    part.rename(out / RESULT)


def _print(result: Mapping[str, Any], answered: Sequence[Answered], errors: Sequence[str], out: Path) -> None:
    def shown(value: Mapping[str, float] | None) -> str:
        if value is None:
            return "incomplete"
        return f"{value['value']:.1%} [dim]({100 * value['low']:.1f}-{100 * value['high']:.1f})[/]"

    console.print(f"[bold]{escape(result['model'])}[/] on {escape(result['preset'])}, data {result['data_hash']}")
    console.print(f"[dim]{escape(result['protocol'])}; 95% intervals[/]")
    table = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("split", "n", "exact", "valid", "unparseable", "truncated"):
        table.add_column(column, justify="left" if column == "split" else "right")
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
        console.print(f"[yellow]unparseable[/] {where}: {escape(a.verdict.problem)}; ends in {escape(ascii(end))}")
    if len(unread) > SHOWN:
        console.print(f"[dim]... and {len(unread) - SHOWN} more in {out / TRANSCRIPT}[/]")
    for error, count in Counter(errors).most_common(SHOWN):
        console.print(f"[red]not answered[/] {count} times: {escape(error)}")
