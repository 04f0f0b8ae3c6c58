"""Group commit: write all waiting units in one transaction, and delay none of them to wait for more.

A blocking caller that finds no write under way becomes the leader and writes at once, in its own thread: a single commit needs no
thread switch. Callers that come during a write queue up. When the leader is done, a writer thread takes all of them into one
transaction, and repeats until the queue is empty. Awaiting callers always use that thread, so that an event loop never waits for
a disk. See docs/design/0003-group-commit.md for why nothing is lost or written twice.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue

import msgspec

from stepwell.errors import CommitUnknown, StepwellError, StoreUnavailable
from stepwell.model.commit import Commit, Outcome, Unit
from stepwell.pipeline.notifications import shut_gate
from stepwell.process import process_id

__all__ = ["GroupCommit", "ThreadTicket", "Ticket", "WriteGroup"]


class Ticket(msgspec.Struct, eq=False):
    """One caller's unit in the queue, and the place where its outcome is left."""

    unit: Unit
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[Outcome] | None = None
    """The future that the caller awaits; None for a caller that blocks."""
    outcome: Outcome | None = None
    error: BaseException | None = None

    def result(self) -> Outcome:
        """Return the outcome of a ticket whose group is done, or raise the error that kept it from being written."""
        if self.error is not None:
            raise self.error
        assert self.outcome is not None, "a ticket is read only after its group is done"  # noqa: S101
        return self.outcome

    def tell(self) -> None:
        """Pass the outcome to the caller, on its event loop."""
        future = self.future
        if future is None or future.done():
            return  # its caller was cancelled
        if self.error is None and self.outcome is not None:
            future.set_result(self.outcome)
            return
        # A future takes any error but StopIteration.
        future.set_exception(self.error if not isinstance(self.error, StopIteration | None) else RuntimeError(repr(self.error)))
        future.exception()  # marks it as retrieved, or asyncio logs it for a caller that is cancelled now


class ThreadTicket(Ticket):
    """The ticket of a caller that blocks."""

    gate: threading.Lock = msgspec.field(default_factory=shut_gate)

    def tell(self) -> None:
        """Wake the caller."""
        self.gate.release()


WriteGroup = Callable[[Sequence[Unit]], list[Outcome]]

_MOST = 1_000
"""The most units in one transaction. Larger groups are no faster, since the fsync is shared already, but delay the first
caller."""


