"""README's tables: what the shipped models reach, and how ponder stands beside the published repositories, from what is
stored. `python -m tools.reference` writes them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ponder.base import files
from ponder.base.markers import markdown
from ponder.inference.weights import ZOO

ROOT = Path(__file__).parents[1]
REPOSITORIES = {
    "hrm": ("HRM", "https://github.com/sapientinc/HRM", "42410da"),
    "trm": ("TRM", "https://github.com/SamsungSAILMontreal/TinyRecursiveModels", "e7b6871"),
    "urm": ("URM", "https://github.com/UbiquantAI/URM", "41de2c3"),
}
"""Read at these commits."""
READ = [
    [
        "models",
        "HRM",
        "TRM, variants, HRM, Transformer",
        "URM, TRM, HRM",
        "these three, dense, its own: one class",
    ],
    ["puzzles", *["Sudoku, Maze, ARC 1 and 2"] * 3, "these, Life, Arithmetic, all jointly, yours"],
    ["trained without a GPU", "no", "no", "no", "yes"],
    ["resumed after a stop", "no", "from the weights", "weights, optimiser, random state", "bit for bit"],
    ["tests", "none", "none", "none", "yes"],
    ["trained at paper scale", "yes, scores published", "yes, scores published", "yes, scores published", "**no**"],
]
"""What reading them shows; speed is measured (`python -m benchmarks.peers`)."""


def reached() -> str:
    rows = []
    for path in sorted(ZOO.glob("*/card.json")):
        card = files.read_json(path)
        splits: dict[str, Any] = card["accuracy"]
        score, *_ = splits.values()
        beyond = [split for split in splits.values() if split["role"] == "ood"]
        worst = min(beyond, key=lambda split: float(split["valid"]["value"]), default=None)
        rows.append(
            [
                f"`{card['name']}`",
                f"{card['parameters']:,}",
                f"{_percent(score['valid'])} ({_percent(score['valid'], 'low')} to {_percent(score['valid'], 'high')})",
                _percent(score["solved"]),
                _percent(card["search"]["solved"]) if card.get("search") else "–",
                f"{score['n']:,}",
                f"{_percent(worst['valid'])}: {worst['about']}" if worst else "–",
            ]
        )
    head = [
        "model",
        "parameters",
        "valid, held out (95% interval)",
        "solved",
        "with search",
        "n",
        "worst out of distribution",
    ]
    return markdown(head, rows)


def _percent(share: dict[str, float], which: str = "value") -> str:
    return f"{share[which]:.1%}"


def beside() -> str:
    timed = {(row["peer"], row["what"]): row for row in files.read_json(ROOT / "results" / "bench_peers.json")["rows"]}
    speed = [
        [f"one ACT step of {what}, CPU: ponder is"]
        + [f"{timed[peer, what]['ratio']:.2f} times as fast" for peer in REPOSITORIES]
        + [""]
        for what in ("training", "inference")
    ]
    heads = [f"[{name}]({url}) at {commit}" for name, url, commit in REPOSITORIES.values()]
    return markdown(["", *heads, "ponder"], [*READ, *speed])


def page() -> tuple[Path, str]:
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, table in blocks():
        begin, end = f"<!-- {name}: python -m tools.reference -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        assert found and closed, f"{path} lacks {begin} or {end}"
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return path, text


def blocks() -> Iterator[tuple[str, str]]:
    yield "zoo", reached()
    yield "repositories", beside()
