"""What can happen to an execution of a declared workflow. An event comes from outside; the kernel never asks for one."""

from __future__ import annotations

import msgspec

from stepwell.flow.retry import Retry
from stepwell.model.value import Value

__all__ = [
    "AttemptFailed",
    "Began",
    "CancelRequested",
    "ChildEnded",
    "ChildStarted",
    "Event",
    "SignalArrived",
    "StepCompleted",
    "StepMissing",
    "TimePassed",
]


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
