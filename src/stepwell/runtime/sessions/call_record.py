"""The record of a function workflow: outcomes of its calls, tokens of its waits, and its variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec

from stepwell.clock import Clock
from stepwell.errors import InvalidInput
from stepwell.model.draft import Planned
from stepwell.model.ids import check_variable
from stepwell.model.limits import Limits
from stepwell.model.mutation import NO_INPUT, AddToken, RecordStep, RemoveToken, SetVariable, UpdateToken
from stepwell.model.record import StepOutput, Token, decode_step, decode_token, encode_record, encode_token
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, canonical, decode
from stepwell.runtime.sessions.execution_writer import ExecutionWriter

__all__ = ["ASKED", "CallRecord"]

Raw = msgspec.Raw

ASKED = "step"
"""The token of a step that is made elsewhere, by an engine that makes steps apart from the code that calls them."""


class CallRecord:
    """Reads what an execution has recorded, and makes the mutations that record more; its writer commits them."""

    def __init__(self, writer: ExecutionWriter, clock: Clock, limits: Limits) -> None:
        self._writer, self._clock, self._limits = writer, clock, limits
        self._recorded: dict[str, str] = {}
        """Under which keys calls are recorded, by their positions."""
        self._waiting: set[str] = set()
        """Positions of calls that were waiting when the session began: what the code did before them is in the state."""
        self._branches: set[str] = set()
        """Paths of branches in which there had been calls then."""
        self.digests: dict[str, str] = {}
        """The digests of the calls with keys of the user's own, by the keys of their records."""
        self._summaries: dict[str, str] = {}
        steps, tokens = writer.state.sections["steps"], writer.state.sections["tokens"]
        if steps or tokens:  # a new one has neither
            self._read(steps, tokens)
        self._variables: dict[str, SetVariable] = {}

    def _read(self, steps: Mapping[str, bytes], tokens: Mapping[str, bytes]) -> None:
        self._recorded = {decode_step(data).node_id: name for name, data in steps.items()}
        self._waiting = {each for data in tokens.values() if (each := _position_of(decode_token(data))) is not None}
        reached = {*self._recorded, *self._waiting}
        self._branches = {position[: end + 1] for position in reached for end, sign in enumerate(position) if sign == "/"}

    # Outcomes of calls.

    def was_reached(self, position: str, branch: str) -> bool:
        """Return whether an earlier session reached the call at a position or a branch: its outcome is recorded, or it waits."""
        return position in self._recorded or position in self._waiting or branch in self._branches

    def positions(self) -> Iterable[str]:
        """Return the positions of all recorded calls."""
        return self._recorded

    def outcome(self, key: str) -> StepOutput | None:
        """Return the outcome that is recorded under a key, if any."""
        data = self._writer.state.sections["steps"].get(key)
        return None if data is None else decode_step(data)

    def answer(self, name: str, position: str, key: str) -> StepOutput | None:
        """Return the recorded outcome of a call; ``InvalidInput`` if the record has another call at its position."""
        was = self._recorded.get(position)
        if was is not None and was != key:
            raise InvalidInput(
                f"the program no longer matches its record: call {position} is {name!r} now, and was {was!r} when it was recorded; "
                f"use stepwell.patched(...) to let old executions go their old way"
            )
        return self.outcome(key)

    def summarize(self, key: str, summary: str) -> None:
        """Note the summary of a call, for its record and its token."""
        self._summaries.setdefault(key, summary)

    def summary_of(self, key: str) -> str | None:
        """Return what people are told about a call, if anything."""
        return self._summaries.get(key)

    def put(
        self,
        key: str,
        position: str,
        status: StepStatus,
        output: bytes,
        took_ms: int,
        name: str = "",
        ended_at: datetime | None = None,
        given: bytes | None = None,
    ) -> RecordStep:
        """Return the mutation that records a call's outcome, and what it was given."""
        # The output is canonical and in bounds already, so it goes in as it is.
        ended, digest = ended_at or self._clock.now(), self.digests.get(key)
        step = StepOutput(
            position, name or key, str(status), Raw(output), ended, max(took_ms, 0), digest, None, self._summaries.get(key)
        )
        self._recorded[position] = key
        return RecordStep(key, Raw(encode_record(step)), NO_INPUT if given is None else Raw(given))

    # Tokens: where a branch stands while it waits.

    def token(self, key: str) -> dict[str, Value]:
        """Return the value of a call's token; empty if it has none."""
        data = self._writer.state.sections["tokens"].get(key)
        return {} if data is None else decode_token(data).value

    def is_asked(self, key: str) -> bool:
        """Return whether a step has begun elsewhere, as far as its execution has recorded."""
        data = self._writer.state.sections["tokens"].get(key)
        return data is not None and decode_token(data).node == ASKED

    def token_put(self, key: str, node: str, value: dict[str, Value]) -> Planned:
        """Return the mutation that sets the token of a call."""
        if key in self._summaries:
            value = {**value, "summary": self._summaries[key]}
        data = Raw(encode_token(Token(key, node, "root", value), self._limits))
        return UpdateToken(key, data) if key in self._writer.state.sections["tokens"] else AddToken(key, data)

    def token_drop(self, key: str) -> list[Planned]:
        """Return the mutation that removes a call's token, if it has one."""
        return [RemoveToken(key)] if key in self._writer.state.sections["tokens"] else []

    def tokens(self, node: str) -> dict[str, dict[str, Value]]:
        """Return the values of the tokens of one kind, by key."""
        found = ((key, decode_token(data)) for key, data in self._writer.state.sections["tokens"].items())
        return {key: token.value for key, token in found if token.node == node}

    # Variables: read from the state, written with the next commit.

    def get_variable(self, name: str) -> Value:
        """Return a variable; ``KeyError`` if it was never set."""
        ahead = self._variables.get(name)
        if ahead is not None and self._writer.has_ahead(ahead):
            return decode(bytes(ahead.value))
        self._variables.pop(name, None)  # it landed: from here on the state says what a transaction may have made of it
        data = self._writer.state.sections["variables"].get(name)
        if data is None:
            raise KeyError(name)
        return decode(data)

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable with the next commit; ``InvalidInput`` if it cannot have this name or this value."""
        check_variable(name, self._limits.key_bytes)
        data = canonical(value, self._limits, what=f"variable {name!r}")
        mutation = self._variables[name] = SetVariable(name, Raw(data))
        self._writer.buffer(mutation)

    def variable_names(self) -> list[str]:
        """Return the names of all variables."""
        return sorted({*self._writer.state.sections["variables"], *self._variables})


def _position_of(token: Token) -> str | None:
    """Return the position of the call that waits; None for a token that was added by hand."""
    return cast("dict[str, Any]", token.value).get("position") if isinstance(token.value, dict) else None
