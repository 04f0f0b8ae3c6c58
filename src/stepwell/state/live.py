"""States of executions that this process has at hand, so that a commit need not load one again."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from stepwell.model.execution_state import State

__all__ = ["CachedExecution", "ExecutionCache"]


class CachedExecution:
    """An execution's state in this process. The lock guards it while it is read or brought up to a commit."""

    __slots__ = ("execution_id", "lock", "state", "weighed", "workspace_id")

    def __init__(self, execution_id: str, workspace_id: str, state: State) -> None:
        self.execution_id, self.workspace_id, self.state = execution_id, workspace_id, state
        self.lock = threading.RLock()
        self.weighed = 0
        """What it was last counted as, in bytes."""


class ExecutionCache:
    """The states used last, up to a number and a size; fewer of executions that are over, since hardly anybody comes back to those.
    What it holds may be behind the store; users of it compare heads."""

    def __init__(self, *, most: int = 10_000, most_bytes: int = 256 * 1024 * 1024, most_over: int = 1_000) -> None:
        self._most, self._most_bytes, self._most_over = most, most_bytes, most_over
        self._over: deque[str] = deque()
        self._lock = threading.Lock()
        self._states: OrderedDict[str, CachedExecution] = OrderedDict()
        self._bytes = 0

    def get(self, execution_id: str) -> CachedExecution | None:
        """The state at hand, if any."""
        with self._lock:
            live = self._states.get(execution_id)
            if live is not None:
                self._states.move_to_end(execution_id)
                # A state grows with its commits; what it weighs is looked up whenever it is used.
                self._bytes += live.state.size - live.weighed
                live.weighed = live.state.size
            return live

    def put(self, live: CachedExecution) -> CachedExecution:
        """Keep a state; if another thread was first with the same revision, its object is the one to use."""
        with self._lock:
            known = self._states.get(live.execution_id)
            if known is not None and known.state.receipt == live.state.receipt:
                return known
            self._forget(live.execution_id)
            self._states[live.execution_id] = live
            live.weighed = live.state.size
            self._bytes += live.weighed
            while len(self._states) > self._most or (self._bytes > self._most_bytes and len(self._states) > 1):
                self._forget(next(iter(self._states)))
            return live

    def retire(self, execution_id: str) -> None:
        """An execution is over: its state is at hand until so many others are over."""
        with self._lock:
            self._over.append(execution_id)
            if len(self._over) > self._most_over:
                self._forget(self._over.popleft())

    def forget(self, execution_id: str) -> None:
        """Drop a state that may not match the store."""
        with self._lock:
            self._forget(execution_id)

    def _forget(self, execution_id: str) -> None:
        live = self._states.pop(execution_id, None)
        if live is not None:
            self._bytes -= live.weighed
