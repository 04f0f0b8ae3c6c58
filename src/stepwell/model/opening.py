"""The opening of an execution that a worker runs from its first commit on: who it is, what started it, and that it is running.

All runs from the queue begin with the same three mutations. What these come to is said here once, and not worked out for each run.
"""

from __future__ import annotations

import msgspec

from stepwell.model.mutation import Create, Mutation, SetStatus, SetTrigger
from stepwell.model.record import CancelScope, encode_record
from stepwell.model.state import ONLY
from stepwell.model.status import Status

__all__ = ["ROOT_SCOPE", "Opening", "opening_of"]

ROOT_SCOPE = encode_record(CancelScope("root", None))
"""The entry of the scope that every execution has."""

_RUNS = SetStatus(Status.RUNNING)
_RUNNING = b'"RUNNING"'
_NO_CONTEXT = msgspec.Raw(b"{}")


class Opening(msgspec.Struct, frozen=True, gc=False):
    """The mutations that a new execution begins with."""

    mutations: tuple[Mutation, ...]
    entries: dict[tuple[str, str], bytes]
    """What they come to, by section and key."""


def opening_of(identity: bytes, trigger: bytes) -> Opening:
    """The opening of an execution, by what is stored of its identity and its trigger."""
    raw = msgspec.Raw
    return Opening(
        (Create(raw(identity), _NO_CONTEXT), SetTrigger(raw(trigger)), _RUNS),
        {
            ("identity", ONLY): identity,
            ("status", ONLY): _RUNNING,
            ("step_count", ONLY): b"0",
            ("scopes", "root"): ROOT_SCOPE,
            ("trigger", ONLY): trigger,
        },
    )
