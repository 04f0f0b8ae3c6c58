"""What the kernel asks of its driver, once the mutations that came with it are committed."""

from __future__ import annotations

import msgspec

from stepwell.flow.definition.node import ContextRule
from stepwell.model.mutation import Mutation
from stepwell.model.status import Status
from stepwell.model.value import Value

__all__ = ["Abandon", "CancelChild", "Effect", "End", "Note", "RunStep", "StartChild", "Transition"]


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
