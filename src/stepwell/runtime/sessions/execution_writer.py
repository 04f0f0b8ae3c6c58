"""Commits of one execution that is being run: in order, under its fence, and shared by what arrives together.

The journal of a session: what its execution has on record, and how more gets there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from stepwell.clock import Clock
from stepwell.errors import CommitUnknown, Conflict, InvalidInput, LeaseLost, StepwellError, StoreUnavailable
from stepwell.model.commit import Rest
from stepwell.model.draft import Planned
from stepwell.model.execution_state import State
from stepwell.model.ids import NewId
from stepwell.model.limits import Limits
from stepwell.model.mutation import AddToken, RecordStep, RemoveToken, SetVariable, UpdateToken
from stepwell.model.record import Metadata, StepOutput, Token, decode_step, decode_token, encode_record, encode_token
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, canonical, decode
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.inbox import Letter, take
from stepwell.runtime.sessions.waits import Abandoned
from stepwell.state.executions import CachedExecution, CommitTerms, Executions, OpenTransaction

__all__ = [
    "Journal",
    "Recorder",
    "Trying",
]


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

    def end(self) -> None:
        """Note that the session is over. A session that was cancelled before it began does not call this."""

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


Raw = msgspec.Raw


class Journal:
    """Outcomes of calls, tokens of waits, and variables of one execution. What is buffered lands with the next commit."""

    def __init__(self, recorder: Recorder, clock: Clock, limits: Limits) -> None:
        self._recorder, self._clock, self._limits = recorder, clock, limits
        self.identity: Metadata = recorder.state.identity
        self.end: Abandoned | None = None
        """Why nothing more is taken from this session, once that is so."""
        self._recorded: dict[str, str] = {}
        """Under which keys calls are recorded, by their positions."""
        self._waiting: set[str] = set()
        """Positions of calls that were waiting when the session began: what the code did before them is in the state."""
        self._branches: set[str] = set()
        """Paths of branches in which there had been calls then."""
        steps, tokens = recorder.state.sections["steps"], recorder.state.sections["tokens"]
        if steps or tokens:  # a new one has neither
            self._read(steps, tokens)
        self._buffered: list[Planned] = []
        self._is_kept = False
        """Whether what is buffered was refused once, together with something else."""
        self._variables: dict[str, bytes] = {}

    def _read(self, steps: Mapping[str, bytes], tokens: Mapping[str, bytes]) -> None:
        self._recorded = {decode_step(data).node_id: name for name, data in steps.items()}
        self._waiting = {each for data in tokens.values() if (each := _position_of(decode_token(data))) is not None}
        reached = {*self._recorded, *self._waiting}
        self._branches = {position[: end + 1] for position in reached for end, sign in enumerate(position) if sign == "/"}

    @property
    def state(self) -> State:
        """The execution's state, up to the last commit."""
        return self._recorder.state

    @property
    def is_made(self) -> bool:
        """Whether the execution exists."""
        return self._recorder.is_made

    @property
    def is_busy(self) -> bool:
        """Whether a commit is under way."""
        return self._recorder.is_busy

    async def commit(self, batch: list[Planned], *, rest: Rest | None = None, nudges: tuple[str, ...] = ()) -> None:
        """Have mutations committed, after those that were buffered. ``Abandoned`` if this session's commits are not taken."""
        if self.end is not None:
            raise self.end
        mine = self._buffered
        if mine:
            batch, self._buffered = [*mine, *batch], []
        try:
            await self._recorder.commit(batch, rest=rest, nudges=nudges)
        except (LeaseLost, StoreUnavailable, CommitUnknown) as error:
            # Not for the workflow's code to handle: it stops here, and goes on from the record when it is claimed again.
            self.end = Abandoned(error)
            raise self.end from error
        except StepwellError:
            self._keep(mine)
            raise
        self._is_kept = False

    def _keep(self, mine: list[Planned]) -> None:
        """Have what was buffered land with the next commit, since the rest of the batch was refused; unless that was before."""
        self._is_kept = bool(mine) and not self._is_kept
        if self._is_kept:
            self._buffered = [*mine, *self._buffered]

    def drop(self) -> None:
        """Forget what was buffered, since it is refused: an execution can always end."""
        self._buffered = []

    def buffer(self, *mutations: Planned) -> None:
        """Keep mutations for the next commit."""
        self._buffered.extend(mutations)

    async def leave(self, batch: list[Planned], rest: Rest, trying: Trying) -> None:
        """The last commit of a session that rests; what it raises is told as it is."""
        await self._recorder.leave([*self._buffered, *batch], rest, trying)

    # Outcomes of calls.

    def was_reached(self, position: str, branch: str) -> bool:
        """Whether the code has come before to the call at a position, since its outcome is recorded or it waits, or to a branch."""
        return position in self._recorded or position in self._waiting or branch in self._branches

    def outcome(self, key: str) -> StepOutput | None:
        """What is recorded under a key."""
        data = self._recorder.state.sections["steps"].get(key)
        return None if data is None else decode_step(data)

    def answer(self, name: str, position: str, key: str) -> StepOutput | None:
        """What is recorded for a call; an error if the record has another call at its position."""
        was = self._recorded.get(position)
        if was is not None and was != key:
            raise InvalidInput(
                f"the program no longer matches its record: call {position} is {name!r} now, and was {was!r} when it was recorded; "
                f"use stepwell.patched(...) to let old executions go their old way"
            )
        return self.outcome(key)

    def record(
        self,
        key: str,
        position: str,
        status: StepStatus,
        output: bytes,
        took_ms: int,
        name: str = "",
        ended_at: datetime | None = None,
    ) -> RecordStep:
        """The mutation that records a call's outcome."""
        # The output is canonical and in bounds already, so it goes in as it is.
        step = StepOutput(position, name or key, str(status), Raw(output), ended_at or self._clock.now(), max(took_ms, 0))
        self._recorded[position] = key
        return RecordStep(key, Raw(encode_record(step)))

    # Tokens: where a branch stands while it waits.

    def token(self, key: str) -> dict[str, Value]:
        """What the token of a call holds; nothing if it has none."""
        data = self._recorder.state.sections["tokens"].get(key)
        return {} if data is None else decode_token(data).value

    def token_put(self, key: str, node: str, value: dict[str, Value]) -> Planned:
        """The mutation that sets the token of a call."""
        data = Raw(encode_token(Token(key, node, "root", value), self._limits))
        return UpdateToken(key, data) if key in self._recorder.state.sections["tokens"] else AddToken(key, data)

    def token_drop(self, key: str) -> list[Planned]:
        """The mutation that takes a call's token away, if it has one."""
        return [RemoveToken(key)] if key in self._recorder.state.sections["tokens"] else []

    def tokens(self, node: str) -> dict[str, dict[str, Value]]:
        """The tokens of one kind, by key."""
        found = ((key, decode_token(data)) for key, data in self._recorder.state.sections["tokens"].items())
        return {key: token.value for key, token in found if token.node == node}

    def taking(self, letter: Letter | None) -> list[Planned]:
        """The mutation that takes a message out of the inbox."""
        return [] if letter is None else [take(self.identity.execution_id, self.identity.workspace_id, letter)]

    # Variables: read from the state, written with the next commit.

    def get_variable(self, name: str) -> Value:
        """A variable; ``KeyError`` if it was never set."""
        data = self._variables.get(name) or self._recorder.state.sections["variables"].get(name)
        if data is None:
            raise KeyError(name)
        return decode(data)

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable with the next commit."""
        data = canonical(value, self._limits, what=f"variable {name!r}")
        self._variables[name] = data
        self.buffer(SetVariable(name, Raw(data)))

    def variable_names(self) -> list[str]:
        """The names of all variables."""
        return sorted({*self._recorder.state.sections["variables"], *self._variables})


def _position_of(token: Token) -> str | None:
    """Which call waits; None for a token that somebody has added by hand."""
    return cast("dict[str, Any]", token.value).get("position") if isinstance(token.value, dict) else None
