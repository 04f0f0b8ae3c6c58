"""The execution's state as the interpreter sees it: committed state plus the changes of this transition."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stepwell.clock import from_ms
from stepwell.kernel.token import LiveToken
from stepwell.model.ids import check_variable
from stepwell.model.limits import Limits
from stepwell.model.mutation import (
    AddToken,
    EnterScope,
    ExitScope,
    IncrementStepCount,
    Mutation,
    PatchContext,
    RecordStep,
    RemoveToken,
    SetLoop,
    SetVariable,
    UpdateToken,
)
from stepwell.model.record import LoopContext, StepOutput, decode_step, encode_loop, encode_record
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, canonical, decode

__all__ = ["PendingChanges", "Sections"]

Sections = Mapping[str, Mapping[str, bytes]]
Raw = msgspec.Raw


class PendingChanges:
    """Reads entries and collects mutations. Tokens and scopes that come and go within one transition leave no mutation."""

    def __init__(self, sections: Sections, limits: Limits) -> None:
        self._sections, self.limits = sections, limits
        # A token wraps a user's value in its own, so it may be a little larger and deeper than the limits for values.
        self._token_limits = msgspec.structs.replace(limits, value_bytes=limits.value_bytes + 65_536, depth=limits.depth + 4)
        self._ahead: dict[tuple[str, str], bytes] = {}
        self._batch: list[Mutation] = []
        self._steps = 0
        self._touched: dict[str, LiveToken] = {}
        self._entered: dict[str, str] = {}
        self._exited: list[str] = []

    def get(self, section: str, key: str) -> bytes | None:
        """Return an entry with the changes of this transition."""
        return self._ahead.get((section, key)) or self._sections[section].get(key)

    def names(self, section: str) -> set[str]:
        """Return the keys of a section."""
        return {*self._sections[section], *(key for name, key in self._ahead if name == section)}

    def all(self, section: str) -> dict[str, bytes]:
        """Return all entries of a section."""
        return {key: self.get(section, key) or b"" for key in self.names(section)}

    def step(self, key: str) -> StepOutput | None:
        """Return the record of a key, or None."""
        data = self.get("steps", key)
        return None if data is None else decode_step(data)

    def record(
        self,
        key: str,
        name: str,
        status: StepStatus,
        output: bytes,
        now_ms: int,
        took_ms: int = 0,
        digest: str | None = None,
        call_key: str | None = None,
        summary: str | None = None,
    ) -> None:
        """Record an output in canonical bytes; of a call with a key of the user's own, with its digest."""
        times = from_ms(now_ms), max(took_ms, 0)
        data = encode_record(StepOutput(key, name, str(status), Raw(output), *times, digest, call_key, summary))
        self._ahead["steps", key] = data
        self._batch.append(RecordStep(key, Raw(data)))

    def count_step(self) -> None:
        """Count one more step."""
        self._steps += 1

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable."""
        check_variable(name, self.limits.key_bytes)
        data = canonical(value, self.limits, what=f"variable {name!r}")
        self._ahead["variables", name] = data
        self._batch.append(SetVariable(name, Raw(data)))

    def patch_context(self, values: Mapping[str, Value]) -> None:
        """Set keys of the context."""
        fresh = {key: canonical(value, self.limits, what=f"context key {key!r}") for key, value in values.items()}
        fresh = {key: data for key, data in fresh.items() if self.get("context", key) != data}
        if fresh:
            self._ahead.update({("context", key): data for key, data in fresh.items()})
            self._batch.append(PatchContext(set={key: Raw(data) for key, data in fresh.items()}))

    def set_loop(self, loop: LoopContext) -> None:
        """Set the progress of a loop."""
        data = encode_loop(loop, self.limits)
        self._ahead["loops", loop.loop_id] = data
        self._batch.append(SetLoop(loop.loop_id, Raw(data)))

    def mapping(self, section: str) -> dict[str, Value]:
        """Return a whole section, decoded."""
        return {key: decode(self.get(section, key) or b"null") for key in self.names(section)}

    # Tokens and scopes: only their final state in the transition is written.

    def touch(self, token: LiveToken) -> None:
        """Note that a token is new, changed or gone."""
        before = self._touched.get(token.id)
        if before is not None and before is not token and before.is_stored:
            token.is_stored = True  # a removed token and a new one with the same id are an update
        self._touched[token.id] = token

    def enter_scope(self, scope_id: str, parent: str) -> None:
        """Open a cancel scope."""
        self._entered[scope_id] = parent

    def exit_scope(self, scope_id: str) -> None:
        """Close a cancel scope, after the scopes inside it."""
        if self._entered.pop(scope_id, None) is None:
            self._exited.append(scope_id)

    def flush(self) -> list[Mutation]:
        """Return the mutations in a valid order: a scope opens before anything enters it and closes after everything left."""
        batch = self._batch
        if self._steps:
            batch.append(IncrementStepCount(self._steps))
        batch += [EnterScope(scope_id, parent) for scope_id, parent in self._entered.items()]
        gone = [token for token in self._touched.values() if token.is_gone]
        live = [token for token in self._touched.values() if not token.is_gone]
        batch += [RemoveToken(token.id) for token in gone if token.is_stored]
        for token in live:
            data = Raw(token.encode(self._token_limits))
            batch.append(UpdateToken(token.id, data) if token.is_stored else AddToken(token.id, data))
            token.is_stored = True
        batch += [ExitScope(scope_id) for scope_id in self._exited]
        self._batch, self._steps = [], 0
        self._touched, self._entered, self._exited = {}, {}, []
        return batch

    def settle(self) -> None:
        """Forget the changes, since the sections contain them now."""
        self._ahead.clear()
