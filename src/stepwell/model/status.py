"""Status of an execution and of a step, and the allowed transitions."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["FINAL", "TRANSITIONS", "Status", "StepStatus", "may_follow"]


class Status(StrEnum):
    """The status of an execution."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    COMPLETED = "COMPLETED"
    PARTIALLY_COMPLETED = "PARTIALLY_COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StepStatus(StrEnum):
    """The status of a recorded step."""

    COMPLETED = "COMPLETED"
    PARTIALLY_COMPLETED = "PARTIALLY_COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


_ENDINGS = frozenset({Status.COMPLETED, Status.PARTIALLY_COMPLETED, Status.FAILED, Status.CANCELLED})

# A failed or half-completed execution can be retried: it goes back to PENDING, where a worker finds it.
TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.RUNNING, Status.FAILED, Status.CANCELLED}),
    Status.RUNNING: _ENDINGS | {Status.WAITING, Status.PENDING},
    Status.WAITING: frozenset({Status.RUNNING, Status.PENDING, Status.FAILED, Status.CANCELLED}),
    Status.FAILED: frozenset({Status.PENDING}),
    Status.PARTIALLY_COMPLETED: frozenset({Status.PENDING}),
    Status.COMPLETED: frozenset(),
    Status.CANCELLED: frozenset(),
}

FINAL = _ENDINGS
"""The final statuses. Only a retry changes an execution with one of these."""


def may_follow(before: Status, after: Status) -> bool:
    """Return whether an execution may go from one status to the other."""
    return after in TRANSITIONS[before]
