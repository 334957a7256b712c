"""What a language model's answers are worth: the verdict of each, scores with intervals, tokens and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ponder.llm.parse import read_answer
from ponder.llm.prompt import LlmJob, Question


@dataclass(frozen=True)
class ReplyJudgement:
    exact: bool
    valid: bool
    parsed: str | None
    """The answer as the domain writes it; None where none could be read."""
    problem: str
    """Why it could not be read, or what is wrong with it."""


def judge(question: Question, text: str) -> ReplyJudgement:
    from ponder.evaluation.records import Judge  # imports torch: not while somebody only looks at a prompt

    domain, inputs = question.domain, question.inputs
    answer = (reading := read_answer(domain, inputs, text)).answer
    if answer is None:
        return ReplyJudgement(False, False, None, reading.problem)
    exact, valid, _ = (column[0] for column in Judge(domain, inputs[None], question.label[None])(answer[None]))
    why = domain.explain(inputs, answer) if domain.checkable and not valid else ""
    return ReplyJudgement(bool(exact), bool(valid), domain.format_answer(inputs, answer), why)


@dataclass(frozen=True)
class Answered:
    job: LlmJob
    row: Mapping[str, Any]
    """Its line of the transcript."""
    verdict: ReplyJudgement


def score_split(jobs: Sequence[LlmJob], answered: Mapping[str, Answered]) -> dict[str, Any]:
    """What `llm.json` says about a split. There is no score while an answer is missing."""
    from ponder.base.stats import share

    got = [answered.get(job.key) for job in jobs]
    first = sorted((a for a in got if a and a.job.attempt == 0), key=lambda a: a.job.question.index)
    n, missing = sum(job.attempt == 0 for job in jobs), sum(a is None for a in got)
    out: dict[str, Any] = {
        "n": n,
        "complete": not missing,
        "not_answered": missing,
        "unparseable": sum(a.verdict.parsed is None for a in first),
        "truncated": sum(a.row["finish"] == "length" for a in first),
    }
    for measure in ("exact", "valid"):
        each = [getattr(a.verdict, measure) for a in first]
        out[measure] = None if missing else share(sum(each) / n, n)
    attempts = 1 + max(job.attempt for job in jobs)
    tasks = {job.question.task for job in jobs}
    if attempts > 1 or jobs[0].question.domain.grouped:
        out["tasks"] = len(tasks)
        out["passes"] = None if missing else passes([a for a in got if a], attempts)
    out["examples"] = {
        "index": [a.job.question.index for a in first],
        **{m: [int(getattr(a.verdict, m)) for a in first] for m in ("exact", "valid")},
    }
    return out


def passes(answered: Sequence[Answered], attempts: int) -> dict[str, Any]:
    """pass@k over tasks, in both readings: a task counts when one of its first k attempts is valid for each of its test
    inputs, or by the share of its test inputs for which one is."""
    from ponder.base.stats import share

    solved: dict[str, dict[int, int]] = {}
    """Task -> example -> the first attempt that is valid."""
    for a in answered:
        tests = solved.setdefault(a.job.question.task, {})
        at = a.job.attempt if a.verdict.valid else attempts
        tests[a.job.question.index] = min(at, tests.get(a.job.question.index, attempts))
    out: dict[str, Any] = {"all_test_inputs": {}, "fractional": {}}
    for k in range(1, attempts + 1):
        parts = [sum(at < k for at in tests.values()) / len(tests) for tests in solved.values()]
        out["all_test_inputs"][f"pass@{k}"] = share(sum(part == 1 for part in parts) / len(parts), len(parts))
        out["fractional"][f"pass@{k}"] = share(sum(parts) / len(parts), len(parts))
    return out


def tokens_and_cost(
    rows: Sequence[Mapping[str, Any]], price_in: float | None, price_out: float | None
) -> dict[str, Any]:
    """What the server counted, for as many answers as it did; prices are for a million tokens."""
    counted = [row for row in rows if row["tokens_in"] is not None and row["tokens_out"] is not None]
    total_in, total_out = (sum(row[k] for row in counted) for k in ("tokens_in", "tokens_out"))
    cost = None
    if price_in is not None and price_out is not None:
        cost = {
            "price_in": price_in,
            "price_out": price_out,
            "total": (total_in * price_in + total_out * price_out) / 1e6,
        }
    return {
        "tokens": {"in": total_in, "out": total_out, "answers_counted": len(counted), "answers": len(rows)},
        "cost": cost,
        "seconds": sum(row["seconds"] for row in rows),
        "retries": sum(row["tries"] - 1 for row in rows),
    }
