"""The protocol between the interpreter and its driver: events in, effects out, and failures as data.

The driver sends events. After it has committed an event's mutations, it carries out the effects. The kernel never asks for an
event.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stepwell.errors import StepwellError
from stepwell.flow.definition.node import ContextRule
from stepwell.flow.retry import Retry
from stepwell.model.mutation import Mutation
from stepwell.model.status import Status
from stepwell.model.value import Value

__all__ = [
    "Abandon",
    "AttemptFailed",
    "Began",
    "CancelChild",
    "CancelRequested",
    "ChildEnded",
    "ChildStarted",
    "Effect",
    "End",
    "Event",
    "Note",
    "RunPlace",
    "RunStep",
    "SignalArrived",
    "StartChild",
    "StepCompleted",
    "StepMissing",
    "TimePassed",
    "Transition",
    "Trouble",
    "trouble",
    "trouble_of",
]


Trouble = dict[str, Any]

RunPlace = Literal["worker", "external-api"]
"""Where a step may run: with the workflow's other steps, or with the calls to services outside."""

_LONGEST = 10_000


def trouble(kind: str, message: str, code: str | None = None) -> Trouble:
    """Return a failure that the kernel itself found."""
    return {"kind": kind, "message": message[:_LONGEST], "code": code}


def trouble_of(error: BaseException) -> Trouble:
    """Return a raised error as data, with its code beside its message."""
    if isinstance(error, StepwellError):
        return trouble(type(error).__name__, error.message, error.code)
    return trouble(type(error).__name__, str(error))


class Began(msgspec.Struct, frozen=True, gc=False):
    """A driver started the execution, or resumed it after a rest or a crash."""


class StepCompleted(msgspec.Struct, frozen=True, gc=False):
    """An attempt of a step returned an output, in canonical bytes."""

    token_id: str
    key: str
    output: bytes
    took_ms: int = 0
    attempt: int = 1
    """Which attempt it was; the kernel takes the answer of the one that it waits for, and of no other."""


class AttemptFailed(msgspec.Struct, frozen=True, gc=False):
    """An attempt of a step failed."""

    token_id: str
    key: str
    error: dict[str, Value]
    names: tuple[str, ...] = ()
    """All names of the error for the retry policy: its classes and its code."""
    is_final: bool = False
    """Whether another attempt cannot help."""
    policy: Retry | None = None
    """The retry policy that the step was registered with, or None."""
    chance: float = 0.0
    """A random number from 0 to 1, for the jitter of the retry delay. The kernel has no randomness of its own."""
    took_ms: int = 0
    attempt: int = 1
    """Which attempt it was."""


class StepMissing(msgspec.Struct, frozen=True, gc=False):
    """The driver does not know the step. Another driver may know it."""

    token_id: str
    key: str
    uses: str


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """A timer may be due."""


class SignalArrived(msgspec.Struct, frozen=True, gc=False):
    """A signal is in the inbox. It stays there until a wait takes it."""

    message_key: str
    """The key of the message; the same message may arrive more than once."""
    name: str
    value: Value


class ChildStarted(msgspec.Struct, frozen=True, gc=False):
    """A child execution exists."""

    token_id: str
    key: str


class ChildEnded(msgspec.Struct, frozen=True, gc=False):
    """A child execution has ended, and its result is in the inbox."""

    message_key: str
    child_id: str
    news: Value


class CancelRequested(msgspec.Struct, frozen=True, gc=False):
    """A caller asked for the execution to be cancelled, or for a scope or a step of it."""

    message_key: str = ""
    scope: str = ""
    """The name of the scopes to cancel, or the id of one."""
    step: str = ""
    """The key of the step to cancel. If it has not begun, it is cancelled when it begins."""


Event = (
    Began | StepCompleted | AttemptFailed | StepMissing | TimePassed | SignalArrived | ChildStarted | ChildEnded | CancelRequested
)


class RunStep(msgspec.Struct, frozen=True):
    """Run an attempt of a step. The driver answers with ``StepCompleted`` or ``AttemptFailed`` for the same token and key."""

    token_id: str
    key: str
    """The key of the recorded output."""
    uses: str
    """The name of the step; empty for a script."""
    args: Value
    attempt: int
    timeout_seconds: float | None = None
    code: str = ""
    language: str = ""
    is_undo: bool = False
    """Whether it is a compensation, which governance always allows."""
    place: RunPlace = "worker"
    """Where it may run: beside the workflow, or among the calls to other services, for drivers that keep those apart."""
    call_key: str = ""
    """The key of the user's own, if the call has one."""
    summary: str | None = None
    """One line about the call, for people."""

    @property
    def call(self) -> str:
        """The key that the step sees, from which its idempotency key is derived."""
        return f"key:{self.call_key}" if self.call_key else self.key


class StartChild(msgspec.Struct, frozen=True):
    """Start a child execution unless it exists. The driver answers with ``ChildStarted`` or ``AttemptFailed``."""

    token_id: str
    key: str
    child_id: str
    workflow: str
    version: int | None
    input: Value
    rule: ContextRule
    is_detached: bool
    attempt: int = 1
    is_again: bool = False
    """Whether the child is one of an earlier life, which is retried in place if it has failed."""


class CancelChild(msgspec.Struct, frozen=True):
    """Cancel a child execution whose result is not needed any more."""

    child_id: str


class Abandon(msgspec.Struct, frozen=True):
    """Stop the attempt of this token; its result is not needed any more."""

    token_id: str


class Note(msgspec.Struct, frozen=True):
    """Write a message to the log."""

    key: str
    level: str
    message: str
    data: Value = None


class End(msgspec.Struct, frozen=True):
    """The execution has ended."""

    status: Status
    result: dict[str, Value]


Effect = RunStep | StartChild | CancelChild | Abandon | Note | End


class Transition(msgspec.Struct, frozen=True):
    """The result of an event."""

    mutations: tuple[Mutation, ...]
    """Commit these, all at once, before anything else."""
    effects: tuple[Effect, ...]
    """Carry these out after the commit."""
    message_keys: tuple[str, ...] = ()
    """Messages that were taken. They leave the inbox in the same commit."""
    kept: tuple[str, ...] = ()
    """Messages taken since the last commit that stay in the inbox, because the execution failed before a record of their use was
    committed. A retry of the execution takes them again.
    """
    is_taken: bool = True
    """Whether the event had any effect; an event that comes too late has none."""
    has_more: bool = False
    """Whether work is left, since one slice of it was enough: commit, and let the next event, such as ``TimePassed``, go on."""
