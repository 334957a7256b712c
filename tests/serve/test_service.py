"""The service by itself, where the order of events matters."""

import asyncio
import gc
import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ponder.base.errors import UserError
from ponder.inference.answers import Answer, Thought
from ponder.inference.solver import Shelf
from ponder.serve.service import Busy, Failed, Late, Service, Unknown, _Job
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
            await first.aclose()  # type: ignore[attr-defined]
            while service.seated["endless"]:
                await asyncio.sleep(0.01)
            assert service.desks["endless"].under_way == 0

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
