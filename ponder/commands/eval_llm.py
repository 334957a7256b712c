"""`ponder eval-llm`: a domain's examples put to a language model."""

import argparse
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ponder.base import files
from ponder.base.errors import UserError
from ponder.data import open_named
from ponder.llm.client import Endpoint, chat_url, load_httpx
from ponder.llm.prompt import questions
from ponder.llm.run import LlmPlan, evaluate
from ponder.studies.spec import SCALES


def main(args: Sequence[str]) -> None:
    known, overrides = _parser().parse_known_args(args)
    if (known.domain is None) == (known.study is None):
        raise UserError("whose examples? give either --domain PRESET or --study NAME")
    if known.study is not None and known.show_prompt:
        raise UserError("--show-prompt shows the prompt of a --domain: name one instead of --study")
    if not known.show_prompt:  # what can be refused at once is refused before a dataset is built
        if known.endpoint is None or known.model is None:
            raise UserError("--endpoint URL and --model NAME say whom to ask; --show-prompt asks nobody")
        chat_url(known.endpoint)
        load_httpx()
        endpoint = Endpoint(known.endpoint, _key(known.api_key_env), known.timeout, known.retries)
        parameters = _parameters(known)
    if known.study is not None:
        _fill_row(known, overrides, endpoint, parameters)
        return
    dataset = open_named(known.domain, overrides, known.data_dir)
    roles = {split: dataset.domain.splits[split].role for split in dataset.counts}
    splits = known.split or [split for split, role in roles.items() if role in ("test", "ood")]
    asked = {split: questions(dataset, split, known.limit or None) for split in splits}
    if known.show_prompt:
        print(asked[splits[0]][0].prompt)
        return
    preset = Path(known.domain).name
    evaluate(
        LlmPlan(preset, known.model, parameters, known.attempts or 1, known.price_in, known.price_out),
        dataset,
        asked,
        endpoint,
        known.concurrency,
        known.out or Path("runs") / f"llm-{_name(known.model, preset)}",
    )


def _fill_row(known: argparse.Namespace, overrides: Sequence[str], endpoint: Endpoint, parameters: Any) -> None:
    """A language model's row of a study's table: every task, on the data of its cells, kept beside them."""
    from ponder.base.console import Bar
    from ponder.data import Dataset, build, default_workers
    from ponder.reports.tables import llm_tasks
    from ponder.studies.spec import load

    if overrides or known.split or known.out:
        raise UserError("--study says what is asked and where it is kept: leave out --split, --out and --data settings")
    for wanted in llm_tasks(load(known.study), known.scale):
        with Bar() as bar:
            dataset = Dataset.open(build(wanted.config.data, known.data_dir, default_workers(), bar))
        # At temperature 0 a second answer is the first once more: pass@2 then stays empty.
        attempts = known.attempts or (1 if known.temperature == 0 else wanted.attempts)
        evaluate(
            LlmPlan(wanted.config.preset, known.model, parameters, attempts, known.price_in, known.price_out),
            dataset,
            {split: questions(dataset, split, known.limit or None) for split in wanted.splits},
            endpoint,
            known.concurrency,
            known.results / _name(known.model, wanted.task, known.scale),
        )
    print(f"`ponder study report {known.study} --scale {known.scale}` shows its row")


def _name(*parts: str) -> str:
    return re.sub(r"[^\w.-]+", "-", "-".join(parts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ponder eval-llm",
        description="Put a domain's examples to a language model behind an OpenAI-compatible endpoint and judge its "
        "answers as a solver's are. Answers that are there already are not asked for again.",
        epilog="Parameters of the data can be overridden as in `ponder data`: --data.size 6. See docs/llm.md.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--domain", metavar="PRESET", help="whose examples: a preset or a dataset's folder")
    add("--study", metavar="NAME", help="instead: every task of a study's table, kept in --results (main-results)")
    add("--scale", choices=SCALES, default="mini", help="of the study (default mini)")
    add("--results", type=Path, default=Path("results/llm"), metavar="DIR", help="of the study (default results/llm)")
    add("--show-prompt", action="store_true", help="print the prompt of the first example and ask nothing")
    add("--endpoint", metavar="URL", help="as in http://localhost:8000/v1")
    add("--model", metavar="NAME", help="the model's name at that endpoint")
    add("--split", nargs="+", metavar="S", help="default: every test and out-of-distribution split")
    add("--limit", type=_whole, default=100, metavar="N", help="examples of each split (default 100; 0 is all)")
    add("--attempts", type=_positive, metavar="N", help="answers to each example, for pass@N (default 1)")
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
    add("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where datasets are")
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
    if (known.attempts or 1) > 1 and known.temperature == 0:
        raise UserError(f"--attempts {known.attempts} at temperature 0 gives one answer again and again: raise either")
    if (known.price_in is None) != (known.price_out is None):
        raise UserError("give both --price-in and --price-out, or neither")
    given = {"temperature": known.temperature, "max_tokens": known.max_tokens}
    try:
        body = files.parse_json(known.body or "{}")
    except ValueError:
        body = None
    if not isinstance(body, dict) or {"model", "messages", "stream", "n"} & set(body):
        raise UserError(
            f"--body {known.body!r} should be a JSON object without model, messages, stream and n, as in "
            '\'{"reasoning_effort": "low"}\''
        )
    return {key: value for key, value in given.items() if value is not None} | body
