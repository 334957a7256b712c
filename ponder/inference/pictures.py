"""The thinking as a picture: HTML for a notebook, an animated SVG, an animated GIF.

Every kind shows the same frames (the puzzle, each step that changed the answer, the verdict), drawn by `Domain.svg`.
"""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from ponder.base.errors import UserError, needs_extra
from ponder.domains.drawing import ACCENT, HIGHLIGHT, INK, LINE, MUTED, PAPER, WRONG

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

GOOD = "#1a7f4b"
DARK = {
    PAPER: "#171a21",
    INK: "#e6e8ee",
    LINE: "#3c4250",
    ACCENT: "#82adff",
    HIGHLIGHT: "#6a5210",
    GOOD: "#5fd39a",
    WRONG: "#ff8a80",
}
"""What the colours of a drawing become where the reader prefers dark."""
FIRST, EACH, LAST = 1.2, 0.8, 3.0
"""Seconds that the puzzle, a step and the verdict stay in an animation."""
SANS = "ui-sans-serif, system-ui, sans-serif"
PAD, HEAD, LINE_HEIGHT = 16, 40, 18
MIN_WIDTH = 260


@dataclass(frozen=True)
class Frame:
    """One picture of an answer in the making."""

    title: str
    caption: str
    drawing: str
    """SVG, from the domain."""
    confidence: float
    """NaN where nothing was said."""
    colour: str
    """Of the caption."""
    seconds: float


def confident(confidence: float, before: str = "") -> str:
    """`83% confident`, and nothing for a model without a halting head."""
    return "" if math.isnan(confidence) else f"{before}{confidence:.0%} confident"


# HTML -----------------------------------------------------------------------------------------------------------------


def html(shown: Sequence[Frame], label: str) -> str:
    """A self-contained piece of HTML: the frames side by side, light or dark as the reader's page is."""
    figures = "".join(
        f"<figure><figcaption><b>{escape(f.title)}</b> {escape(f.caption + confident(f.confidence, ', '))}</figcaption>"
        f"{f.drawing}</figure>"
        for f in shown[:-1]
    )
    last = shown[-1]
    return (
        f"<div class='ponder-answer'><style>{_html_style()}</style>"
        f"<p style='--c:{last.colour}' class='verdict'>{escape(label)}</p>"
        f"<div class='steps'>{figures}<figure class='last'><figcaption><b>{escape(last.title)}</b></figcaption>"
        f"{last.drawing}</figure></div></div>"
    )


def _html_style() -> str:
    me = ".ponder-answer"
    # Notebooks say on the body whether they are dark; a plain page leaves it to the system.
    unsaid = "body:not([data-jp-theme-light]):not(.vscode-light)"
    return (
        f"{me}{{color:{INK};background:{PAPER};border:1px solid {LINE};border-radius:8px;padding:12px 16px;"
        f"font:14px {SANS};display:inline-block;max-width:100%;box-sizing:border-box}}"
        f"{me} .verdict{{margin:0 0 10px;color:var(--c)}}"
        f"{me} .steps{{display:flex;flex-wrap:wrap;gap:16px;align-items:flex-end}}"
        f"{me} figure{{margin:0;max-width:100%}}{me} figcaption{{font-size:12px;margin-bottom:4px}}"
        f"{me} svg{{max-width:100%;height:auto}}"
        f"@media (prefers-color-scheme:dark){{{_dark(f'{unsaid} {me}')}}}"
        f"{_dark(f'body[data-jp-theme-light=false] {me}')}{_dark(f'body.vscode-dark {me}')}"
    )


def _dark(me: str) -> str:
    """The rules that turn what `me` selects dark."""
    rules = [f"{me}{{color:{DARK[INK]};background:{DARK[PAPER]};border-color:{DARK[LINE]}}}"]
    rules += [f"{me} [fill='{a}']{{fill:{b}}}{me} [stroke='{a}']{{stroke:{b}}}" for a, b in DARK.items()]
    rules += [f"{me} .verdict[style*='{colour}']{{--c:{DARK[colour]}!important}}" for colour in (GOOD, WRONG)]
    return "".join(rules)


# SVG ------------------------------------------------------------------------------------------------------------------


def svg(shown: Sequence[Frame], label: str) -> str:
    """An animated SVG that stands alone. Who prefers no motion, or cannot play it, sees the last frame."""
    cards = _cards(shown)
    total = sum(seconds for _, seconds in cards)
    rules, layers, start = [], [], 0.0
    for number, (card, seconds) in enumerate(cards):
        end = start + seconds
        a, b = 100 * start / total, 100 * end / total
        hidden = "" if number == 0 else "0%{opacity:0}"
        after = "" if number == len(cards) - 1 else f"{b:.3f}%,100%{{opacity:0}}"
        rules.append(f"@keyframes f{number}{{{hidden}{a:.3f}%{{opacity:1}}{after}}}")
        rules.append(
            f".f{number}{{opacity:{int(number == len(cards) - 1)};animation:f{number} {total:g}s step-end infinite}}"
        )
        layers.append(f'<g class="f{number}">{card}</g>')
        start = end
    still = (
        f"@media (prefers-reduced-motion:reduce){{{''.join(f'.f{n}{{animation:none}}' for n in range(len(cards)))}}}"
    )
    style = f"<style>{''.join(rules)}{still}@media (prefers-color-scheme:dark){{{_dark('svg')}}}</style>"
    width, height = _size(cards[0][0])
    label = escape(label, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{label}"><title>{label}</title>{style}{"".join(layers)}</svg>\n'
    )


