"""ARC at a size for tests: a small domain, its sources, random grids and augmentations."""

from functools import cache, partial

import numpy as np
from hypothesis import strategies as st

from ponder.domains.arc.augment import Augmentation
from ponder.domains.arc.domain import Arc, Arc1, Arc1Params
from ponder.domains.arc.grids import Grid
from ponder.domains.arc.sources import ArcEvaluation, ArcTraining
from ponder.domains.contract import Arrays, Ints
from tests.support import golden


@cache
def mini() -> Arc:
    return Arc1(Arc1Params(canvas=12, augmentations=20, tasks=30, val_tasks=6, conceptarc=str(golden.conceptarc())))


@cache
def mini_arrays() -> dict[str, Arrays]:
    return mini().build(seed=1)


def training(seed: int = 5) -> ArcTraining:
    source = mini().source("train", mini_arrays()["train"], seed)
    assert isinstance(source, ArcTraining)
    return source


def evaluation(split: str) -> ArcEvaluation:
    source = mini().source(split, mini_arrays()[split], 0)
    assert isinstance(source, ArcEvaluation)
    return source


def numbers_of(source: ArcEvaluation, index: Ints) -> Ints:
    """[n, 2]: which task of `names`, and which of its test inputs, an example is about."""
    pair = source.pair[index]
    return np.stack([source.task[pair], pair - np.searchsorted(source.task, source.task[pair])], axis=1)


@st.composite
def grids(draw: st.DrawFn, most: int = 30) -> Grid:
    height, width = draw(st.integers(1, most)), draw(st.integers(1, most))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(draw(st.integers(1, 10)), size=(height, width), dtype=np.uint8)


augmentations = st.builds(
    lambda turn, colours: Augmentation(turn, (0, *colours)), st.integers(0, 7), st.permutations(range(1, 10))
)

# np.rot90 and friends, in the order of the published numbers: an oracle for our slices.
PUBLISHED_TURNS = (
    lambda g: g,
    lambda g: np.rot90(g, 1),
    lambda g: np.rot90(g, 2),
    lambda g: np.rot90(g, 3),
    np.fliplr,
    np.flipud,
    np.transpose,
    lambda g: np.fliplr(np.rot90(g)),
)


def undone(augmentation: Augmentation, grid: Grid) -> Grid:
    back = (np.asarray, partial(np.rot90, k=3), partial(np.rot90, k=2), np.rot90, *PUBLISHED_TURNS[4:])
    return np.argsort(augmentation.colours).astype(np.uint8)[back[augmentation.turn](grid)]
