"""How far time can be moved without passing over anything: to when the next execution comes due."""

from __future__ import annotations

import math

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.model.status import FINAL
from stepwell.testing.clock import VirtualClock

__all__ = ["horizon"]


def horizon(store: Store, clock: VirtualClock) -> float | None:
    """Seconds until an execution comes due; None while one is held or due, infinite if none ever will without word from outside."""
    now = clock.now_ms()
    heads = [head for head in store.find(ExecutionQuery(limit=10_000)) if head.status not in FINAL]
    if any(head.holder is not None or (head.wake_ms is not None and head.wake_ms <= now) for head in heads):
        return None
    return min((clock.until_ms(head.wake_ms) for head in heads if head.wake_ms is not None), default=math.inf)
