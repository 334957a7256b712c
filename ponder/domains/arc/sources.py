"""How stored ARC pairs are read as examples: augmented on the fly, translated while training, listed for voting."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ponder.domains.arc.augment import SWAPS_SIDES, TURNS, augmentation_of, token_tables
from ponder.domains.arc.grids import FIRST, crop_sizes, place, side_of
from ponder.domains.contract import Batch, Ints, Tokens

CHOICE, STILL, ROW, COLUMN = range(4)
"""What random numbers are for: the augmentation, the pair that is not translated, where the others go."""


def random_below(limits: Ints, *key: Ints | int) -> Ints:
    """A number in 0..limit-1 for each limit, as a function of the key alone (splitmix64 over its parts)."""
    state = np.zeros(len(limits), dtype=np.uint64)
    for part in key:
        state += np.asarray(part).astype(np.uint64)
        state += np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
        state ^= state >> np.uint64(31)
    return (state % limits.astype(np.uint64)).astype(np.int64)


class ArcSource:
    """What the two sources share.

    Arrays of a split: `inputs`, `labels` (the pairs as they are, at the top left), `task` (which of `names` each pair
    belongs to), `augmentations` (turn and permutation, all tasks in a row), `bounds` (where each task's begin and end),
    `ids` (the task id of each task's first augmentation).
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.names = [str(name) for name in arrays["names"]]
        self.task: Ints = np.asarray(arrays["task"]).astype(np.int64)
        self.bounds: Ints = np.asarray(arrays["bounds"]).astype(np.int64)
        self.ids: Ints = np.asarray(arrays["ids"]).astype(np.int64)
        self.augmentations: npt.NDArray[np.uint8] = np.asarray(arrays["augmentations"])
        self.counts = np.diff(self.bounds)
        self.seq_len: int = arrays["inputs"].shape[1]
        self.side = side_of(self.seq_len)
        self.inputs, input_sizes = self._grids(arrays["inputs"])
        self.labels, label_sizes = self._grids(arrays["labels"])
        self.sizes: Ints = np.maximum(input_sizes, label_sizes)
        """[pairs, 2] what both grids of a pair fit in."""

    def _grids(self, tokens: npt.NDArray[Any]) -> tuple[list[Tokens], Ints]:
        canvases = np.asarray(tokens).reshape(-1, self.side, self.side)
        sizes = crop_sizes(canvases)
        grids = [canvas[:h, :w] for canvas, (h, w) in zip(canvases, sizes.tolist(), strict=True)]
        return grids, sizes

    def _examples(self, pair: Ints, number: Ints, top: Ints, left: Ints) -> Batch:
        """Pairs under augmentation `number` of their task, placed at (top, left)."""
        task = self.task[pair]
        rows = self.augmentations[self.bounds[task] + number]
        inputs, labels = np.zeros((2, len(pair), self.side, self.side), dtype=np.uint8)
        for n, (p, turn, table, r, c) in enumerate(
            zip(pair.tolist(), rows[:, 0].tolist(), token_tables(rows), top.tolist(), left.tolist(), strict=True)
        ):
            place(inputs[n], TURNS[turn](table[self.inputs[p]]), r, c)
            place(labels[n], TURNS[turn](table[self.labels[p]]), r, c)
        return Batch(
            inputs=inputs.reshape(len(pair), self.seq_len),
            labels=labels.reshape(len(pair), self.seq_len),
            task_ids=self.ids[task] + number,
        )


class ArcTraining(ArcSource):
    """Each pair once an epoch; the pairs of a task share an augmentation, all but one of them are translated."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], seed: int) -> None:
        super().__init__(arrays)
        self.seed = seed
        pairs = np.bincount(self.task, minlength=len(self.names))
        self.pairs: Ints = pairs.astype(np.int64)
        self.within = np.arange(len(self.task)) - (np.cumsum(pairs) - pairs)[self.task]
        """Which of its task's pairs each one is; pairs of a task follow each other."""

    def __len__(self) -> int:
        return len(self.task)

    def fetch(self, index: Ints, epoch: Ints) -> Batch:
        task = self.task[index]
        number = random_below(self.counts[task], self.seed, CHOICE, epoch, task)
        still = self.within[index] == random_below(self.pairs[task], self.seed, STILL, epoch, task)
        turn = self.augmentations[self.bounds[task] + number, 0]
        sizes = np.where(SWAPS_SIDES[turn][:, None], self.sizes[index][:, ::-1], self.sizes[index])
        room = self.side - sizes + 1
        top = np.where(still, 0, random_below(room[:, 0], self.seed, ROW, epoch, index))
        left = np.where(still, 0, random_below(room[:, 1], self.seed, COLUMN, epoch, index))
        return self._examples(index, number, top, left)


class ArcEvaluation(ArcSource):
    """Each test pair under each augmentation of its task, untranslated: first all tests as they are, then all under
    their first augmentation, and so on, so that the first examples of a split are a fair part of it."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        super().__init__(arrays)
        counts = self.counts[self.task]
        pair = np.repeat(np.arange(len(counts)), counts)
        number = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
        order = np.argsort(number, kind="stable")
        self.pair, self.number = pair[order], number[order]

    def __len__(self) -> int:
        return len(self.pair)

    def fetch(self, index: Ints, epoch: Ints) -> Batch:
        corner = np.zeros(len(index), dtype=np.int64)
        return self._examples(self.pair[index], self.number[index], corner, corner)

    def test_names(self, index: Ints) -> list[str]:
        """The augmented names of examples, as `score_votes` takes them."""
        task = self.task[self.pair[index]]
        rows = self.augmentations[self.bounds[task] + self.number[index]]
        return [augmentation_of(row).name(self.names[t]) for row, t in zip(rows, task.tolist(), strict=True)]

    def tasks(self) -> dict[str, dict[str, list[dict[str, list[list[int]]]]]]:
        """The test pairs of this split in ARC's own form, as `score_votes` takes them."""
        tasks: dict[str, dict[str, list[dict[str, list[list[int]]]]]] = {name: {"test": []} for name in self.names}
        for task, given, answer in zip(self.task.tolist(), self.inputs, self.labels, strict=True):
            pair = {"input": (given - np.uint8(FIRST)).tolist(), "output": (answer - np.uint8(FIRST)).tolist()}
            tasks[self.names[task]]["test"].append(pair)
        return tasks