def _cards(shown: Sequence[Frame]) -> list[tuple[str, float]]:
    """Each frame as an SVG of the same size, and how long it stays."""
    sizes = [_size(frame.drawing) for frame in shown]
    inner = max(MIN_WIDTH, *(w for w, _ in sizes))
    tall = max(h for _, h in sizes)
    lines = [textwrap.wrap(frame.caption, width=int(inner / 6.4)) for frame in shown]
    width = inner + 2 * PAD
    height = HEAD + tall + 30 + LINE_HEIGHT * max(map(len, lines)) + PAD / 2
    out = []
    for number, (frame, (w, h), words) in enumerate(zip(shown, sizes, lines, strict=True)):
        bar = HEAD + tall + 10
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}"><rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>',
            _text(PAD, 26, frame.title, frame.colour if number == len(shown) - 1 else INK, "start", 15),
            f'<g transform="translate({(width - w) / 2:g} {HEAD + (tall - h) / 2:g})">{frame.drawing}</g>',
        ]
        if not math.isnan(frame.confidence):
            parts += [
                _text(width - PAD, 26, confident(frame.confidence), MUTED, "end", 13),
                f'<rect x="{PAD}" y="{bar:g}" width="{inner:g}" height="5" fill="{LINE}"/>',
                f'<rect x="{PAD}" y="{bar:g}" width="{inner * frame.confidence:.1f}" height="5" fill="{ACCENT}"/>',
            ]
        parts += [
            _text(PAD, bar + 24 + LINE_HEIGHT * i, line, frame.colour, "start", 13) for i, line in enumerate(words)
        ]
        out.append(("".join([*parts, "</svg>"]), frame.seconds))
    return out


def _text(x: float, y: float, words: str, colour: str, anchor: str, size: int) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-family="{SANS}" font-size="{size}" fill="{colour}">'
        f"{escape(words)}</text>"
    )


def _size(drawing: str) -> tuple[float, float]:
    """Width and height of an SVG, from its first tag."""
    found = re.match(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"', drawing)
    assert found is not None
    return float(found[1]), float(found[2])


def sized(drawing: str) -> str:
    """An SVG whose first tag says width and height: those of its viewBox where it did not."""
    drawing = drawing[drawing.index("<svg") :]
    if re.match(r'<svg [^>]*?width="[\d.]+" height="[\d.]+"', drawing):
        return drawing
    tag, _, rest = drawing.partition(">")
    box = re.search(r'viewBox="\s*\S+\s+\S+\s+([\d.]+)\s+([\d.]+)\s*"', tag)
    width, height = box.groups() if box else (MIN_WIDTH, MIN_WIDTH)
    tag = re.sub(r'\s(?:width|height)="[^"]*"', "", tag).removeprefix("<svg")
    return f'<svg width="{width}" height="{height}"{tag}>{rest}'


# GIF ------------------------------------------------------------------------------------------------------------------

SCALE = 2
"""Pixels per SVG unit."""


def gif(shown: Sequence[Frame]) -> bytes:
    """An animated GIF."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise needs_extra("a GIF", "pictures") from None
    cards = _cards(shown)
    images = []
    for card, _ in cards:
        width, height = _size(card)
        image = Image.new("RGB", (round(width * SCALE), round(height * SCALE)), PAPER)
        _paint(ImageDraw.Draw(image), ElementTree.fromstring(card), 0, 0)
        images.append(image.quantize(64, dither=Image.Dither.NONE))
    out = BytesIO()
    lengths = [round(1000 * seconds) for _, seconds in cards]
    images[0].save(out, "GIF", save_all=True, append_images=images[1:], duration=lengths, loop=0, optimize=True)
    return out.getvalue()


def _paint(draw: "ImageDraw", node: ElementTree.Element, x: float, y: float) -> None:
    """Draw what our SVGs are made of (rect, line, text, in g and svg that only shift), seen from (x, y)."""

    def number(name: str) -> float:
        return float(node.get(name, "0"))

    kind = node.tag.rpartition("}")[2]
    if kind == "svg":
        left, top, *_ = map(float, (node.get("viewBox") or "0 0").split())
        x, y = x - left, y - top
    elif kind == "g":
        dx, dy = map(float, re.findall(r"-?[\d.]+", node.get("transform", "translate(0 0)")))
        x, y = x + dx, y + dy
    elif kind == "rect":
        at = x + number("x"), y + number("y")
        corner = at[0] + number("width"), at[1] + number("height")
        box = [round(v * SCALE) for v in (*at, *corner)]
        if box[2] > box[0] and box[3] > box[1]:  # a confidence of next to nothing is no pixel wide
            draw.rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=node.get("fill"))
    elif kind == "line":
        ends = [round(v * SCALE) for v in (x + number("x1"), y + number("y1"), x + number("x2"), y + number("y2"))]
        draw.line(ends, fill=node.get("stroke"), width=round(number("stroke-width") * SCALE))
    elif kind == "text":
        font = _font("mono" in node.get("font-family", ""), round(number("font-size") * SCALE))
        anchor = {"middle": "ms", "end": "rs"}.get(node.get("text-anchor", ""), "ls")
        at = (x + number("x")) * SCALE, (y + number("y")) * SCALE
        draw.text(at, node.text or "", fill=node.get("fill"), font=font, anchor=anchor)
    else:
        raise UserError(f"this domain's picture holds <{kind}>, which a GIF cannot show: write it with --svg")
    for child in node:
        _paint(draw, child, x, y)


@cache
def _font(mono: bool, size: int) -> Any:
    """matplotlib brings fonts that have every symbol the domains draw."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans{'Mono' if mono else ''}.ttf", size)
