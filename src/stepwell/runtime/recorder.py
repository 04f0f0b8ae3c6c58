"""Commits of one execution that is being run: in order, under its fence, and shared by what arrives together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from stepwell.errors import CommitUnknown, Conflict, LeaseLost, StepwellError, StoreUnavailable
from stepwell.model.commit import Rest
from stepwell.model.draft import Planned
from stepwell.model.execution_state import State
from stepwell.model.ids import NewId
from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.executions import CachedExecution, CommitTerms, Executions, OpenTransaction

__all__ = ["Recorder", "Trying"]

# Somebody from outside (a restore, a hand-made commit) may be first now and then; who is always second has met a loop.
_MOST_CONFLICTS = 20
# What says nothing about the batch: whatever it had been, this session could not have written it.
_OF_ALL = (LeaseLost, StoreUnavailable, CommitUnknown)

Trying = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Does something, and again while the store does not answer."""


class _Entry:
    __slots__ = ("batch", "done", "nudges", "rest")

    def __init__(self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...]) -> None:
        self.batch, self.rest, self.nudges = batch, rest, nudges
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Recorder:
    """Writes what an execution comes to. One commit is under way at a time; what gathers meanwhile shares the next."""

    def __init__(self, executions: Executions, driver: AsyncDriver, live: CachedExecution, fence: int, new_id: NewId) -> None:
        self._executions, self._driver, self._live = executions, driver, live
        self._ordinary, self._new_id = CommitTerms(fence=fence), new_id
        self._waiting: list[_Entry] = []
        self._is_writing = False
        self._doubt: OpenTransaction | None = None
        """The commit whose reply was lost, as long as it could not be looked up."""
        self._has_left = False
        """Whether the lease was given back: then nothing can follow."""
        self._leaving: asyncio.Future[None] | None = None
        self.is_parting = False
        """Whether the session has left the last commit to its recorder, and is over."""

    @property
    def state(self) -> State:
        """The execution's state, up to the last commit."""
        return self._live.state

    @property
    def is_busy(self) -> bool:
        """Whether a commit is under way."""
        return self._is_writing

    @property
    def is_made(self) -> bool:
        """Whether the execution exists."""
        return True

    def give_way(self) -> Awaitable[None] | None:
        """What to wait for, so that those pass who are in more of a hurry than this execution; None if there are none. Asked before
        its session begins, and before it ends."""
        return None

    def end(self) -> None:
        """The session is over, and has not parted. One that was cancelled before it began does not say so."""

    def part(self, batch: Sequence[Planned], rest: Rest) -> bool:  # noqa: ARG002 - this one cannot
        """Have the last commit of all written without the session waiting for it; whether that is done. Nothing can follow it."""
        return False

    async def commit(self, batch: Sequence[Planned], *, rest: Rest | None = None, nudges: tuple[str, ...] = ()) -> None:
        """Have mutations committed, perhaps together with others of this execution."""
        if self._is_writing:
            entry = _Entry(batch, rest, nudges)
            self._waiting.append(entry)
            await entry.done
            return
        self._is_writing = True
        try:
            await self._store(batch, rest, nudges)
        finally:
            if self._waiting:
                self._rest_of_them = asyncio.ensure_future(self._write_all())
            else:
                self._is_writing = False

    async def leave(self, batch: Sequence[Planned], rest: Rest, trying: Trying) -> None:
        """Give the lease back with a last commit: one, whoever asks for it, after what is under way. If it was given back before,
        by the execution's end or by a commit whose reply was lost, there is nothing to do."""
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(trying(lambda: self.commit(batch, rest=rest)))
        await self._leaving

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write_waiting()
        finally:
            self._is_writing = False

    async def _write_waiting(self) -> None:
        # Who gave up leaving, since the time was over, has left it to the lease; other outcomes are recorded all the same.
        entries, self._waiting = [each for each in self._waiting if each.rest is None or not each.done.cancelled()], []
        try:
            await self._write(entries)
        except BaseException as error:
            is_refused = isinstance(error, StepwellError) and not isinstance(error, _OF_ALL)
            if is_refused and len(entries) > 1:
                # One of them is at fault; each by itself shows which.
                for entry in entries:
                    await self._write_alone(entry)
                return
            for entry in entries:
                if not entry.done.done():
                    entry.done.set_exception(error if isinstance(error, StepwellError) else StepwellError(repr(error)))
            if not isinstance(error, Exception):
                raise

    async def _settle_doubt(self, doubt: OpenTransaction) -> bool:
        """Look up a commit whose reply was lost; whether it is in the store. If nobody can say, the next commit asks first."""
        self._doubt = doubt
        has_landed = await self._has_landed(doubt.commit_id)
        if has_landed or self.is_made:
            self._live = await self._driver.run(self._executions.newest(self._live.execution_id))
        self._doubt, self._has_left = None, has_landed and doubt.terms.rest is not None
        return has_landed

    async def _has_landed(self, commit_id: str) -> bool:
        return await self._driver.run(self._executions.receipt(self._live.execution_id, commit_id)) is not None

    async def _write_alone(self, entry: _Entry) -> None:
        try:
            await self._write([entry])
        except Exception as error:  # noqa: BLE001 - told to the one who waits
            entry.done.set_exception(error)

    async def _write(self, entries: list[_Entry]) -> None:
        if not entries:
            return
        batch = [item for entry in entries for item in entry.batch]
        rest = next((entry.rest for entry in entries if entry.rest is not None), None)
        nudges = tuple(dict.fromkeys(execution_id for entry in entries for execution_id in entry.nudges))
        await self._store(batch, rest, nudges)
        for entry in entries:
            if not entry.done.done():
                entry.done.set_result(None)

    async def _store(self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...]) -> None:
        """Make one commit of a batch; a lost reply is looked up, and whoever was first from outside is followed."""
        if self._doubt is not None:
            await self._settle_doubt(self._doubt)
        if self._has_left:
            if rest is None:
                raise LeaseLost(f"the lease of execution {self._live.execution_id!r} was given back", fence=self._ordinary.fence)
            return
        terms = self._ordinary
        if rest is not None or nudges:
            terms = msgspec.structs.replace(terms, rest=rest, nudges=nudges)
        for attempt in range(_MOST_CONFLICTS):
            session = OpenTransaction(self._live, terms, self._new_id)
            try:
                await self._driver.run(self._executions.commit(session, batch))
                break
            except CommitUnknown:
                if await self._settle_doubt(session):
                    break
                if attempt == _MOST_CONFLICTS - 1:
                    raise
            except Conflict as error:
                if attempt == _MOST_CONFLICTS - 1:
                    raise
                self._live = await self._driver.run(self._executions.newest(self._live.execution_id))
                if error.expected is not None and self._live.state.revision == session.revision:
                    raise  # nobody has written to this execution: it is scoped state that was expected to be another
        self._has_left = rest is not None
