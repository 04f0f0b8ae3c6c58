"""A tiny driver of the kernel: steps are functions of their arguments, time is a number, and the order of events is a choice."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from stepwell.flow.definition.node import Definition
from stepwell.kernel.interpreter import Interpreter
from stepwell.kernel.plan import Plan
from stepwell.kernel.protocol import (
    Abandon,
    AttemptFailed,
    Began,
    CancelChild,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    End,
    Event,
    Note,
    RunStep,
    SignalArrived,
    StartChild,
    StepCompleted,
    TimePassed,
    Transition,
)
from stepwell.model.execution_state import ExecutionState, State
from stepwell.model.limits import Limits
from stepwell.model.mutation import Create, SetStatus, SetTrigger
from stepwell.model.record import Metadata, encode_record, encode_trigger
from stepwell.model.validation import plan as plan_batch
from stepwell.model.value import canonical, decode

__all__ = ["Driver", "run"]

Raw = msgspec.Raw
T0 = 1_767_225_600_000


class Driver:
    """Runs one execution in memory. Mutations go through the model's own validation, so an invalid one is an error."""

    def __init__(
        self,
        definition: Definition,
        input: Any = None,
        steps: Mapping[str, Callable[[Any], Any]] | None = None,
        *,
        seed: int | None = None,
        reload: bool = False,
        state: Any = None,
    ) -> None:
        self.plan, self.steps, self.reload = Plan(definition), steps or {}, reload
        self.scoped: Any = state or {}
        self.random = None if seed is None else random.Random(seed)
        self.now_ms = T0
        self.calls: list[tuple[str, Any]] = []
        self.notes: list[Note] = []
        self.cancelled: list[str] = []
        self.end: End | None = None
        self.commits = self.mutations = 0
        self.waiting: list[RunStep | StartChild] = []
        self.messages = 0
        self.inbox: dict[str, Event] = {}
        self.state = State()
        who = Metadata("run", "default", definition.name, definition.version, datetime(2026, 1, 1, tzinfo=UTC))
        self._commit(
            [
                Create(Raw(encode_record(who)), Raw(b"{}")),
                SetTrigger(Raw(encode_trigger(input))),
                SetStatus("RUNNING"),
            ]
        )
        self.kernel = self._fresh()
        self.feed(Began())

    def _fresh(self) -> Interpreter:
        kernel = Interpreter(self.plan, self.state.sections, "run")
        kernel.state = self.scoped
        return kernel

    def _commit(self, batch: list[Any]) -> None:
        plan_batch(self.state, batch, Limits()).apply()
        self.commits += 1
        self.mutations += len(batch)

    def feed(self, event: Event) -> Transition:
        """Give an event to the kernel, commit what it comes to, and note what it asks for."""
        came = self.kernel.handle(event, self.now_ms)
        if came.mutations:
            self._commit(list(came.mutations))
        self.kernel.settle()
        for letter in came.message_keys:
            self.inbox.pop(letter, None)
        for effect in came.effects:
            self._note(effect)
        if came.has_more:
            self.feed(TimePassed())
        return came

    def restart(self) -> None:
        """Lose everything that is not in the state, and take the execution up again."""
        self.kernel = self._fresh()
        self.waiting.clear()
        self.feed(Began())
        for event in list(self.inbox.values()):
            self.feed(event)

    def _note(self, effect: Any) -> None:
        match effect:
            case RunStep() | StartChild():
                self.waiting.append(effect)
            case Abandon(token_id=token_id):
                self.waiting = [each for each in self.waiting if each.token_id != token_id]
            case CancelChild(child_id=child_id):
                self.cancelled.append(child_id)
            case Note():
                self.notes.append(effect)
            case End():
                self.end = effect
            case _:
                raise AssertionError(effect)

    # What the world does.

    def signal(self, name: str, value: Any = None) -> None:
        """Send a signal."""
        self.messages += 1
        event = SignalArrived(str(self.messages), name, value)
        self.inbox[event.message_key] = event
        self.feed(event)

    def child(self, child_id: str, **news: Any) -> None:
        """End a child."""
        self.messages += 1
        self.feed(ChildEnded(str(self.messages), child_id, news))

    def cancel(self) -> None:
        """Ask for the end."""
        self.feed(CancelRequested("cancel"))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ms += round(seconds * 1000)
        self.feed(TimePassed())

    def answer(self, uses: str | None = None, *, key: str | None = None) -> None:
        """Carry out one step that is asked for: of a name or a key, else the first, or by chance one of them."""
        number = 0
        if uses is not None:
            number = next(n for n, each in enumerate(self.waiting) if getattr(each, "uses", "") == uses)
        elif key is not None:
            number = next(n for n, each in enumerate(self.waiting) if each.key == key)
        elif self.random is not None:
            number = self.random.randrange(len(self.waiting))
        asked = self.waiting.pop(number)
        if isinstance(asked, StartChild):
            self.feed(ChildStarted(asked.token_id, asked.key))
            return
        self.calls.append((asked.key, asked.args))
        try:
            output = canonical(self.steps[asked.uses](asked.args) if asked.uses in self.steps else asked.args)
        except Exception as error:  # noqa: BLE001 - however a step fails
            told = {"kind": type(error).__name__, "message": str(error), "code": None}
            names = tuple(kind.__name__ for kind in type(error).__mro__)
            self.feed(AttemptFailed(asked.token_id, asked.key, told, names, attempt=asked.attempt))
            return
        self.feed(StepCompleted(asked.token_id, asked.key, output, attempt=asked.attempt))

    def go(self, most: int = 100_000) -> Driver:
        """Carry out what is asked for until nothing is, letting time pass when only times are waited for."""
        for _ in range(most):
            if self.end is not None:
                return self
            if self.reload:
                self.restart()
                if self.end is not None:
                    return self
            if self.waiting:
                self.answer()
            elif self.kernel.soonest_ms is not None:
                self.now_ms = max(self.now_ms, self.kernel.soonest_ms)
                self.feed(TimePassed())
            else:
                return self
        raise AssertionError("it goes on and on")

    # What came of it.

    @property
    def view(self) -> ExecutionState:
        return ExecutionState(self.state)

    @property
    def output(self) -> Any:
        assert self.end is not None, f"still waits: {self.view.tokens}"
        assert self.end.status == "COMPLETED", self.end
        return self.end.result["output"]

    @property
    def error(self) -> dict[str, Any]:
        assert self.end is not None
        return self.end.result["error"]

    @property
    def keys(self) -> list[str]:
        """The steps that were carried out, in order."""
        return [key for key, _ in self.calls]

    def is_clean(self) -> bool:
        """Whether nothing is left behind."""
        return not self.state.sections["tokens"] and set(self.state.sections["scopes"]) == {"root"}

    def outputs(self) -> dict[str, Any]:
        return {name: decode(data)["output"] for name, data in self.state.sections["steps"].items()}


def run(
    definition: Definition, input: Any = None, steps: Mapping[str, Callable[[Any], Any]] | None = None, **options: Any
) -> Driver:
    """Run a definition to its end."""
    return Driver(definition, input, steps, **options).go()
