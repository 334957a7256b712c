"""The service by itself, where the order of events matters."""

import asyncio
import gc
import itertools
import platform
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from ponder.base.errors import UserError
from ponder.base.runtime import reuse_memory
from ponder.inference.answers import Answer, Thought
from ponder.inference.solver import TRIES, Shelf, Solver
from ponder.serve.service import Busy, Failed, Late, Service, Unknown, _Job
from tests.conftest import tiny
from tests.support.folders import random_folder
from tests.support.serving import GOOD


async def collect(items: AsyncIterator[Thought | Answer]) -> list[Thought | Answer]:
    return [item async for item in items]


def test_an_arrival_takes_a_free_slot_at_the_next_step(endless: Path) -> None:
    """And its own budget holds; and what it gets is what it would get alone."""

    async def run() -> None:
        async with Service(Shelf([str(endless)]), slots=2) as service:
            first = service.stream("endless", GOOD)
            async for item in first:
                if isinstance(item, Thought) and item.step == 5:
                    break
            other = await collect(service.stream("endless", "4" + GOOD[1:], steps=3))
            assert [i.step if isinstance(i, Thought) else None for i in other] == [1, 2, 3, None]
            assert isinstance(other[-1], Answer) and other[-1].steps == 3
            seen = await anext(aiter(first))
            assert isinstance(seen, Thought) and seen.step == 6  # the first goes on as if nothing had been
            await first.aclose()
            while service.seated["endless"]:
                await asyncio.sleep(0.01)
            assert service.desks["endless"].under_way == 0

    asyncio.run(run())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are not told to keep memory")
