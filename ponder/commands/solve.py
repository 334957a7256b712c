"""`ponder solve`: puzzles from the command line, a file or a pipe to a trained model."""

import argparse
import json
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ponder.base.errors import UserError
from ponder.domains import registry
from ponder.domains.contract import Json, Tokens
from ponder.inference import plain
from ponder.inference.answers import Answer, Thought
from ponder.inference.pictures import confident
from ponder.inference.solver import Shelf, Solver, Unsolvable
from ponder.inference.weights import HUB, zoo_names

CHUNK = 1024
"""Puzzles of a long file that share the machine; the answers of one chunk are out before the next is read."""
FEW = 8
"""Puzzles that are solved one by one sooner than torch is loaded."""
PAUSE = 0.5
"""Seconds that a step stays on the screen."""
BAR = 24


@dataclass(frozen=True)
class Failure:
    """A puzzle that got no answer, and why."""

    puzzle: str | Json
    error: str

    def as_data(self, trace: bool = False) -> dict[str, Any]:
        return {"puzzle": self.puzzle, "error": self.error}


def main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ponder solve",
        description="Solve puzzles. Exit code 0: all answers verified; 1: some puzzle got none, or a refused one.",
    )
    parser.add_argument("model", help="a domain (sudoku), a zoo model (sudoku-4x4), a run folder or hf://OWNER/NAME")
    parser.add_argument("puzzles", nargs="*", metavar="PUZZLE", help="text or JSON; - reads one a line from stdin")
    parser.add_argument("--file", type=Path, metavar="F", help="one puzzle a line, text or JSON")
    parser.add_argument("--random", type=int, nargs="?", const=-1, metavar="SEED", help="make a puzzle to solve")
    parser.add_argument(
        "--fallback",
        choices=("exact", "guided"),
        help="let a classical solver answer where the model fails; guided: by the model's logits",
    )
    parser.add_argument(
        "--search",
        type=int,
        metavar="R",
        help="where the answer is refused: R more tries until one is accepted; where cells are to fill in (8 tries by "
        "default), each supposes a symbol that the model is unsure about, or, for operators, is the answer that it "
        "finds likeliest next; elsewhere its states get noise",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="ACT steps at most (default: 4 times the training's)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, errors too")
    parser.add_argument("--trace", action="store_true", help="with --json: the answer after every step")
    parser.add_argument("--watch", action="store_true", help="show the answer form, step by step")
    parser.add_argument("--gif", type=Path, metavar="FILE", help="write the thinking of one puzzle as a GIF")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write it as an animated SVG")
    asked = parser.parse_intermixed_args(args)
    if asked.json and asked.watch:
        raise UserError("--watch and --json exclude each other: --json --trace gives every step as data")
    if asked.trace and not asked.json:
        raise UserError("--trace belongs to --json: use --watch to see the steps")
    few = asked.file is None and "-" not in asked.puzzles and len(asked.puzzles) <= FEW
    make = plain.solver if few else Solver
    shelf, wanted = open_shelf(asked.model, steps=asked.steps, fallback=asked.fallback, search=asked.search, make=make)
    first = shelf.of(wanted)[0]
    puzzles = gather(asked, shelf, wanted, first)
    one = len(asked.puzzles) < 2 and "-" not in asked.puzzles and asked.file is None
    say = Printer(Console(highlight=False), asked.json, asked.trace, one)
    failed = False
    for chunk in chunks(puzzles, 1 if asked.watch else CHUNK):
        found = [watch(say.console, shelf, wanted, chunk[0])] if asked.watch else solve_all(shelf, wanted, chunk)
        for each in found:
            say(each, drawn=asked.watch)
            failed |= isinstance(each, Failure) or each.verified is False
        write_pictures(asked, found)
    if not say.count:
        raise _no_puzzle(first)
    if failed:
        raise SystemExit(1)


def open_shelf(model: str, **how: Any) -> tuple[Shelf, str]:
    """The zoo, or the one model in a folder or on the Hub; and the name to ask for."""
    if model.startswith(HUB) or (model not in zoo_names() and not registry.known(model) and Path(model).exists()):
        return Shelf([model], **how), Path(model).name
    return Shelf(**how), model


# Puzzles in -----------------------------------------------------------------------------------------------------------


def gather(asked: argparse.Namespace, shelf: Shelf, wanted: str, first: Solver) -> Iterator[str | Json]:
    """The puzzles from wherever they were asked for."""
    words = list(asked.puzzles)
    if len(words) > 1 and not _reads(shelf, wanted, words[0]) and _reads(shelf, wanted, " ".join(words)):
        words = [" ".join(words)]  # rows of one puzzle, given without quotes
    sources: list[Iterable[str]] = [sys.stdin if word == "-" else [word] for word in words]
    if asked.file is not None:
        sources.append(_lines(asked.file))
    if asked.random is not None:
        seed = secrets.randbelow(2**31) if asked.random < 0 else asked.random
        print(f"random puzzle of {first.name}; again with --random {seed}", file=sys.stderr)
        sources.append([first.domain.format(first.domain.sample(seed, 1)[0][0])])
    if not sources:
        raise _no_puzzle(first)
    drawn = [option for option in ("gif", "svg") if getattr(asked, option) is not None]
    if drawn and (len(sources) > 1 or "-" in words or asked.file is not None):
        raise UserError(f"--{drawn[0]} draws one puzzle: give just one on the command line, or --random")
    return (_puzzle(line) for line in chain.from_iterable(sources) if line.strip())


