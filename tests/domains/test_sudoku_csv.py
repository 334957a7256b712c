"""Sudoku from CSV files: of a folder, of the Hub."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ponder.base import hub
from ponder.base.errors import UserError
from ponder.domains import hub as csvs
from ponder.domains.contract import Arrays
from ponder.domains.sudoku.domain import REVISION, Sudoku, SudokuParams
from tests.support.sudoku import made


def write_csv(path: Path, arrays: Arrays, ratings: list[int], end: str = "\n") -> list[str]:
    domain = made(int(arrays["inputs"].shape[1] ** 0.5))
    lines = ["source,question,answer,rating"]
    for i, (puzzle, answer) in enumerate(zip(arrays["inputs"], arrays["labels"], strict=True)):
        question = domain.format(puzzle).replace(".", ".0"[i % 2])
        lines.append(f"puzzles{i},{question},{domain.format(answer)},{ratings[i]}")
    path.write_bytes((end.join(lines) + end).encode())
    return lines


Folder = Callable[..., Sudoku]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder of 60 training and 20 test puzzles rated 0, 1, 2, ..., and the domain that reads it."""
    arrays = made(4).build(seed=0)
    for name in ("train", "test"):
        write_csv(tmp_path / f"{name}.csv", arrays[name], list(range(len(arrays[name]["inputs"]))), "\r\n")

    def reader(**changes: Any) -> Sudoku:
        params: dict[str, Any] = {"size": 4, "source": "csv", "folder": str(tmp_path), "val": 7}
        return Sudoku(SudokuParams(**params | changes))

    return reader


@pytest.mark.parametrize("piece", [3, 1 << 16])
def test_csv_round_trip(folder: Folder, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvs, "ROWS", piece)
    source, read = made(4).build(seed=0), folder().build(seed=0)
    for name, array in source["test"].items():
        expected = np.arange(20) if name == "rating" else array
        assert read["test"][name].dtype == array.dtype
        assert (read["test"][name] == expected).all()
    assert {split: len(arrays["inputs"]) for split, arrays in read.items()} == {"train": 53, "val": 7, "test": 20}
    order = np.concatenate([read["train"]["rating"], read["val"]["rating"]]).astype(int)
    assert sorted(order) == list(range(60))
    for name in ("inputs", "labels"):
        got = np.concatenate([read["train"][name], read["val"][name]])
        assert (got == source["train"][name][order]).all()


def test_subsample_and_val_are_drawn_by_the_seed(folder: Folder) -> None:
    drawn = [folder(subsample=10).build(seed=seed) for seed in (0, 0, 1)]
    rows = [(tuple(d["train"]["rating"].tolist()), tuple(d["val"]["rating"].tolist())) for d in drawn]
    assert rows[0] == rows[1]
    assert rows[0][0] != rows[2][0]
    assert rows[0][1] != rows[2][1]
    assert len(rows[0][0]) == 10
    assert set(rows[0][0]).isdisjoint(rows[0][1])
    full = folder().build(seed=0)
    assert (full["val"]["inputs"] == drawn[0]["val"]["inputs"]).all()
    with pytest.raises(UserError, match="subsample 54 is more than the 53"):
        folder(subsample=54).build(seed=0)
    with pytest.raises(UserError, match=r"60 puzzles .* too few to carve 60"):
        folder(val=60).build(seed=0)


def test_csv_ratings_filter(folder: Folder) -> None:
    built = folder(min_rating=12).build(seed=0)
    assert {split: int(arrays["rating"].min()) for split, arrays in built.items()}["test"] == 12
    assert len(built["test"]["rating"]) == 8
    assert len(built["train"]["rating"]) + len(built["val"]["rating"]) == 48
    with pytest.raises(UserError, match="has no puzzle with rating 20 or more"):
        folder(min_rating=20).build(seed=0)


