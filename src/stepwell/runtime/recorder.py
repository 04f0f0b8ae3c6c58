"""Commits of one execution that is being run: in order, under its fence, and shared by what arrives together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from stepwell.errors import CommitUnknown, Conflict, LeaseLost, StepwellError, StoreUnavailable
from stepwell.model.commit import Rest
from stepwell.model.draft import Planned
from stepwell.model.ids import NewId
from stepwell.model.state import State
from stepwell.state.executions import Executions, Session, Terms
from stepwell.state.live import Live
from stepwell.state.operation import AsyncDriver

__all__ = ["Recorder"]

# Somebody from outside (a restore, a hand-made commit) may be first now and then; who is always second has met a loop.
_MOST_CONFLICTS = 20
# What says nothing about the batch: whatever it had been, this session could not have written it.
_OF_ALL = (LeaseLost, StoreUnavailable, CommitUnknown)


class _Entry:
    __slots__ = ("batch", "done", "nudges", "rest")

    def __init__(self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...]) -> None:
        self.batch, self.rest, self.nudges = batch, rest, nudges
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Recorder:
    """Writes what an execution comes to. One commit is under way at a time; what gathers meanwhile shares the next."""

    def __init__(self, executions: Executions, driver: AsyncDriver, live: Live, fence: int, new_id: NewId) -> None:
        self._executions, self._driver, self._live = executions, driver, live
        self._ordinary, self._new_id = Terms(fence=fence), new_id
        self._waiting: list[_Entry] = []
        self._is_writing = False
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

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write_waiting()
        finally:
            self._is_writing = False

    async def _write_waiting(self) -> None:
        entries, self._waiting = self._waiting, []
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

    async def _has_landed(self, commit_id: str) -> bool:
        """Whether a commit whose reply was lost is in the store."""
        return await self._driver.run(self._executions.receipt(self._live.execution_id, commit_id)) is not None

    async def _write_alone(self, entry: _Entry) -> None:
        try:
            await self._write([entry])
        except Exception as error:  # noqa: BLE001 - told to the one who waits
            entry.done.set_exception(error)

    async def _write(self, entries: list[_Entry]) -> None:
        batch = [item for entry in entries for item in entry.batch]
        rest = next((entry.rest for entry in entries if entry.rest is not None), None)
        nudges = tuple(dict.fromkeys(execution_id for entry in entries for execution_id in entry.nudges))
        await self._store(batch, rest, nudges)
        for entry in entries:
            if not entry.done.done():
                entry.done.set_result(None)

    async def _store(self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...]) -> None:
        """Make one commit of a batch; a lost reply is looked up, and whoever was first from outside is followed."""
        terms = self._ordinary
        if rest is not None or nudges:
            terms = msgspec.structs.replace(terms, rest=rest, nudges=nudges)
        for attempt in range(_MOST_CONFLICTS):
            session = Session(self._live, terms, self._new_id)
            try:
                await self._driver.run(self._executions.commit(session, batch))
                break
            except (Conflict, CommitUnknown) as error:
                if attempt == _MOST_CONFLICTS - 1:
                    raise
                execution_id, revision = self._live.execution_id, session.revision
                self._live = await self._driver.run(self._executions.newest(execution_id))
                if isinstance(error, CommitUnknown):
                    if await self._has_landed(session.commit_id):
                        break
                elif error.expected is not None and self._live.state.revision == revision:
                    raise  # nobody has written to this execution: it is scoped state that was expected to be another
