"""Turns: how soon a thread of this process gets the interpreter from another one, while workers run here.

A worker's loop is busy when there is much to do, and its store's writer is another thread, which needs the interpreter for a moment
after every reply of the store. Python lets it wait for 5 ms each time, and the store stands idle meanwhile: with 1 ms a worker gets
through 40 % more. See docs/design/0018-turns.md.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["TURN_SECONDS", "quick_turns"]

TURN_SECONDS = 0.001

_lock = threading.Lock()
_users = 0
_before = 0.0


@contextmanager
def quick_turns() -> Generator[None]:
    """Have threads give way sooner while this lasts. A shorter interval stays, and so does one that somebody sets meanwhile."""
    global _users, _before  # noqa: PLW0603 - it is the process's setting, and there is one of it
    with _lock:
        _users += 1
        if _users == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, TURN_SECONDS))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and sys.getswitchinterval() == min(_before, TURN_SECONDS):
                sys.setswitchinterval(_before)
