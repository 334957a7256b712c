"""Writes docs/puzzles/*.md, a page for each domain: what puzzles.yaml says by hand, and what the code says. `python -m
tools.reference` runs it; the tests hold the examples, which were encoded by hand, against the code."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ponder.base import files
from ponder.config.resolve import PRESETS, read_yaml, resolve
from ponder.inference.weights import ZOO

DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class ByHand:
    preset: str
    puzzle: str
    answer: str
    tokens: str
    """The input, encoded by hand; a line for each row of the page, and 0 for all that follows."""
    labels: str
    how: str
    checker: str
    more: str = ""

    def numbers(self, text: str, length: int) -> list[int]:
        given = [int(word) for word in text.split()]
        return given + [0] * (length - len(given))


PAGES = {name: ByHand(**entry) for name, entry in read_yaml(Path(__file__).with_suffix(".yaml")).items()}
PRESETS_OF = {"arc1": ("arc1", "arc2")}


def page(name: str) -> str:
    by = PAGES[name]
    domain = resolve(by.preset).data.make()
    title = {"arc1": "ARC-AGI-1 and ARC-AGI-2", "joint": "Joint"}.get(name, name.capitalize())
    lines = [f"# {title}", "", f"{domain.title}.", "", "## Rules", "", _rules(name, domain.rules), ""]
    given = len(by.tokens.split())
    rest = f" The rest, up to {domain.seq_len}, is 0." if given < domain.seq_len else ""
    lines += [
        "## One example, encoded by hand",
        "",
        f"`{by.puzzle}`, of `{by.preset}`:",
        "",
        "```text",
        by.tokens,
        "```",
        "",
    ]
    lines += [f"Its answer, `{by.answer}`, as labels:", "", "```text", by.labels, "```", "", by.how + rest]
    lines += ["", "## Splits", "", "| split | role | what it is |", "|---|---|---|"]
    lines += [f"| `{split}` | {about.role} | {about.about} |" for split, about in domain.splits.items()]
    lines += ["", by.more, "", "## Checker", "", by.checker, "", "## Presets", "", "| preset | about |", "|---|---|"]
    for prefix in PRESETS_OF.get(name, (name,)):
        for path in sorted(PRESETS.glob(f"{prefix}-*.yaml")):
            lines.append(f"| `{path.stem}` | {resolve(path.stem).about} |")
    lines += ["", f"Parameters: [reference](../reference.md#{name}).", "", "## Results", "", *_results(name)]
    return "\n".join(lines).rstrip() + "\n"


def _rules(name: str, rules: str) -> str:
    return rules.splitlines()[0] + " Each kind's rules are on its own page." if name == "joint" else rules


def _results(name: str) -> list[str]:
    cards = [files.read_json(path) for path in sorted(ZOO.glob("*/card.json"))]
    mine = [card for card in cards if card["domain"] == name]
    where = "[RESULTS.md](../../RESULTS.md): what the studies found."
    if not mine:
        return ["No model of it is shipped. " + where]
    lines = ["The shipped models, on held-out puzzles at the training's ACT budget (95% Wilson interval):", ""]
    lines += ["| model | split | valid | interval | n |", "|---|---|---|---|---|"]
    for card in mine:
        for split, score in card["accuracy"].items():
            lines.append(f"| `{card['name']}` | {split} | {_share(score['valid'])} | {score['n']:,} |")
    return [*lines, "", "[mini.md](../mini.md): what a plain training reaches. " + where]


def _share(share: dict[str, Any]) -> str:
    return f"{share['value']:.1%} | {share['low']:.1%}–{share['high']:.1%}"


def pages() -> Iterator[tuple[Path, str]]:
    for name in PAGES:
        yield DOCS / "puzzles" / f"{'arc' if name == 'arc1' else name}.md", page(name)