def test_a_training_puzzle_that_is_tested_on_is_left_out(folder: Folder, tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    leak = test.read_text(encoding="utf-8").splitlines()[3]
    twice = train.read_text(encoding="utf-8").splitlines()[5]
    with train.open("a", encoding="utf-8") as file:
        file.write(f"{leak}\n{twice}\n")
    built = folder().build(seed=0)
    puzzles = [puzzle.tobytes() for arrays in built.values() for puzzle in arrays["inputs"]]
    assert len(set(puzzles)) == len(puzzles) == 80


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t[: t.rindex(",") - 3], r"train.csv, line 61: 3 columns, expected 4 .*cut short"),
        (lambda t: t[: t.rindex(",") - 20], r"train.csv, line 61: 2 columns, expected 4"),
        (lambda t: t[: t.rindex(",") + 1], r"train.csv, line 61: rating is '', expected a whole number"),
        (lambda t: t.replace("puzzles9,", "puzzles9,x", 1), r"line 11: question has 17 characters, expected 16"),
        (lambda t: t.replace("puzzles9,", "puzzles9,,", 1), r"line 11: 5 columns, expected 4"),
        (lambda t: t.replace(",9\r\n", ",nine\r\n"), r"line 11: rating is 'nine', expected a whole number"),
        (lambda t: t.replace(",9\r\n", ",-9\r\n"), r"line 11: rating is '-9'"),
        (lambda t: t.replace("question", "puzzle"), r"line 1: columns are 'source,puzzle,answer,rating', expected"),
        (lambda t: "", r"line 1: columns are ''"),
        (lambda t: t.replace("\r\n", "\r\n\r\n", 5), r"line 2: 0 columns, expected 4"),
        (lambda t: t.replace("puzzles9", '"puzzles9'), r"line 11: unexpected end of data"),
    ],
)
@pytest.mark.parametrize("piece", [5, 1 << 16])
def test_a_damaged_csv_gives_file_line_and_reason(
    folder: Folder,
    tmp_path: Path,
    damage: Callable[[str], str],
    message: str,
    piece: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(csvs, "ROWS", piece)
    path = tmp_path / "train.csv"
    path.write_bytes(damage(path.read_bytes().decode()).encode())
    with pytest.raises(UserError, match=message) as caught:
        folder().build(seed=0)
    assert "\n" not in str(caught.value)


def test_a_garbled_row_gives_line_and_place(folder: Folder, tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    source, question, answer, rating = lines[30].split(",")
    for fields, message in [
        ((source, "q" + question[1:], answer, rating), "line 31: question has 'q' at character 1, allowed: '.12340_'"),
        ((source, question, answer[:2] + "." + answer[3:], rating), "line 31: answer has '.' at character 3"),
        ((source, question, answer[::-1], rating), "line 31: the answer does not solve the question: row"),
    ]:
        path.write_text("\n".join([*lines[:30], ",".join(fields), *lines[31:]]), encoding="utf-8")
        with pytest.raises(UserError) as caught:
            folder().build(seed=0)
        assert message in str(caught.value)


def test_quotes_a_missing_last_newline_and_a_byte_order_mark_are_fine(folder: Folder, tmp_path: Path) -> None:
    expected = folder().build(seed=0)
    path = tmp_path / "train.csv"
    quoted = [
        "{}".format(",".join(f'"{field}"' for field in line.split(",")))
        for line in path.read_text(encoding="utf-8").split()
    ]
    path.write_text("\ufeff" + "\n".join(quoted), encoding="utf-8")
    built = folder().build(seed=0)
    assert all((built["train"][name] == array).all() for name, array in expected["train"].items())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"test.csv does not exist"):
        Sudoku(SudokuParams(source="csv", folder=str(tmp_path))).build(seed=0)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.mark.parametrize("waits", [False, True], ids=["refused", "no-answer"])
def test_offline_the_hub_is_tried_once_and_not_waited_for(
    empty_cache: Path, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    began, over = threading.Event(), threading.Event()

    def connect(address: Any, *args: Any, **kwargs: Any) -> socket.socket:
        tried.append(address)
        began.set()
        if waits:  # as looking up a name does on some networks
            assert over.wait(60), "the answer was waited for"
        raise ConnectionRefusedError

    monkeypatch.setattr(hub, "socket", SimpleNamespace(create_connection=connect))  # not that of the Hub's own client
    monkeypatch.setattr(hub, "PATIENCE", 0.01 if waits else 60)
    with pytest.raises(UserError) as caught:
        Sudoku(SudokuParams()).build(seed=0)
    assert began.wait(60)
    over.set()
    assert tried == [("127.0.0.1", 1)]
    message = str(caught.value)
    assert "\n" not in message
    assert "--data.source csv --data.folder DIR" in message
    assert "--data.source generate" in message


def test_files_in_the_hubs_cache_need_no_network(empty_cache: Path) -> None:
    repo = empty_cache / "datasets--sapientinc--sudoku-extreme"
    snapshot = repo / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    arrays = made(9, train=20).build(seed=0)
    for name in ("train", "test"):
        write_csv(snapshot / f"{name}.csv", arrays[name], [5] * 20)
    built = Sudoku(SudokuParams(val=4)).build(seed=0)
    assert {split: len(part["inputs"]) for split, part in built.items()} == {"train": 16, "val": 4, "test": 20}
    assert (built["test"]["inputs"] == arrays["test"]["inputs"]).all()
