"""Health of a well: whether its store can be read and written now, and whether its worker starts what it could."""

from __future__ import annotations

from stepwell.contract.store import Store
from stepwell.errors import LockHeld, StepwellError
from stepwell.model.commit import Acquire
from stepwell.model.ids import NewId
from stepwell.model.lock import probe_lock
from stepwell.model.plain_data import PlainRecord
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.pipeline.store_clock import StoreClock
from stepwell.pipeline.store_writer import StoreWriter
from stepwell.queue.diagnosis import idleness
from stepwell.queue.dispatcher import Dispatcher
from stepwell.runtime.worker import Worker

__all__ = ["Health", "check_health"]

_PROBE_SECONDS = 0.001


class Health(PlainRecord, frozen=True):
    """The health of a store and its worker: for each part ``ok``, or what is wrong with it.

    ``read`` and ``write`` were tried just now. ``commits`` says which damage writes of this process met lately. Where a worker
    runs, ``worker`` says which of its tasks fail, such as its claims, and ``queue`` whether it starts what it could.

    ``clock_skew_ms`` is how far the store's clock is ahead of this machine's. It is no fault: Stepwell goes by the store's.
    """

    is_ok: bool
    parts: dict[str, str]
    clock_skew_ms: int = 0


def check_health(
    store: Store, writer: StoreWriter, worker: Worker | None, dispatcher: Dispatcher | None, clock: StoreClock, new_id: NewId
) -> Operation[Health]:
    """Read from the store and write to it, and report what fails in this process beside that."""
    parts = {"read": "ok", "write": "ok"}
    try:
        yield from read(store.check)
        yield from read(clock.measure)
    except StepwellError as error:
        parts["read"] = str(error)
    try:
        # An empty write would not notice a full disk. This one writes a row that is free again at once, and notifies no waiter.
        yield from write_or_raise(Acquire(probe_lock(), new_id(), _PROBE_SECONDS))
    except LockHeld:
        pass  # by another probe of this very moment, which the store wrote
    except StepwellError as error:
        parts["write"] = str(error)
    # One damaged page may stop all claims or commits, and no probe: so what the worker and the callers meet counts, too.
    parts["commits"] = writer.recent_damage() or "ok"
    if worker is not None:
        parts["worker"] = "; ".join(worker.failures) or "ok"
    if dispatcher is not None:
        try:
            parts["queue"] = yield from read(lambda: idleness(store, dispatcher, clock.now_ms()))
        except StepwellError as error:
            parts["queue"] = str(error)
    return Health(all(state == "ok" for state in parts.values()), parts, clock.skew_ms)
