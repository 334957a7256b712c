"""Service: the puzzles of many clients share each model through continuous batching.

One thread does the models' work: at each of its turns every model that has puzzles advances by one ACT step. A puzzle
that came meanwhile takes a free slot; one that is finished, no longer wanted or at the end of its own budget leaves.
One whose answer is refused may come back with a cell filled in on trial, which takes the slot that it left.
Exact checks and fallbacks, which may take longer than a step, run in a small pool beside it. The event loop only
passes puzzles in and answers out.
"""

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from types import TracebackType

from ponder.base.errors import UserError, at_least, unknown
from ponder.base.runtime import give_back
from ponder.domains.contract import Json, Tokens
from ponder.inference.answers import Answer, SecondThought, Thought
from ponder.inference.engine import Seen
from ponder.inference.solver import Shelf, Solver
from ponder.inference.tries import first_right, likeliest, suppositions
from ponder.serve.metrics import Metrics

log = logging.getLogger(__name__)

SLOTS = 64
QUEUE = 512
TIMEOUT = 60.0
SEARCH = 64
"""Suppositions that a client may ask for."""
CHECKERS = 2
"""Threads for exact checks: a puzzle that takes long there does not hold up the others."""
GUESTS = 8
"""Sizes of boards, other than the models were trained on, that are at work at a time."""
TIDY = 20.0
"""Seconds of work after which freed memory is given back. The step that follows fetches again what it needs of it."""
SWITCH = 0.0005
"""Seconds that one thread may keep the interpreter while another wants it. A step calls into torch some hundred times
and gives the interpreter away at each; with Python's 5 ms it would wait that long to get it back, each time."""


class Busy(Exception):
    """As many puzzles are under way as there is room for."""


class Late(Exception):
    """No answer within the time allowed."""


class Failed(RuntimeError):
    """The model or a check broke down on a puzzle. The log has the traceback."""


class Unknown(UserError):
    """Neither a model nor a domain of that name."""


@dataclass(eq=False)
class _Job:
    """One puzzle of one client."""

    desk: "_Desk"
    inputs: Tokens
    budget: int
    fallback: str | None
    tries: int
    """Suppositions at most, should the answer be refused."""
    watched: bool
    """Whether the client wants every thought, not only the answer."""
    deadline: float
    out: asyncio.Queue[Thought | Answer | Exception] = field(default_factory=asyncio.Queue)
    trace: list[Thought] = field(default_factory=list)
    supposed: Tokens | None = None
    """[tries, tokens] the suppositions, once the plain run was refused."""
    tried: int = 0
    steps: int = 0
    """ACT steps of the tries."""
    found: SecondThought | None = None
    over: bool = False
    """Answered, or no longer wanted. Set by the event loop alone, and never taken back."""


class _Desk:
    """One model at work."""

    def __init__(self, solver: Solver, slots: int) -> None:
        self.solver = solver
        self.engine = solver.engine(slots, solver.steps)
        self.waiting: deque[_Job] = deque()
        """Shared by both threads: touch it only while holding the service's lock."""
        self.seated: dict[int, _Job] = {}
        """Ticket -> the job that holds a slot. The worker's own."""
        self.under_way = 0
        """Puzzles accepted and neither answered nor dropped. The event loop's own."""