class GroupCommit:
    """Serialises writes to one store, and shares transactions between the callers that wait."""

    def __init__(self, write_group: WriteGroup, *, is_instant: bool = False, most: int = _MOST) -> None:
        self._write_group, self._is_instant, self._most = write_group, is_instant, most
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._waiting: deque[Ticket] = deque()
        self._is_writing = False
        """Whether a leader or the writer thread holds the right to write."""
        self._is_closed = False
        self._work: SimpleQueue[bool] = SimpleQueue()
        """Wakes the writer thread: True to write what waits, False to end."""
        self._writer: threading.Thread | None = None
        self._process = 0
        """The id of the process that writes; 0 until the first write, so that a server may fork before that."""

    @property
    def waiting_count(self) -> int:
        """The number of units that wait for a write."""
        return len(self._waiting)

    def write(self, unit: Unit) -> Outcome:
        """Write a unit, wait, and return its outcome. Raise the error that kept it from being written."""
        if self._process != process_id():
            self._check_process()
        ticket, is_leader = None, False
        try:
            with self._lock:
                self._check_open()
                if self._is_writing:
                    ticket = ThreadTicket(unit)
                    self._waiting.append(ticket)
                else:
                    # One statement, so that an interrupt between two cannot leave the right to write taken for ever.
                    is_leader = self._is_writing = True
            if ticket is not None:
                ticket.gate.acquire()
                return ticket.result()
            return self._write_group((unit,))[0]
        except CommitUnknown as error:
            raise _error_for(unit, error) from error
        finally:
            if is_leader:
                self._hand_over()

    def write_many(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write units in order, in groups as large as allowed; wait, and return the outcome of each."""
        if self._is_instant:
            return [self.write(unit) for unit in units]
        if self._process != process_id():
            self._check_process()
        tickets = [ThreadTicket(unit) for unit in units]
        with self._lock:
            self._check_open()
            has_place, self._is_writing = not self._is_writing, True
            self._waiting.extend(tickets)
        if has_place:
            self._wake_writer()
        for ticket in tickets:
            ticket.gate.acquire()
        return [ticket.result() for ticket in tickets]

    def write_async(self, unit: Unit) -> Awaitable[Outcome]:
        """Write a unit, and return an awaitable outcome. A unit whose caller is cancelled before its group begins is not
        written."""
        if self._is_instant:
            return self._write_now(unit)
        if self._process != process_id():
            self._check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        with self._lock:
            self._check_open()
            has_place, self._is_writing = not self._is_writing, True
            self._waiting.append(Ticket(unit, loop, future))
        if has_place:
            self._wake_writer()
        return future

    async def _write_now(self, unit: Unit) -> Outcome:
        return self.write(unit)

    def close(self) -> None:
        """Accept no more units, and wait until the accepted ones are written. After a fork there is nothing to wait for."""
        if self._process not in (0, process_id()):
            return
        with self._lock:
            self._is_closed = True
            self._idle.wait_for(lambda: not self._is_writing)
            writer, self._writer = self._writer, None
        if writer is not None:
            self._work.put(False)
            writer.join()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the store is closed; open it again")

    def _check_process(self) -> None:
        """Refuse to write after a fork: the parent's threads do not exist in the child, so a caller would wait for ever."""
        if self._process and not self._is_instant:
            raise StoreUnavailable("the store was used before a fork and cannot be used after it; open another one in the child")
        self._process = process_id()

    def _hand_over(self) -> None:
        """Pass the right to write from the leader to the writer thread if units wait; else free it."""
        with self._lock:
            if not self._waiting:
                self._give_up_place()
                return
        self._wake_writer()

    def _give_up_place(self) -> None:
        self._is_writing = False
        if self._is_closed:
            self._idle.notify_all()

    def _wake_writer(self) -> None:
        """Pass the right to write to the writer thread. Only its holder may call this."""
        if self._writer is None:
            writer = threading.Thread(target=self._run_writer, name="stepwell-writer", daemon=True)
            try:
                writer.start()
            except RuntimeError:
                # No thread can be started. Writing here is better than leaving all callers waiting.
                self._write_waiting()
                return
            self._writer = writer
        self._work.put(True)

    def _run_writer(self) -> None:
        while self._work.get():
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Write all waiting units, group by group, and free the right to write."""
        while tickets := self._take():
            self._write_tickets(tickets)
            self._answer(tickets)

    def _take(self) -> list[Ticket]:
        """Return the next group; an empty one means that the right to write was freed."""
        with self._lock:
            while self._waiting:
                count = min(len(self._waiting), self._most)
                taken = [self._waiting.popleft() for _ in range(count)]
                if tickets := [ticket for ticket in taken if ticket.future is None or not ticket.future.cancelled()]:
                    return tickets
            self._give_up_place()
        return []

    def _write_tickets(self, tickets: list[Ticket]) -> None:
        """Write a group, and set the outcome or the error of each ticket."""
        try:
            for ticket, outcome in zip(tickets, self._write_group([ticket.unit for ticket in tickets]), strict=True):
                ticket.outcome = outcome
        except BaseException as error:  # noqa: BLE001 - every waiting caller must get an answer, whatever it was
            if len(tickets) > 1 and not isinstance(error, StepwellError):
                # One unit is at fault, not the store, and nothing was written. Writing each unit alone finds it.
                for ticket in tickets:
                    self._write_tickets([ticket])
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
            with suppress(RuntimeError):  # the loop was closed: no caller is left to get an answer
                loop.call_soon_threadsafe(_tell, waiting)


def _error_for(unit: Unit, error: BaseException) -> BaseException:
    """Return a copy of the group's error for one caller, with the id of its commit."""
    if isinstance(error, CommitUnknown) and isinstance(unit, Commit):
        return CommitUnknown(error.message, commit_id=unit.commit_id, execution_id=unit.execution_id)
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - an exception that cannot be copied is still better shared than swallowed
        return error


def _tell(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.tell()
