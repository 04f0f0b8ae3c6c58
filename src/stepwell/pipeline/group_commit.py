"""Gathering: the errands of a loop set out together, when its turn is over.

Nobody waits for an errand. Set out one by one, they come to many small groups, and for each of these the writer thread asks the
loop for the interpreter a few times. So the runs that end in one turn of a busy loop are one group, with the claim that is asked
for then.

Tickets: units that wait to be written, each with the spot where its outcome is left, and how its caller is told.

Group commit: whatever is waiting is written in one transaction, and nobody waits for company.

A blocking caller who finds nobody writing becomes the leader and writes at once, in its own thread: one commit alone pays for no
thread change. Whoever comes while a write is under way queues up; when the leader is done, a writer thread takes everything that
has gathered, in one transaction, and goes on until nobody is left. Async callers always go through that thread, so that an event
loop never waits for a disk. See docs/design/0003-group-commit.md for why nothing is lost or done twice.

A store may let a caller send its unit off and wait later: then one that is awaited and finds nobody writing is sent off at once.
Where the loop is busy, the writer thread has to wait for the interpreter, and the unit would wait with it. The loop looks for the
reply for a moment, between all else that it does, if that is faster; after that, and as soon as anybody else comes, the writer
thread waits for it. A store may also take requests for runs beside all else: then they have a group of their own, and wait for
nobody's commits. What is done for those that wait already gives way to them (``way``).
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import TypeVar

import msgspec

from stepwell.contract.store import Answer, Begun
from stepwell.errors import CommitUnknown, StepwellError, StoreUnavailable
from stepwell.model.commit import Commit, Outcome, Unit
from stepwell.model.queue_item import Enqueue
from stepwell.pipeline.notifications import shut_gate
from stepwell.pipeline.watch import Watch
from stepwell.pipeline.way import Way, can_wait
from stepwell.process import process_id
from stepwell.stores.glance import Glance, is_worth_a_look, let_others_run

__all__ = [
    "Errand",
    "Gathering",
    "GroupCommit",
    "ThreadTicket",
    "Ticket",
    "Told",
]


# How long an errand may wait for others, if the turn takes longer than that.
_LONGEST_SECONDS = 0.02


class _Load(msgspec.Struct, eq=False):
    """What has gathered in this turn of a loop."""

    errands: list[Errand]
    latest: float
    """When it sets out in any case, by the loop's clock."""


class Gathering:
    """Where errands wait for the end of the turn, loop by loop."""

    def __init__(self, set_out: Callable[[list[Errand]], None]) -> None:
        self._set_out = set_out
        self._loads: dict[asyncio.AbstractEventLoop, _Load] = {}

    def add(self, errand: Errand, loop: asyncio.AbstractEventLoop) -> None:
        """Have an errand set out with the others of this turn. On its loop."""
        now, load = loop.time(), self._loads.get(loop)
        if load is None:
            load = self._loads[loop] = _Load([], now + _LONGEST_SECONDS)
            loop.call_soon(self._send_off, loop, load)
        load.errands.append(errand)
        if now >= load.latest:
            self._send_off(loop, load)

    def _send_off(self, loop: asyncio.AbstractEventLoop, load: _Load) -> None:
        if self._loads.get(loop) is load:
            del self._loads[loop]
            try:
                self._set_out(load.errands)
            except Exception as error:  # noqa: BLE001 - told to each of those who submitted one
                for errand in load.errands:
                    errand.error = copy.copy(error)
                    errand.tell()


Told = Callable[[Callable[[], Outcome]], None]
"""Called with a function that gives the outcome, or raises what kept it from being written."""


class Ticket(msgspec.Struct, eq=False):
    """One caller's unit, and where the outcome is left for it."""

    unit: Unit
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[Outcome] | None = None
    """What the caller awaits, if it does."""
    outcome: Outcome | None = None
    error: BaseException | None = None

    def result(self) -> Outcome:
        if self.error is not None:
            raise self.error
        assert self.outcome is not None, "a ticket is read only after its group is done"  # noqa: S101
        return self.outcome

    def tell(self) -> None:
        """Tell the caller, on its loop."""
        future = self.future
        if future is None or future.done():
            return  # its caller was cancelled
        if self.error is None and self.outcome is not None:
            future.set_result(self.outcome)
            return
        # A future takes any error but this one.
        future.set_exception(self.error if not isinstance(self.error, StopIteration | None) else RuntimeError(repr(self.error)))
        future.exception()  # a caller who is cancelled now does not ask, and nobody shall complain of that