class Service:
    """Solvers at the service of many clients. Use as `async with service:`, from one event loop.

    Each model has `slots` places in its batch, and at most `queue` puzzles more may be under way, waiting for a slot or
    for the exact check of their answers. Whoever comes then is refused (Busy); whoever has no answer `timeout` seconds
    after it came is let go (Late).
    """

    def __init__(self, shelf: Shelf, slots: int = SLOTS, queue: int = QUEUE, timeout: float = TIMEOUT) -> None:
        at_least(1, {"slots": slots})
        at_least(0, {"queue": queue})
        if not timeout > 0:
            raise UserError(f"timeout {timeout:g} is too small: give a number of seconds above 0")
        self.shelf, self.slots, self.queue, self.timeout = shelf, slots, queue, timeout
        self.desks = {solver.name: _Desk(solver, slots) for solver in shelf.solvers}
        self.guests: dict[str, _Desk] = {}
        """Models put to boards of other sizes than they were trained on. As with `waiting`."""
        self.unfinished: deque[_Job] = deque()
        """Jobs whose last thought is there."""
        self.outgoing: deque[tuple[_Job, Thought | Answer | Exception]] = deque()
        self.called = False
        """Whether the event loop knows that there is something to deliver."""
        self.metrics = Metrics()
        self.wake = threading.Condition()
        self.open = False

    async def __aenter__(self) -> "Service":
        if self.open:
            raise RuntimeError("this service is running already")
        sys.setswitchinterval(SWITCH)
        self.loop = asyncio.get_running_loop()
        self.pool = ThreadPoolExecutor(CHECKERS, thread_name_prefix="ponder-check")
        self.worker = threading.Thread(target=self._work, name="ponder-work", daemon=True)
        self.unfinished.clear()  # of another loop, if this is not the first
        self.outgoing.clear()
        self.called = False
        self.open = True
        self.worker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes what is under way."""
        with self.wake:
            self.open = False
            self.wake.notify()
        await asyncio.to_thread(self.worker.join)
        await asyncio.to_thread(self.pool.shutdown)

    # For the clients, on the event loop -----------------------------------------------------------------------------

    async def solve(
        self,
        wanted: str,
        puzzle: str | Json,
        fallback: str | None = None,
        steps: int | None = None,
        search: int | None = None,
    ) -> Answer:
        """The answer of the model of that name, or of the first model of that domain that reads the puzzle."""
        async with aclosing(self.stream(wanted, puzzle, fallback, steps, search, watched=False)) as items:
            answer = await anext(items)
            assert isinstance(answer, Answer)
            return answer

    def stream(
        self,
        wanted: str,
        puzzle: str | Json,
        fallback: str | None = None,
        steps: int | None = None,
        search: int | None = None,
        watched: bool = True,
    ) -> AsyncGenerator[Thought | Answer, None]:
        """Every thought on the way, unless nobody watches, and the answer at last. A puzzle that is refused is refused
        by this call."""
        if fallback not in (None, "exact"):
            raise UserError(f"fallback {fallback!r} is unknown: give 'exact', or leave it out")
        solver, inputs = self.read(wanted, puzzle)
        if fallback is not None and not solver.domain.exact:
            raise UserError(f"{solver.domain.name} has no exact solver: leave out fallback")
        if steps is not None and not 1 <= steps <= solver.steps:
            raise UserError(f"steps {steps} is out of range: {solver.name} takes 1 to {solver.steps}")
        if search is not None and not 0 <= search <= SEARCH:
            raise UserError(f"search {search} is out of range: give 0 for none, to {SEARCH} tries")
        if search and not solver.fills_in(search):
            raise UserError(f"{solver.domain.name} has no cells to fill in on trial: leave out search")
        if not self.open:
            raise Busy("this server is shutting down")
        desk = self._desk(solver)
        room = self.slots + self.queue
        if desk.under_way >= room:
            raise Busy(f"{solver.name} is busy: {room} puzzles are under way, and there is room for no more")
        # Who asks for so many steps gets no more of them by a search that was not asked for.
        unasked = solver.search if steps is None and solver.fills_in(solver.search) else 0
        tries = unasked if search is None else search
        budget = steps or (solver.config.max_steps if tries else solver.steps)
        job = _Job(desk, inputs, budget, fallback, tries, watched, self.loop.time() + self.timeout)
        desk.under_way += 1
        with self.wake:
            desk.waiting.append(job)
            self.wake.notify()
        return self._items(job)

    def read(self, wanted: str, puzzle: str | Json) -> tuple[Solver, Tokens]:
        """Who answers, and the puzzle as it reads it."""
        domains = {desk.solver.domain.name for desk in self.desks.values()}
        if wanted not in self.desks and wanted not in domains:
            raise Unknown(str(unknown("model or domain", wanted, {*self.desks, *domains})))
        return self.shelf.choose(wanted, puzzle)

    @property
    def alive(self) -> bool:
        return self.open and self.worker.is_alive()

    @property
    def waiting(self) -> dict[str, int]:
        """Model -> puzzles that wait for a slot."""
        return self._counts(lambda desk: len(desk.waiting))

    @property
    def seated(self) -> dict[str, int]:
        """Model -> slots in use."""
        return self._counts(lambda desk: len(desk.seated))

    def _counts(self, of: Callable[[_Desk], int]) -> dict[str, int]:
        out = dict.fromkeys(self.desks, 0)
        for desk in self._all():
            out[desk.solver.trained] += of(desk)
        return out

    def _all(self) -> list[_Desk]:
        return [*self.desks.values(), *self.guests.values()]

    def _desk(self, solver: Solver) -> _Desk:
        """Where this solver works; a new size takes the place of the one that has been idle longest."""
        if solver.name in self.desks:
            return self.desks[solver.name]
        with self.wake:
            desk = self.guests.pop(solver.name, None)
            if desk is None and len(self.guests) >= GUESTS:
                idle = next((name for name, desk in self.guests.items() if not desk.under_way), None)
                if idle is None:
                    raise Busy(f"boards of {GUESTS} sizes are being solved, and there is room for no more")
                del self.guests[idle]
            desk = self.guests[solver.name] = desk or _Desk(solver, self.slots)
        return desk

    async def _items(self, job: _Job) -> AsyncGenerator[Thought | Answer, None]:
        item: Thought | Answer | Exception | None = None
        try:
            while not isinstance(item, Answer):
                async with asyncio.timeout_at(job.deadline):
                    item = await job.out.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        except TimeoutError:
            self.metrics.late.add(job.desk.solver.trained)
            raise Late(f"no answer within {self.timeout:g} seconds: try again later, or give fewer steps") from None
        finally:
            self._leave(job)

    def _leave(self, job: _Job) -> None:
        """The job is over: its slot, its place in the queue or its check are free for others."""
        if job.over:
            return
        job.over = True
        job.desk.under_way -= 1
        with self.wake:
            if job in job.desk.waiting:
                job.desk.waiting.remove(job)

    def _deliver(self) -> None:
        self.called = False  # whoever comes later calls again
        while self.outgoing:
            job, item = self.outgoing.popleft()
            if job.over:
                continue
            job.out.put_nowait(item)
            if isinstance(item, Answer):
                self.metrics.puzzles.add(
                    job.desk.solver.trained, {True: "yes", False: "no", None: "unchecked"}[item.verified], item.by
                )
            if not isinstance(item, Thought):
                self._leave(job)

    # The worker's thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        tidied = time.monotonic()
        while True:
            with self.wake:
                self.wake.wait_for(lambda: not self.open or any(desk.waiting or desk.seated for desk in self._all()))
                desks = self._all()
                if not any(desk.waiting or desk.seated for desk in desks):
                    return
            for desk in desks:
                try:
                    self._turn(desk)
                except Exception as error:
                    log.exception("%s failed; its puzzles are lost", desk.solver.name)
                    lost, desk.seated = desk.seated, {}
                    desk.engine = desk.solver.engine(self.slots, desk.solver.steps)
                    self._post([(job, Failed(f"{desk.solver.name} failed: {error}")) for job in lost.values()])
            if time.monotonic() - tidied >= TIDY:  # between two steps, when the least is in use
                give_back()
                tidied = time.monotonic()

    def _turn(self, desk: _Desk) -> None:
        """One ACT step of one model."""
        solver, engine, seated = desk.solver, desk.engine, desk.seated
        unwanted = [ticket for ticket, job in seated.items() if job.over]
        if unwanted:
            engine.drop(unwanted)
            for ticket in unwanted:
                del seated[ticket]
        with self.wake:
            while desk.waiting and len(seated) < self.slots:
                job = desk.waiting.popleft()
                seated[engine.admit(job.inputs)] = job
        if not seated:
            return
        began = time.perf_counter()
        seen, done = engine.advance()
        thoughts: list[tuple[_Job, Thought | Answer | Exception]] = []
        finished: list[_Job] = []
        again: list[_Job] = []
        enough: list[int] = []
        for row, ticket in enumerate(seen.tickets.tolist()):
            job = seated[ticket]
            thought = solver.thought(seen, row, job.trace[-1].answer if job.trace else job.inputs)
            if job.tried:
                job.steps += 1
            else:
                job.trace.append(thought)
                if job.watched:
                    thoughts.append((job, thought))
            if not done[row] and thought.step < job.budget:
                continue
            if not done[row]:
                enough.append(ticket)
            elif job.tried and thought.valid:
                job.found = SecondThought(thought.answer, thought.confidence, job.tried, job.steps)
            if thought.valid or not self._tries(job, seen, row):
                finished.append(job)
            else:
                again.append(job)
            del seated[ticket]
        if enough:
            engine.drop(enough)
        for job in again:
            assert job.supposed is not None
            job.tried, job.budget = job.tried + 1, min(job.budget, solver.config.max_steps)  # as a Solver does
            seated[engine.admit(job.supposed[job.tried - 1])] = job
        self.metrics.steps.add(solver.trained, by=len(seen.tickets))
        self.metrics.turns.add(solver.trained)
        self.metrics.working.add(solver.trained, by=time.perf_counter() - began)
        if thoughts:
            self._post(thoughts)  # before the pool gets the job: the answer comes last
        self.unfinished.extend(finished)
        for _ in range(min(CHECKERS, len(finished))):
            self.pool.submit(self._finish)

    def _tries(self, job: _Job, seen: Seen, row: int) -> bool:
        """Whether there is one more supposition to try. The logits of the plain run's last step say which there are, or
        which other answers are likely: those need no more than a look."""
        domain = job.desk.solver.domain
        if job.tries and job.supposed is None:
            logits = seen.logits[row].float().cpu().numpy()
            if domain.vary == "likely":
                answers = likeliest(domain, job.inputs, logits, job.tries)
                if (at := first_right(domain, job.inputs, answers)) is not None:
                    job.found = SecondThought(answers[at], job.trace[-1].confidence, at + 1, 0)
                return False
            job.supposed = suppositions(domain, job.inputs, logits, job.tries)
        return job.supposed is not None and job.tried < len(job.supposed)

    def _finish(self) -> None:
        """Whatever waits to be finished. One that takes long holds up one of those who do this, and no job."""
        with suppress(IndexError):  # nothing is left
            while True:
                job = self.unfinished.popleft()
                if not job.over:
                    self._post([(job, self._finished(job))])

    def _finished(self, job: _Job) -> Answer | Failed:
        solver = job.desk.solver
        try:
            return solver.answer(job.inputs, job.trace, job.fallback, job.found)
        except Exception as error:
            log.exception("%s could not finish an answer", solver.name)
            return Failed(f"{solver.name} failed: {error}")

    def _post(self, items: Iterable[tuple[_Job, Thought | Answer | Exception]]) -> None:
        self.outgoing.extend(items)
        if not self.called:  # to wake the event loop is dear, and it takes all there is
            self.called = True
            self.loop.call_soon_threadsafe(self._deliver)
