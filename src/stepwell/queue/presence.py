"""Who serves the queue: each dispatcher leaves word of itself in the store, for as long as it lives."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from stepwell.clock import from_ms
from stepwell.contract.store import Store
from stepwell.model.commit import StateBatch
from stepwell.model.entry import Delete, Put
from stepwell.model.scope import Scope
from stepwell.model.value import canonical, decode

__all__ = ["BEAT_SECONDS", "WorkerPresence", "absence", "presence", "workers"]

BEAT_SECONDS = 20.0
_GONE_AFTER_MS = 60_000
_PATH = Scope("worker", "default").path


class WorkerPresence(msgspec.Struct, frozen=True):
    """A process that takes items from the queue."""

    name: str
    engine: str
    workflows: tuple[str, ...]
    queues: tuple[str, ...]
    """The queues that it serves; none named: all."""
    concurrency: int
    seen_at: datetime


def presence(
    name: str, engine: str, workflows: tuple[str, ...], queues: tuple[str, ...], concurrency: int, now_ms: int
) -> StateBatch:
    """The write that says that a dispatcher is there; it fades by itself."""
    told = {"engine": engine, "workflows": list(workflows), "queues": list(queues), "concurrency": concurrency, "seen_ms": now_ms}
    return StateBatch((Put(_PATH, name, msgspec.Raw(canonical(told)), ttl_ms=_GONE_AFTER_MS),))


def absence(name: str) -> StateBatch:
    """The write that says that a dispatcher has gone."""
    return StateBatch((Delete(_PATH, name),))


def workers(store: Store) -> list[WorkerPresence]:
    """Those that were there lately."""
    found: list[WorkerPresence] = []
    for name, row in store.scan(_PATH, limit=10_000):
        told: dict[str, Any] = {} if row.data is None else decode(row.data)
        seen = from_ms(told["seen_ms"])
        found.append(
            WorkerPresence(name, told["engine"], tuple(told["workflows"]), tuple(told["queues"]), told["concurrency"], seen)
        )
    return found