class ThreadTicket(Ticket):
    """That of a caller who blocks."""

    gate: threading.Lock = msgspec.field(default_factory=shut_gate)

    def tell(self) -> None:
        self.gate.release()


class Errand(Ticket, kw_only=True):
    """A unit that nobody waits for: whoever submitted it is called."""

    told: Told

    def tell(self) -> None:
        try:
            self.told(self.result)
        except Exception as error:  # noqa: BLE001 - the others of the group must be told all the same
            assert self.loop is not None  # noqa: S101
            self.loop.call_exception_handler({"message": "who submitted a write could not take its outcome", "exception": error})


T = TypeVar("T")
WriteGroup = Callable[[Sequence[Unit]], list[Outcome]]
BeginGroup = Callable[[Sequence[Unit]], Begun]
"""Sets about writing a group, without waiting for anything."""

# Larger groups make nothing faster (the shared fsync is long paid for) but hold their first caller back.
_MOST = 1_000


class _Sent(msgspec.Struct, eq=False):
    """A unit that was sent off from a loop."""

    ticket: Ticket
    loop: asyncio.AbstractEventLoop
    begun: Begun
    began: float
    is_looking: bool
    """Whether the loop looks for its answer in every turn at first."""
    watch: Watch
    """By which it learns of the answer if it does not, or not any more."""


