"""Health of a well: whether its store can be read and written now, and whether its worker starts what it could."""

from __future__ import annotations

import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.errors import LockHeld, StepwellError
from stepwell.model.commit import Acquire
from stepwell.model.ids import NewId
from stepwell.model.lock import probe_lock
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.queue.diagnosis import idleness
from stepwell.queue.dispatcher import Dispatcher

__all__ = ["Health", "check_health"]

_PROBE_SECONDS = 0.001


class Health(msgspec.Struct, frozen=True):
    """Whether the store serves, and for each part ``ok`` or what is wrong with it: ``read``, ``write`` and, where a worker runs,
    ``queue``: whether it starts what it could."""

    is_ok: bool
    parts: dict[str, str]


def check_health(store: Store, dispatcher: Dispatcher | None, clock: Clock, new_id: NewId) -> Operation[Health]:
    """Read from the store, write to it, and look whether the dispatcher of this process starts what it could, if it has one."""
    parts = {"read": "ok", "write": "ok"}
    try:
        yield from read(store.check)
    except StepwellError as error:
        parts["read"] = str(error)
    try:
        # A write of nothing would not notice a full disk. This one leaves a row that is free again at once, and wakes nobody.
        yield from write_or_raise(Acquire(probe_lock(), new_id(), _PROBE_SECONDS))
    except LockHeld:
        pass  # by another probe of this very moment, which the store wrote
    except StepwellError as error:
        parts["write"] = str(error)
    if dispatcher is not None:
        try:
            parts["queue"] = yield from read(lambda: idleness(store, dispatcher, clock.now_ms()))
        except StepwellError as error:
            parts["queue"] = str(error)
    return Health(all(state == "ok" for state in parts.values()), parts)
