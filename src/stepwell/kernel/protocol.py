"""Why something failed, as plain data: a kind, a message, a code, and the step where it happened.

What can happen to an execution of a declared workflow. An event comes from outside; the kernel never asks for one.

What the kernel asks of its driver, once the mutations that came with it are committed.
"""

from __future__ import annotations

from typing import Any

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

_LONGEST = 10_000


def trouble(kind: str, message: str, code: str | None = None) -> Trouble:
    """A failure that the kernel itself found."""
    return {"kind": kind, "message": message[:_LONGEST], "code": code}


def trouble_of(error: BaseException) -> Trouble:
    """A failure that was raised; its code is kept beside its message, not in it."""
    if isinstance(error, StepwellError):
        return trouble(type(error).__name__, error.message, error.code)
    return trouble(type(error).__name__, str(error))


class Began(msgspec.Struct, frozen=True, gc=False):
    """A driver took the execution up: for the first time, or again after a rest or a crash."""


class StepCompleted(msgspec.Struct, frozen=True, gc=False):
    """An attempt at a step gave an output, in canonical bytes."""

    token_id: str
    key: str
    output: bytes
    took_ms: int = 0


class AttemptFailed(msgspec.Struct, frozen=True, gc=False):
    """An attempt at a step failed."""

    token_id: str
    key: str
    error: dict[str, Value]
    names: tuple[str, ...] = ()
    """All names of the error, for the policy: its classes and its code."""
    is_final: bool = False
    """Whether another attempt could not do better."""
    policy: Retry | None = None
    """The policy that the step was registered with, if it has one."""
    chance: float = 0.0
    """A random number from 0 to 1 for the wait before the next attempt."""


class StepMissing(msgspec.Struct, frozen=True, gc=False):
    """This driver cannot make a step: it does not know it. Another one may."""

    token_id: str
    key: str
    uses: str


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """A time may have come."""


class SignalArrived(msgspec.Struct, frozen=True, gc=False):
    """A signal is in the inbox. It stays there until somebody waits for it."""

    letter: str
    """The key of the message; the same message may arrive more than once."""
    name: str
    value: Value


class ChildStarted(msgspec.Struct, frozen=True, gc=False):
    """A child execution exists."""

    token_id: str
    key: str


class ChildEnded(msgspec.Struct, frozen=True, gc=False):
    """A child execution has ended, and the news of it is in the inbox."""

    letter: str
    child_id: str
    news: Value


class CancelRequested(msgspec.Struct, frozen=True, gc=False):
    """Somebody asked for the execution to end."""

    letter: str = ""


Event = (
    Began | StepCompleted | AttemptFailed | StepMissing | TimePassed | SignalArrived | ChildStarted | ChildEnded | CancelRequested
)


class RunStep(msgspec.Struct, frozen=True):
    """Make an attempt at a step; answered by ``StepCompleted`` or ``StepFailed`` with the same token and key."""

    token_id: str
    key: str
    """What the output is recorded under; the step's idempotency key comes from it."""
    uses: str
    """The name of the step; empty for a script."""
    args: Value
    attempt: int
    timeout_seconds: float | None = None
    code: str = ""
    language: str = ""
    is_undo: bool = False
    """Whether it undoes another: that is always allowed, since what it mends is done."""


class StartChild(msgspec.Struct, frozen=True):
    """Start a child execution, unless it exists; answered by ``ChildStarted``, or ``StepFailed`` if it cannot be."""

    token_id: str
    key: str
    child_id: str
    workflow: str
    version: int | None
    input: Value
    rule: ContextRule
    is_detached: bool


class CancelChild(msgspec.Struct, frozen=True):
    """Ask a child execution to end; nobody waits for it any more."""

    child_id: str


class Abandon(msgspec.Struct, frozen=True):
    """Stop the attempt that was asked for with this token; its result is not wanted."""

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
    """What an event came to."""

    mutations: tuple[Mutation, ...]
    """What to commit, whole, before anything else."""
    effects: tuple[Effect, ...]
    """What to do afterwards."""
    letters: tuple[str, ...] = ()
    """Messages that were taken: they leave the inbox with this commit."""
    kept: tuple[str, ...] = ()
    """Those taken since the last commit that stay in the inbox all the same: the execution has failed, and what they were taken for
    is on no record, so they are asked for again if it is retried."""
    is_taken: bool = True
    """Whether the event meant anything; what came too late does not."""