class GroupCommit:
    """Serialises writes to one store and shares transactions between the callers that wait."""

    def __init__(
        self,
        write_group: WriteGroup,
        *,
        begin_group: BeginGroup | None = None,
        is_instant: bool = False,
        most: int = _MOST,
        takes_requests_beside: bool = False,
    ) -> None:
        self._write_group, self._begin_group, self._is_instant, self._most = write_group, begin_group, is_instant, most
        self._way, self._done = Way(), Way()
        """Where the writer waits for a request that is under way, and where others may wait for what is under way here."""
        self._beside: GroupCommit | None = None
        if takes_requests_beside:
            self._beside = GroupCommit(write_group, begin_group=begin_group, most=most)
            self._way = self._beside._done
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: deque[Ticket] = deque()
        self._gathering = Gathering(self._line_up)
        self._glance = Glance()
        self._sent: _Sent | None = None
        """What has the place, and is looked for on a loop: nobody waits then, and whoever comes next leaves it to the writer."""
        self._is_writing = False
        self._is_closed = False
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._process = 0
        """Which process writes; none until the first write, so that a server may fork before that."""

    def write(self, unit: Unit) -> Outcome:
        """Write a unit and wait for its outcome."""
        if type(unit) is Enqueue and self._beside is not None:
            return self._beside.write(unit)
        if self._process != process_id():
            self._check_process()
        ticket, is_leader = None, False
        try:
            with self._lock:
                self._check_open()
                if self._is_writing:
                    ticket = ThreadTicket(unit)
                    self._waiting.append(ticket)
                    self._leave_to_writer()
                else:
                    # In one statement with taking the place, so that an interrupt cannot come in between and keep it for ever.
                    is_leader = self._is_writing = True
            if ticket is not None:
                self._hurry((ticket,))
                ticket.gate.acquire()
                return ticket.result()
            return self._write_group((unit,))[0]
        except CommitUnknown as error:
            raise _error_for(unit, error) from error
        finally:
            if is_leader:
                self._hand_over()

    def write_async(self, unit: Unit) -> Awaitable[Outcome]:
        """Write a unit; its outcome, to be awaited. If the caller is cancelled before the write began, it is not written."""
        if self._is_instant:
            return self._write_now(unit)
        if type(unit) is Enqueue and self._beside is not None:
            return self._beside.write_async(unit)
        if self._process != process_id():
            self._check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self._line_up((Ticket(unit, loop, future),))
        return future

    async def _write_now(self, unit: Unit) -> Outcome:
        return self.write(unit)

    def submit(self, unit: Unit, told: Told) -> None:
        """Have a unit written without waiting for it, with others of this turn of the running loop; ``told`` is called there."""
        if type(unit) is Enqueue and self._beside is not None:
            self._beside.submit(unit, told)
            return
        if self._process != process_id():
            self._check_process()
        self._check_open()
        loop = asyncio.get_running_loop()
        self._gathering.add(Errand(unit, loop, told=told), loop)

    @property
    def is_instant(self) -> bool:
        """Whether a write is done at once, so that there is nothing to wait for."""
        return self._is_instant

    def _line_up(self, tickets: Sequence[Ticket]) -> None:
        with self._lock:
            self._check_open()
            has_place, self._is_writing = not self._is_writing, True
            is_giving_way = self._is_way_taken() and can_wait(tickets[0].unit)
            begin = None if len(tickets) > 1 or is_giving_way else self._begin_group
            if not has_place or begin is None:
                self._waiting.extend(tickets)
                self._leave_to_writer()
        if not has_place:
            self._hurry(tickets)
        elif begin is None:
            self._have_writer(self._write_waiting)
        else:
            self._set_out(tickets[0], begin)

    def _hurry(self, tickets: Sequence[Ticket]) -> None:
        """Have the writer give way no longer, if it does and somebody has come who cannot wait."""
        if self._beside is not None and not all(can_wait(ticket.unit) for ticket in tickets):
            self._way.clear()

    def _is_way_taken(self) -> bool:
        """Whether a request is under way."""
        return self._beside is not None and self._beside._is_writing

    def _are_all_patient(self) -> bool:
        """Whether somebody waits, and nobody who cannot."""
        with self._lock:
            return len(self._waiting) > 0 and all(can_wait(ticket.unit) for ticket in self._waiting)

    def _set_out(self, ticket: Ticket, begin: BeginGroup) -> None:
        """Begin to write one unit here. Only who holds the place may call this."""
        began = perf_counter()
        try:
            begun = begin((ticket.unit,))
        except Exception as error:  # noqa: BLE001 - told to the caller like any other failure
            begun = Begun(partial(_raise, error))
        except BaseException:
            self._hand_over()
            raise
        let_others_run()  # the server first of all, which may have been woken on this very processor
        loop = asyncio.get_running_loop()
        with self._lock:
            is_alone = self._writer is not None and not (self._waiting or self._is_closed)
            sent = _Sent(ticket, loop, begun, began, self._glance.is_looking, Watch(loop))
            is_looked_for = is_alone and begun.answer is not None
            if is_looked_for:
                self._sent = sent
        if is_looked_for:
            loop.call_soon(self._look_for, sent)
        else:
            self._have_writer(partial(self._see_through, sent))

    def _look_for(self, sent: _Sent) -> None:
        """Look whether an answer is here, on the loop; if not, look again in its next turn, or when something has come."""
        if sent.is_looking:
            let_others_run()
        is_here = False
        try:
            with self._lock:
                if self._sent is sent and self._has_found(sent):
                    is_here, self._sent = True, None
            if is_here:
                sent.watch.end()
                self._settle([sent.ticket], sent.begun.finish)
                self._bring(sent)
        finally:
            if is_here:
                self._hand_over()

    def _has_found(self, sent: _Sent) -> bool:
        """Whether an answer that is looked for is here, and nobody need wait for more."""
        answer = sent.begun.answer
        assert answer is not None, "nothing is looked for without it"  # noqa: S101
        is_left = True
        try:
            has_come = answer.has_come()
            is_found = has_come and answer.is_final()
            is_left = not is_found and (has_come or not self._looks_again(sent, answer))
        finally:
            if is_left:
                self._leave_to_writer()
        return is_found

    def _looks_again(self, sent: _Sent, answer: Answer) -> bool:
        """Have the loop look again, in its next turn or when something has come; False if it cannot be told of that."""
        if sent.is_looking and is_worth_a_look(sent.began):
            sent.loop.call_soon(self._look_for, sent)
            return True
        return sent.watch.begin(answer.descriptor, partial(self._look_for, sent), partial(self._is_late, sent))

    def _is_late(self, sent: _Sent) -> None:
        with self._lock:
            if self._sent is sent:
                self._leave_to_writer()

    def _leave_to_writer(self) -> None:
        """Have the writer, which is there by then, wait for what a loop has looked for so far. Only under the lock."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._work.put(partial(self._see_through, sent))
            sent.watch.end_soon()

    def _see_through(self, sent: _Sent) -> None:
        self._settle([sent.ticket], sent.begun.finish)
        _call_on(sent.loop, self._bring, sent)
        self._done.passed()
        self._write_waiting()

    def _bring(self, sent: _Sent) -> None:
        sent.ticket.tell()
        self._glance.took(sent.began, is_looking=sent.is_looking)

    def close(self) -> None:
        """Accept no more, and wait until everything that was accepted is written. After a fork there is nothing to wait for."""
        if self._beside is not None:
            self._beside.close()
        if self._process not in (0, process_id()):
            return
        with self._lock:
            self._is_closed = True
            self._leave_to_writer()
            self._idle.wait_for(lambda: not self._is_writing)
            writer, self._writer = self._writer, None
        if writer is not None:
            self._work.put(None)
            writer.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed; open it again")

    def _check_process(self) -> None:
        """The threads of a process do not come through a fork: whoever waited for them here would wait for ever."""
        if self._process and not self._is_instant:
            raise StoreUnavailable("the store was used before a fork and cannot be used after it; open another one in the child")
        self._process = process_id()

    def _hand_over(self) -> None:
        """The leader is done: pass what has gathered to the writer thread, or leave the place free."""
        with self._lock:
            if not self._waiting:
                self._give_up_place()
                return
        self._have_writer(self._write_waiting)

    def _give_up_place(self) -> None:
        self._is_writing = False
        self._done.passed()
        if self._is_closed:
            self._idle.notify_all()

    def _have_writer(self, work: Callable[[], None]) -> None:
        """Give the writing place to the writer thread. Only who holds the place may call this."""
        if self._writer is None:
            writer = threading.Thread(target=self._run_writer, name="stepwell-writer", daemon=True)
            try:
                writer.start()
            except RuntimeError:
                # No thread can be had: better to write here than to leave everybody waiting.
                work()
                return
            self._writer = writer
        self._work.put(work)

    def _run_writer(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _write_waiting(self) -> None:
        """Write everything that waits, group by group, and give up the place."""
        while tickets := self._take():
            self._write_tickets(tickets)

    def _take(self) -> list[Ticket]:
        """The next group; none means that the writing place was given up."""
        if self._beside is not None:
            self._way.give(self._are_all_patient, self._is_way_taken)
        with self._lock:
            while self._waiting:
                count = min(len(self._waiting), self._most)
                taken = [self._waiting.popleft() for _ in range(count)]
                if tickets := [ticket for ticket in taken if ticket.future is None or not ticket.future.cancelled()]:
                    return tickets
            self._give_up_place()
        return []

    def _write_tickets(self, tickets: list[Ticket]) -> None:
        self._settle(tickets, lambda: self._write_group([ticket.unit for ticket in tickets]))
        self._answer(tickets)

    def _settle(self, tickets: list[Ticket], write: Callable[[], list[Outcome]]) -> None:
        """Leave each ticket its outcome, or what kept it from being written."""
        try:
            for ticket, outcome in zip(tickets, write(), strict=True):
                ticket.outcome = outcome
        except BaseException as error:  # noqa: BLE001 - every waiting caller must be told, whatever it was
            if len(tickets) > 1 and not isinstance(error, StepwellError):
                # Something is wrong with one of the units, not with the store, and nothing was written: each by itself shows which.
                for ticket in tickets:
                    self._settle([ticket], partial(self._write_group, (ticket.unit,)))
                return
            for ticket in tickets:
                ticket.error = _error_for(ticket.unit, error)

    def _answer(self, tickets: list[Ticket]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
        for ticket in tickets:
            if ticket.loop is not None:
                loops.setdefault(ticket.loop, []).append(ticket)
            else:
                ticket.tell()
        for loop, waiting in loops.items():
            _call_on(loop, _tell, waiting)
        self._done.passed()


def _error_for(unit: Unit, error: BaseException) -> BaseException:
    """The group's failure as one caller is told it: an object of its own, with its own commit id."""
    if isinstance(error, CommitUnknown) and isinstance(unit, Commit):
        return CommitUnknown(error.message, commit_id=unit.commit_id, execution_id=unit.execution_id)
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - an exception that cannot be copied is still better shared than swallowed
        return error


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[T], None], about: T) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody is there to be told
        loop.call_soon_threadsafe(call, about)


def _raise(error: Exception) -> list[Outcome]:
    raise error


def _tell(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.tell()
