"""The data store of one execution: trigger and steps written once, variables last-write-wins, loops; safe from any thread.

Usable alone, in memory; and what ``run.state()`` gives back, read-only. Reads take no lock and never wait for each other or for a
writer: each is one lookup of an immutable value. Writers take a lock for the moment of the change.
"""

from __future__ import annotations

import threading
from typing import Any

from stepwell.errors import AlreadyRecorded, InvalidInput
from stepwell.model.execution_state import ONLY, ExecutionState
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.plain_data import PlainRecord, plain_data
from stepwell.model.record import (
    LoopContext,
    Metadata,
    StepOutput,
    Trigger,
    decode_loop,
    decode_step,
    decode_trigger,
    encode_loop,
    encode_step,
    encode_trigger,
)
from stepwell.model.status import StepStatus
from stepwell.model.value import DEFAULT_LIMITS, Frozen, Value, decode, freeze, thaw

__all__ = ["DataStore", "DataView"]

_MISSING = object()


class DataView(PlainRecord, frozen=True):
    """All sections of a ``DataStore`` at one moment."""

    trigger: Trigger | Value
    steps: dict[str, StepOutput]
    variables: dict[str, Value]
    loops: dict[str, LoopContext]


class DataStore:
    """The data of one execution, by section: trigger, step outputs, variables and loop positions.

    It works in memory, without a store, and from any thread; reads take no lock. ``run.state()`` returns a read-only one.
    Every ``set_`` call raises ``InvalidInput`` for a value that is not accepted, and on a read-only store.

    - ``metadata``: the identity of the execution.
    - ``limits``: how large names and values may be.

    Example:

        store = DataStore(Metadata("run-1", "acme", "checkout", 1, datetime.now(UTC)))
        store.set_variable("total", 12)
    """

    __slots__ = ("_is_read_only", "_limits", "_lock", "_loops", "_steps", "_trigger", "_variables", "metadata")

    def __init__(self, metadata: Metadata, *, limits: Limits = DEFAULT_LIMITS) -> None:
        if not isinstance(metadata, Metadata):
            raise InvalidInput(f"a DataStore is made for a Metadata, not {type(metadata).__name__}")
        if not isinstance(limits, Limits):
            raise InvalidInput(f"limits is a stepwell.Limits(...), not {limits!r}")
        self.metadata = metadata
        self._limits = limits
        self._lock = threading.Lock()
        self._is_read_only = False
        self._trigger: bytes | None = None
        self._steps: dict[str, bytes] = {}
        self._variables: dict[str, Frozen] = {}
        self._loops: dict[str, bytes] = {}

    def __repr__(self) -> str:
        sizes = f"steps={len(self._steps)} variables={len(self._variables)} loops={len(self._loops)}"
        return f"<DataStore {self.metadata.execution_id!r} {sizes}>"

    @classmethod
    def of(cls, state: ExecutionState) -> DataStore:
        """Return a read-only store of an execution's state at one revision.

        - ``state``: the execution's state.
        """
        store, entries = cls(state.identity), state.entries()
        store._trigger = entries["trigger"].get(ONLY)
        # Errors are no outputs: a step that failed is in the run's record of steps.
        store._steps = {name: data for name, data in entries["steps"].items() if decode_step(data).status != StepStatus.FAILED}
        store._loops = entries["loops"]
        # Already canonical, and checked against the limits of the store it comes from.
        store._variables = {name: data if data[0] in b"[{" else decode(data) for name, data in entries["variables"].items()}
        store._is_read_only = True
        return store

    def set_trigger(self, trigger: Trigger | Value) -> None:
        """Record what started the execution, once.

        - ``trigger``: a trigger such as ``ManualTrigger``, or any value.

        Raise ``AlreadyRecorded`` for a second one: the first stays.
        """
        data = encode_trigger(trigger, self._limits)
        with self._writing():
            if self._trigger is not None:
                raise AlreadyRecorded("the trigger is recorded already and is written once; the first one stays")
            self._trigger = data

    def get_trigger(self) -> Trigger | Value:
        """Return what started the execution, or None."""
        data = self._trigger
        return None if data is None else decode_trigger(data)

    def set_step_output(self, name: str, output: StepOutput) -> None:
        """Record a step's output, once per name.

        - ``name``: the step's name.
        - ``output``: its output, with its times.

        Raise ``AlreadyRecorded`` for a second one: the first stays.
        """
        check_key(name, "a step's name", self._limits.key_bytes)
        data = encode_step(output, self._limits)
        with self._writing():
            if self._steps.setdefault(name, data) is not data:
                raise AlreadyRecorded(f"step {name!r} has its output already and is written once; the first one stays")

    def get_step_output(self, name: str) -> StepOutput | None:
        """Return a step's output, or None if there is none, as of a step that failed.

        - ``name``: the step's name.
        """
        data = self._steps.get(name)
        return None if data is None else decode_step(data)

    def get_all_step_outputs(self) -> dict[str, StepOutput]:
        """Return a copy of all step outputs, by name."""
        return {name: decode_step(data) for name, data in self._steps.copy().items()}

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable; the last write wins.

        - ``name``: the variable's name.
        - ``value``: the value; None is one.
        """
        if name not in self._variables:
            check_key(name, "a variable's name", self._limits.key_bytes)
        frozen = freeze(value, self._limits)
        with self._lock:
            if self._is_read_only:
                raise _read_only()
            self._variables[name] = frozen

    def get_variable(self, name: str, default: Value = None) -> Value:
        """Return a copy of a variable's value.

        - ``name``: the variable's name.
        - ``default``: what to return for a variable that was never set.
        """
        frozen = self._variables.get(name, _MISSING)
        if frozen is _MISSING:
            return default
        return decode(frozen) if type(frozen) is bytes else frozen

    def has_variable(self, name: str) -> bool:
        """Return whether a variable was set, even to None.

        - ``name``: the variable's name.
        """
        return name in self._variables

    def get_all_variables(self) -> dict[str, Value]:
        """Return a copy of all variables."""
        return {name: thaw(frozen) for name, frozen in self._variables.copy().items()}

    def set_loop_context(self, loop_id: str, context: LoopContext) -> None:
        """Replace the position of a loop.

        - ``loop_id``: the loop's id.
        - ``context``: the position.

        Raise ``InvalidInput`` if ``context`` belongs to another loop.
        """
        data = encode_loop(context, self._limits)
        if context.loop_id != loop_id:
            raise InvalidInput(f"the context is of loop {context.loop_id!r}, not of {loop_id!r}")
        with self._writing():
            self._loops[loop_id] = data

    def get_loop_context(self, loop_id: str) -> LoopContext | None:
        """Return the position of a loop, or None.

        - ``loop_id``: the loop's id.
        """
        data = self._loops.get(loop_id)
        return None if data is None else decode_loop(data)

    def get_all_loop_contexts(self) -> dict[str, LoopContext]:
        """Return a copy of the positions of all loops."""
        return {name: decode_loop(data) for name, data in self._loops.copy().items()}

    def view(self) -> DataView:
        """Return all sections as they are at one moment, with no write between them."""
        with self._lock:
            trigger, steps = self._trigger, self._steps.copy()
            variables, loops = self._variables.copy(), self._loops.copy()
        return DataView(
            None if trigger is None else decode_trigger(trigger),
            {name: decode_step(data) for name, data in steps.items()},
            {name: thaw(frozen) for name, frozen in variables.items()},
            {name: decode_loop(data) for name, data in loops.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return metadata, trigger, steps, variables and loops of one moment as plain data that ``json.dumps`` takes."""
        return plain_data({"metadata": self.metadata}) | self.view().to_dict()

    def _writing(self) -> threading.Lock:
        if self._is_read_only:
            raise _read_only()
        return self._lock


def _read_only() -> InvalidInput:
    return InvalidInput("this store shows an execution's state and cannot be written; use well.transaction(execution_id)")
