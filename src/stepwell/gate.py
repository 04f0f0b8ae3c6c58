"""Gates: what one thread waits at until another one opens it. Nothing but a lock: an interrupt may break an Event."""

from __future__ import annotations

import threading
from contextlib import suppress

__all__ = ["open_gate", "shut_gate"]


def shut_gate() -> threading.Lock:
    """A gate that is shut."""
    gate = threading.Lock()
    gate.acquire()
    return gate


def open_gate(gate: threading.Lock) -> None:
    """Let whoever waits at a gate go on. Anybody may, and more than once."""
    if gate.locked():
        with suppress(RuntimeError):  # another has opened it meanwhile
            gate.release()
