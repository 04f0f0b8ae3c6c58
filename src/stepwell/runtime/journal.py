"""The journal of a session: what its execution has on record, and how more gets there."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec

from stepwell.clock import Clock
from stepwell.errors import CommitUnknown, InvalidInput, LeaseLost, StepwellError, StoreUnavailable
from stepwell.model.commit import Rest
from stepwell.model.draft import Planned
from stepwell.model.execution_state import State
from stepwell.model.limits import Limits
from stepwell.model.mutation import AddToken, RecordStep, RemoveToken, SetVariable, UpdateToken
from stepwell.model.record import Metadata, StepOutput, Token, decode_step, decode_token, encode_record, encode_token
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, canonical, decode
from stepwell.runtime.inbox import Letter, take
from stepwell.runtime.recorder import Recorder, Trying
from stepwell.runtime.waiting import Abandoned

__all__ = ["Journal"]

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

    def give_way(self) -> Awaitable[None] | None:
        """What to wait for, so that those pass who are in more of a hurry."""
        return self._recorder.give_way()

    def part(self, batch: list[Planned], rest: Rest) -> bool:
        """Leave the last commit to the recorder, if it can take it; whether it does. The session is over then."""
        if self.end is not None:
            raise self.end
        return not self._buffered and self._recorder.part(batch, rest)

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