def _no_puzzle(solver: Solver) -> UserError:
    example = solver.domain.format(solver.domain.sample(0, 1)[0][0])
    return UserError(f"no puzzle: give one, - for stdin, --file F or --random; {solver.name} reads {example!r}")


def _reads(shelf: Shelf, wanted: str, puzzle: str) -> bool:
    try:
        shelf.choose(wanted, _puzzle(puzzle))
    except Unsolvable:
        return True
    except UserError:
        return False
    return True


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): give a file with one puzzle a line") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text: give a file with one puzzle a line") from None


def _puzzle(line: str) -> str | Json:
    """JSON where it looks like JSON; a row of digits, which is JSON too, is text here."""
    if line.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return line
    return line.strip("\r\n")


def chunks(puzzles: Iterator[str | Json], size: int) -> Iterator[list[str | Json]]:
    while chunk := list(islice(puzzles, size)):
        yield chunk


# Thinking -------------------------------------------------------------------------------------------------------------


def solve_all(shelf: Shelf, wanted: str, puzzles: Sequence[str | Json]) -> list[Answer | Failure]:
    """Answers in the order of the puzzles; all that one model reads are thought about together."""
    out: dict[int, Answer | Failure] = {}
    groups: dict[str, tuple[Solver, list[tuple[int, Tokens]]]] = {}
    for place, puzzle in enumerate(puzzles):
        try:
            solver, inputs = shelf.choose(wanted, puzzle)
        except UserError as error:
            out[place] = Failure(puzzle, str(error))
        else:
            groups.setdefault(solver.name, (solver, []))[1].append((place, inputs))
    for solver, group in groups.values():
        places, rows = zip(*group, strict=True)
        out |= zip(places, solver.solve_tokens(rows), strict=True)
    return [out[place] for place in range(len(puzzles))]


def watch(console: Console, shelf: Shelf, wanted: str, puzzle: str | Json) -> Answer | Failure:
    """One puzzle before the reader's eyes: redrawn in place on a terminal, one picture after the other elsewhere."""
    try:
        solver, inputs = shelf.choose(wanted, puzzle)
    except UserError as error:
        return Failure(puzzle, str(error))
    before, trace = solver.domain.render(inputs), list[Thought]()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def show(title: str, drawing: Text) -> None:
        view = Group(Text(title, style="bold"), drawing, Text())
        if live is None:
            console.print(view)
        else:
            live.update(view, refresh=True)
            time.sleep(PAUSE)

    with live or nullcontext():
        show("puzzle", before)
        for thought in solver.think(inputs):
            trace.append(thought)
            drawing = solver.domain.render(inputs, thought.answer)
            show(f"step {thought.step}  {_bar(thought.confidence)}", marked(drawing, before))
            before = drawing
    return solver.answer(inputs, trace, found=solver.searched(inputs[None], [trace]).get(0))


def marked(drawing: Text, before: Text) -> Text:
    """A drawing in which what differs from the one before stands out."""
    out = drawing.copy()
    if len(before.plain) == len(drawing.plain):
        for i, (new, old) in enumerate(zip(drawing.plain, before.plain, strict=True)):
            if new != old:
                out.stylize("black on yellow", i, i + 1)
    return out


def _bar(confidence: float) -> str:
    if np.isnan(confidence):
        return ""
    full = round(BAR * confidence)
    return f"{'█' * full}{'·' * (BAR - full)} {confident(confidence)}"


# Answers out ----------------------------------------------------------------------------------------------------------


class Printer:
    """One object or line for each puzzle; for a single puzzle, a picture."""

    def __init__(self, console: Console, as_json: bool, trace: bool, one: bool) -> None:
        self.console, self.as_json, self.trace, self.one = console, as_json, trace, one
        self.count = 0

    def __call__(self, each: Answer | Failure, drawn: bool) -> None:
        self.count += 1
        if self.as_json:
            print(json.dumps(each.as_data(trace=self.trace)), flush=True)
        elif isinstance(each, Failure):
            which = "" if self.one else f"puzzle {self.count}: "
            print(f"ponder: {which}{each.error}", file=sys.stderr, flush=True)
        elif self.one or drawn:
            if not drawn or each.by == "exact":
                self.console.print(each.domain.render(each.inputs, each.tokens))
            self.console.print(_verdict(each), soft_wrap=True)
        else:
            self.console.print(Text.assemble(_verdict(each), f"  {each.text}"), soft_wrap=True)


def _verdict(answer: Answer) -> Text:
    style = {None: "yellow", True: "green", False: "bold red"}[answer.verified]
    return Text(f"{answer.mark} {answer.verdict}", style=style)


def write_pictures(asked: argparse.Namespace, found: Sequence[Answer | Failure]) -> None:
    for path, draw in ((asked.gif, Answer.gif), (asked.svg, Answer.svg)):
        for answer in found:
            if path is None or isinstance(answer, Failure):
                continue
            drawn = draw(answer)
            try:
                path.write_bytes(drawn if isinstance(drawn, bytes) else drawn.encode())
            except OSError as error:
                raise UserError(f"cannot write {path} ({error.strerror}): choose another file") from None
            print(f"wrote {path}", file=sys.stderr)
