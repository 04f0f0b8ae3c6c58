"""Group commit: whatever is waiting is written in one transaction, and nobody waits for company.

A blocking caller who finds nobody writing becomes the leader and writes at once, in its own thread: one commit alone pays for no
thread change. Whoever comes while a write is under way queues up; when the leader is done, a writer thread takes everything that
has gathered, in one transaction, and goes on until nobody is left. Async callers always go through that thread, so that an event
loop never waits for a disk. See docs/design/0003-group-commit.md for why nothing is lost or done twice.

A store may let a caller send its unit off and wait later: then one that is awaited and finds nobody writing is sent off at once,
and the writer thread only waits for the reply. Where the loop is busy, that thread has to wait for the interpreter, and the unit
would wait with it. A store may also take requests for runs beside all else: then they have a group of their own, and wait for
nobody's commits. What is done for those that wait already gives way to them (``way``).
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from queue import SimpleQueue

import msgspec

from stepwell.errors import CommitUnknown, StepwellError, StoreUnavailable
from stepwell.gate import shut_gate
from stepwell.model.commit import Commit, Outcome, Unit
from stepwell.model.queue import Enqueue
from stepwell.process import process_id
from stepwell.stores.way import Way, can_wait

__all__ = ["GroupCommit"]

WriteGroup = Callable[[Sequence[Unit]], list[Outcome]]
Finish = Callable[[], list[Outcome]]
BeginGroup = Callable[[Sequence[Unit]], Finish]
"""Sets about writing a group, without waiting for anything, and gives what does the rest."""
Told = Callable[[Callable[[], Outcome]], None]
"""Called with a function that gives the outcome, or raises what kept it from being written."""

# Larger groups make nothing faster (the shared fsync is long paid for) but hold their first caller back.
_MOST = 1_000


class _Ticket(msgspec.Struct, eq=False):
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


class _ThreadTicket(_Ticket):
    """That of a caller who blocks."""

    gate: threading.Lock = msgspec.field(default_factory=shut_gate)

    def tell(self) -> None:
        self.gate.release()


class _Errand(_Ticket, kw_only=True):
    """A unit that nobody waits for: whoever submitted it is called."""

    told: Told

    def tell(self) -> None:
        try:
            self.told(self.result)
        except Exception as error:  # noqa: BLE001 - the others of the group must be told all the same
            assert self.loop is not None  # noqa: S101
            self.loop.call_exception_handler({"message": "who submitted a write could not take its outcome", "exception": error})


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
        self._waiting: deque[_Ticket] = deque()
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
                    ticket = _ThreadTicket(unit)
                    self._waiting.append(ticket)
                else:
                    # In one statement with taking the place, so that an interrupt cannot come in between and keep it for ever.
                    is_leader = self._is_writing = True
            if ticket is not None:
                self._hurry(ticket)
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
        self._line_up(_Ticket(unit, loop, future))
        return future

    async def _write_now(self, unit: Unit) -> Outcome:
        return self.write(unit)

    def submit(self, unit: Unit, told: Told) -> None:
        """Have a unit written without waiting for it; ``told`` is called on the running loop."""
        if type(unit) is Enqueue and self._beside is not None:
            self._beside.submit(unit, told)
            return
        if self._process != process_id():
            self._check_process()
        self._line_up(_Errand(unit, asyncio.get_running_loop(), told=told))

    @property
    def is_instant(self) -> bool:
        """Whether a write is done at once, so that there is nothing to wait for."""
        return self._is_instant

    def _line_up(self, ticket: _Ticket) -> None:
        with self._lock:
            self._check_open()
            has_place, self._is_writing = not self._is_writing, True
            begin = None if self._gives_way([ticket]) else self._begin_group
            if not has_place or begin is None:
                self._waiting.append(ticket)
        if not has_place:
            self._hurry(ticket)
        elif begin is None:
            self._have_writer(self._write_waiting)
        else:
            self._set_out(ticket, begin)

    def _hurry(self, ticket: _Ticket) -> None:
        """Have the writer give way no longer, if it does and somebody has come who cannot wait."""
        if self._beside is not None and not can_wait(ticket.unit):
            self._way.clear()

    def _gives_way(self, tickets: Collection[_Ticket]) -> bool:
        """Whether a request is under way, and there are those who can wait for it, and nobody else."""
        is_taken = self._beside is not None and self._beside._is_writing
        return is_taken and len(tickets) > 0 and all(can_wait(ticket.unit) for ticket in tickets)

    def _is_way_taken(self) -> bool:
        with self._lock:
            return self._gives_way(self._waiting)

    def _set_out(self, ticket: _Ticket, begin: BeginGroup) -> None:
        """Begin to write one unit here, and leave the rest to the writer. Only who holds the place may call this."""
        try:
            finish = begin((ticket.unit,))
        except Exception as error:  # noqa: BLE001 - told to the caller like any other failure
            finish = partial(_raise, error)
        except BaseException:
            self._hand_over()
            raise
        self._have_writer(partial(self._see_through, ticket, finish))

    def _see_through(self, ticket: _Ticket, finish: Finish) -> None:
        self._write_tickets([ticket], finish)
        self._write_waiting()

    def close(self) -> None:
        """Accept no more, and wait until everything that was accepted is written. After a fork there is nothing to wait for."""
        if self._beside is not None:
            self._beside.close()
        if self._process not in (0, process_id()):
            return
        with self._lock:
            self._is_closed = True
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
        self._done.clear()
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

    def _take(self) -> list[_Ticket]:
        """The next group; none means that the writing place was given up."""
        if self._beside is not None:
            self._way.give(self._is_way_taken)
        with self._lock:
            while self._waiting:
                count = min(len(self._waiting), self._most)
                taken = [self._waiting.popleft() for _ in range(count)]
                if tickets := [ticket for ticket in taken if ticket.future is None or not ticket.future.cancelled()]:
                    return tickets
            self._give_up_place()
        return []

    def _write_tickets(self, tickets: list[_Ticket], finish: Finish | None = None) -> None:
        try:
            outcomes = self._write_group([ticket.unit for ticket in tickets]) if finish is None else finish()
            for ticket, outcome in zip(tickets, outcomes, strict=True):
                ticket.outcome = outcome
        except BaseException as error:  # noqa: BLE001 - every waiting caller must be told, whatever it was
            if len(tickets) > 1 and not isinstance(error, StepwellError):
                # Something is wrong with one of the units, not with the store, and nothing was written: each by itself shows which.
                for ticket in tickets:
                    self._write_tickets([ticket])
                return
            for ticket in tickets:
                ticket.error = _error_for(ticket.unit, error)
        self._answer(tickets)

    def _answer(self, tickets: list[_Ticket]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}
        for ticket in tickets:
            if ticket.loop is not None:
                loops.setdefault(ticket.loop, []).append(ticket)
            else:
                ticket.tell()
        for loop, waiting in loops.items():
            try:
                loop.call_soon_threadsafe(_tell, waiting)
            except RuntimeError:
                continue  # the loop was closed: nobody is there to be told
        self._done.clear()


def _error_for(unit: Unit, error: BaseException) -> BaseException:
    """The group's failure as one caller is told it: an object of its own, with its own commit id."""
    if isinstance(error, CommitUnknown) and isinstance(unit, Commit):
        return CommitUnknown(error.message, commit_id=unit.commit_id, execution_id=unit.execution_id)
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - an exception that cannot be copied is still better shared than swallowed
        return error


def _raise(error: Exception) -> list[Outcome]:
    raise error


def _tell(tickets: list[_Ticket]) -> None:
    for ticket in tickets:
        ticket.tell()
