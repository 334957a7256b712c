"""Trained models, ponder's and the user's own, each with a card that says what it can and cannot do."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ponder.base import files
from ponder.base.console import plain_table
from ponder.base.errors import UserError
from ponder.config.schema import Frozen, Vary, parse
from ponder.evaluation.schema import Share
from ponder.inference.weights import zoo_folders
from ponder.training import runs

CARD = "card.json"
AGAIN = "write it again with `ponder zoo add`"
TRIES: Mapping[Vary, str] = {"noise": "noisy restarts", "suppose": "suppositions", "likely": "likeliest answers"}


class Score(Frozen):
    model_config = ConfigDict(extra="ignore")

    n: int
    exact: Share
    valid: Share
    solved: Share | None


class DataAbout(Frozen):
    model_config = ConfigDict(extra="ignore")

    params: dict[str, Any]
    counts: dict[str, int]
    hash: str


class Recipe(Frozen):
    model_config = ConfigDict(extra="ignore")

    model: str
    preset: str
    seed: int
    updates: int
    chosen_update: int
    seconds: float
    cores: int


class Step(Frozen):
    step: int
    valid: float


class Hard(Frozen):
    """A test puzzle that takes the model long."""

    puzzle: str
    steps: int


class Searched(Frozen):
    """Verified search: what is solved with several tries, and the ACT steps that a puzzle took in all."""

    restarts: int
    steps: int
    n: int
    solved: Share
    compute: float
    vary: Vary = "noise"


class Fallback(Frozen):
    """The classical methods on the same puzzles: milliseconds of each, and guesses of the search that logits guide."""

    n: int
    exact_ms: float
    alone_ms: float | None = None
    guided_ms: float | None = None
    alone_guesses: float | None = None
    guided_guesses: float | None = None


class Card(Frozen):
    """What a card holds, at least."""

    model_config = ConfigDict(extra="ignore")

    name: str
    domain: str
    parameters: int
    bytes: int
    max_steps: int
    data: DataAbout
    recipe: Recipe
    command: str
    limits: str
    protocol: str
    accuracy: dict[str, Score] = Field(min_length=1)
    by_step_split: str
    by_step: list[Step]
    hard: tuple[Hard, ...] = ()
    search: Searched | None = None
    fallback: Fallback | None = None


# Reading and writing --------------------------------------------------------------------------------------------------


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a model; one without scores where a folder came without a card."""
    try:
        card = files.read_object(folder / CARD, AGAIN)
    except FileNotFoundError:
        config = runs.read_config(folder)
        return {"name": folder.name, "domain": config.data.domain, "max_steps": config.model.max_steps, "accuracy": {}}
    if not files.intact(card):
        raise UserError(f"{folder / CARD} was changed after it was written: {AGAIN}, --limits included")
    try:
        parse(Card, card)
    except UserError as error:
        raise UserError(f"{folder / CARD} is damaged ({error}): {AGAIN}") from None
    return card


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    files.write(folder / CARD, json.dumps(files.sealed(card), indent=1, ensure_ascii=False) + "\n")


def list_cards() -> list[dict[str, Any]]:
    """The cards of all models in the zoo. One that cannot be read is left out with a line that says why."""
    cards = []
    for name, folder in sorted(zoo_folders().items()):
        try:
            cards.append(read_card(folder))
        except (UserError, OSError, ValueError) as error:
            print(f"ponder: the zoo model {name} is left out: {error}", file=sys.stderr)
    return cards


def table(cards: Sequence[Mapping[str, Any]]) -> Table:
    out = plain_table("model", "domain", "parameters", "valid", "n", right=("parameters", "n"), no_wrap=True)
    for card in cards:
        scores = card["accuracy"]
        out.add_row(
            f"[bold]{escape(card['name'])}[/]",
            escape(card["domain"]),
            f"{card['parameters']:,}" if "parameters" in card else "?",
            "\n".join(f"{escape(split)} {share_words(score['valid'])}" for split, score in scores.items()) or "no card",
            "\n".join(f"{score['n']:,}" for score in scores.values()),
        )
    return out


def share_words(share: Mapping[str, float]) -> str:
    return f"{share['value']:.1%} ({share['low']:.1%}–{share['high']:.1%})"


def print_card(console: Console, card: Mapping[str, Any]) -> None:
    console.print(f"[bold]{escape(card['name'])}[/]  {escape(str(card.get('title', card['domain'])))}")
    if not card["accuracy"]:
        console.print("no card: write one with `ponder zoo add RUN NAME`")
        return
    recipe, about = card["recipe"], card["data"]
    rows = {
        "parameters": f"{card['parameters']:,} ({card['bytes'] / 1e6:.1f} MB), {card['max_steps']} ACT steps",
        "data": ", ".join(f"{k} {v}" for k, v in about["params"].items() if v is not None)
        + f"; {', '.join(f'{split} {count:,}' for split, count in about['counts'].items())}; hash {about['hash']}",
        "recipe": f"{recipe['model']} on {recipe['preset']}, seed {recipe['seed']}: {recipe['updates']} updates in "
        f"{recipe['seconds']:.0f} s on {recipe['cores']} cores; weights after update {recipe['chosen_update']}",
        "command": card["command"],
        "limits": card["limits"],
        "protocol": card["protocol"],
    }
    for name, words in rows.items():
        console.print(f"  [dim]{name:<11}[/]{escape(words)}", soft_wrap=True)
    scores = Table(box=None, padding=(0, 2, 0, 2))
    for column in ("split", "exact (95% interval)", "valid", "solved by the Solver", "n"):
        scores.add_column(column, justify="right" if column == "n" else "left")
    for split, score in card["accuracy"].items():
        shares = [share_words(score[k]) if score[k] else "–" for k in ("exact", "valid", "solved")]
        scores.add_row(escape(split), *shares, f"{score['n']:,}")
    console.print(scores)
    if found := card.get("search"):
        console.print(
            f"  [dim]verified search[/]  {share_words(found['solved'])} with {found['restarts']} "
            f"{TRIES[found.get('vary', 'noise')]} {'after' if found.get('vary') == 'likely' else 'of'} "
            f"{found['steps']} steps, {found['compute']:.0f} ACT steps on average, n {found['n']:,}",
            soft_wrap=True,
        )
    if taken := card.get("fallback"):
        words = f"exact {taken['exact_ms']:.1f} ms"
        if taken.get("guided_ms") is not None:
            words += (
                f"; plain search {taken['alone_ms']:.1f} ms and {taken['alone_guesses']:.2f} guesses, guided by the "
                f"model {taken['guided_ms']:.1f} ms and {taken['guided_guesses']:.2f}"
            )
        console.print(f"  [dim]fallback[/]  {words} (medians, means of guesses; n {taken['n']})", soft_wrap=True)
    steps = [(each["step"], f"{each['valid']:.1%}") for each in card["by_step"]]
    settled = next(i for i in range(len(steps)) if all(share == steps[i][1] for _, share in steps[i:]))
    by_step = "  ".join(f"{step}: {share}" for step, share in steps[: settled + 1])
    by_step += " and on" if settled + 1 < len(steps) else ""
    console.print(f"  [dim]valid after each step on {escape(card['by_step_split'])}[/]  {by_step}", soft_wrap=True)