def test_freed_memory_is_given_back_while_it_works(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the server has the size of all the places in which its tensors ever lay."""
    monkeypatch.setattr("ponder.serve.service.TIDY", 0.05)
    size = psutil.Process().memory_info
    reuse_memory()
    large = [torch.ones(2**16) for _ in range(800)]
    kept = large[::2]
    full = size().rss
    del large
    assert size().rss > full - 20e6, "reuse_memory keeps what is freed"

    async def run() -> None:
        async with Service(Shelf([str(endless)]), slots=2) as service:
            working = asyncio.create_task(service.solve("endless", GOOD))
            for _ in range(1000):
                if size().rss < full - 60e6:
                    break
                await asyncio.sleep(0.01)
            working.cancel()
        assert size().rss < full - 60e6 and len(kept) == 400  # of 105 MB that were freed between those kept

    asyncio.run(run())


def test_models_take_turns(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with Service(Shelf(["sudoku-4x4", str(endless)]), slots=4) as service:
            crowd = [asyncio.create_task(service.solve("endless", GOOD)) for _ in range(12)]
            while service.seated["endless"] < 4:
                await asyncio.sleep(0.01)
            turns: list[str] = []  # whose turn it was, and when a puzzle came
            count, notify = service.metrics.turns.add, service.wake.notify

            def counted(name: str) -> None:
                turns.append(name)
                count(name)

            def came() -> None:
                turns.append("a puzzle came")
                notify()

            monkeypatch.setattr(service.metrics.turns, "add", counted)
            monkeypatch.setattr(service.wake, "notify", came)
            answer = await service.solve("sudoku-4x4", GOOD)
            assert answer.verified and service.waiting["endless"] == 8
            its = [at for at, name in enumerate(turns) if name == "sudoku-4x4"]
            assert len(its) == answer.steps
            # At most the turn that was under way when it came, and one of the other between two of its own.
            assert its[0] - turns.index("a puzzle came") <= 2
            assert all(later - sooner == 2 for sooner, later in itertools.pairwise(its))
            for task in crowd:
                task.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)
            assert service.waiting["endless"] == 0

    asyncio.run(run())


def test_a_slow_exact_check_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(["sudoku-4x4"])
    domain = shelf["sudoku-4x4"].domain
    gate, exact = threading.Event(), domain.solutions
    slow = "." * 16

    def solutions(inputs: Any, limit: int = 2) -> Any:
        if domain.format(inputs) == slow:
            gate.wait(30)
        return exact(inputs, limit)

    monkeypatch.setattr(domain, "solutions", solutions)

    async def run() -> None:
        async with Service(shelf) as service:
            late = asyncio.create_task(service.solve("sudoku", slow, fallback="exact"))
            for _ in range(5):
                assert (await service.solve("sudoku", GOOD)).verified
            assert not late.done()
            gate.set()
            answer = await late
            assert answer.verified and "several solutions" in answer.note

    asyncio.run(run())


def test_a_service_that_is_opened_again_delivers() -> None:
    """Whatever the event loop before it was told and did not come to."""
    service = Service(Shelf(["sudoku-4x4"]))
    service.called = True

    async def run() -> None:
        async with service:
            assert (await asyncio.wait_for(service.solve("sudoku", GOOD), 30)).verified

    for _ in range(2):
        asyncio.run(run())
        service.called = True


def test_a_refused_puzzle_comes_back_with_a_cell_filled_in_on_trial() -> None:
    """In the batch with all others; and what it gets is what a Solver finds."""
    solver = Solver("sudoku-6x6", steps=1, search=8)
    asked = [solver.domain.format(row) for row in solver.domain.sample(5, 40)[0]]
    alone = solver.solve_many(asked)
    assert sum(answer.tries > 0 for answer in alone) > 4

    async def run() -> None:
        async with Service(Shelf(["sudoku-6x6"]), slots=7) as service:
            found = await asyncio.gather(*(service.solve("sudoku", each, steps=1, search=8) for each in asked))
            for answer in found:
                assert answer.steps == 1 and answer.verified == solver.domain.check(
                    answer.inputs[None], answer.tokens[None]
                )
            same = [(a.text, a.tries, a.note) == (b.text, b.tries, b.note) for a, b in zip(found, alone, strict=True)]
            assert sum(same) >= 38  # a batch of another size rounds otherwise
            searched = next(puzzle for puzzle, answer in zip(asked, found, strict=True) if answer.tries)
            *thoughts, last = await collect(service.stream("sudoku", searched, steps=1, search=8))
            assert [i.step for i in thoughts if isinstance(i, Thought)] == [1]
            assert isinstance(last, Answer) and last.verified and last.tries and len(last.trace) == 1
            for tries in (None, 0):
                plain = await service.solve("sudoku", searched, steps=1, search=tries)
                assert not plain.verified and plain.tries == 0 and plain.steps == 1, "only where it is asked for"
            for tries in (-1, 65):
                with pytest.raises(UserError, match=f"search {tries} is out of range"):
                    await service.solve("sudoku", searched, search=tries)
            assert service.desks["sudoku-6x6"].under_way == 0 and service.seated["sudoku-6x6"] == 0
        async with Service(Shelf(["maze-7x7"])) as service:
            maze = service.shelf["maze-7x7"].domain
            with pytest.raises(UserError, match="no cells to fill in"):
                await service.solve("maze", maze.format(maze.sample(0, 1)[0][0]), search=1)

    asyncio.run(run())


def test_a_supposition_gets_no_more_steps_than_in_training(tmp_path: Path) -> None:
    folder = random_folder(tmp_path / "wrong", tiny(model={"max_steps": 2}), seed=3)

    async def run() -> None:
        async with Service(Shelf([str(folder)])) as service:
            answer = await service.solve("wrong", GOOD, steps=5, search=3)
            assert not answer.verified and answer.steps == 5 and answer.tries == 0
            assert service.desks["wrong"].engine.slot_steps == 5 + 3 * 2

    asyncio.run(run())


def test_a_service_searches_by_itself_where_its_shelf_does() -> None:
    shelf = Shelf(["sudoku-6x6"], search=None)
    solver = shelf["sudoku-6x6"]
    assert solver.search == TRIES["suppose"] and solver.patience == solver.config.max_steps < solver.steps
    puzzles = [solver.domain.format(row) for row in solver.domain.sample(7, 300)[0]]
    refused = [a for a in Solver("sudoku-6x6", steps=solver.patience).solve_many(puzzles) if not a.verified]

    async def run() -> None:
        async with Service(shelf) as service:
            answers = [await service.solve("sudoku", solver.domain.format(each.inputs)) for each in refused]
            assert answers and all(answer.steps == solver.patience for answer in answers if answer.tries)
            assert sum(answer.tries > 0 for answer in answers) >= len(answers) / 2

    asyncio.run(run())


def test_a_service_looks_through_likely_answers() -> None:
    shelf = Shelf(["arithmetic-3-5"], search=None)
    solver = shelf["arithmetic-3-5"]
    puzzles = [solver.domain.format(row) for row in solver.domain.sample(7, 80)[0]]
    refused = [a for a in Solver("arithmetic-3-5", steps=solver.patience).solve_many(puzzles) if not a.verified]

    async def run() -> None:
        async with Service(shelf) as service:
            asked = [solver.domain.format(each.inputs) for each in refused]
            answers = [await service.solve("arithmetic", puzzle) for puzzle in asked]
            found = [answer for answer in answers if answer.tries]
            assert len(found) >= len(answers) / 4 and len({answer.tries for answer in found}) > 1
            for answer in answers:
                assert bool(answer.verified) == bool(solver.domain.check(answer.inputs[None], answer.tokens[None])[0])
                assert answer.verified or not answer.tries
            assert all(f"finds likely (try {answer.tries}, 0 more ACT steps)" in answer.note for answer in found)
            assert all(not np.array_equal(answer.tokens, answer.trace[-1].answer) for answer in found)
            none = [await service.solve("arithmetic", puzzle, search=0) for puzzle in asked]
            assert not any(answer.tries for answer in none)

    asyncio.run(run())


def test_refusals_and_failures(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        service = Service(Shelf([str(endless)]), slots=1, queue=0, timeout=0.3)
        with pytest.raises(Busy, match="shutting down"):
            await service.solve("endless", GOOD)
        async with service:
            with pytest.raises(Unknown, match="endless"):
                await service.solve("endles", GOOD)
            with pytest.raises(UserError, match="fallback 'exat' is unknown"):
                await service.solve("endless", GOOD, fallback="exat")
            items = service.stream("endless", GOOD)
            with pytest.raises(Busy, match="1 puzzles are under way"):
                service.stream("endless", GOOD)
            with pytest.raises(Late):
                await collect(items)
            service.timeout = 600  # what follows may take its time
            with monkeypatch.context() as patch:
                patch.setattr(service.desks["endless"].engine, "advance", lambda: 1 / 0)
                with pytest.raises(Failed, match="endless failed: division by zero"):
                    await service.solve("endless", GOOD)
            assert (await service.solve("endless", GOOD, steps=2)).steps == 2  # it goes on with a new engine

    asyncio.run(run())


def test_no_job_outlives_its_answer(endless: Path) -> None:
    async def run() -> None:
        async with Service(Shelf([str(endless)]), slots=2) as service:
            await asyncio.gather(*(service.solve("endless", GOOD, steps=2) for _ in range(20)))
            assert await anext(aiter(service.stream("endless", GOOD)))  # nobody listens any more
            while service.seated["endless"]:
                await asyncio.sleep(0.01)
            gc.collect()
            desk = service.desks["endless"]
            assert not [each for each in gc.get_objects() if type(each) is _Job and each.desk is desk]

    asyncio.run(run())
