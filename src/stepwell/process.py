"""The id of this process, which every write checks in order to detect a fork."""

from __future__ import annotations

import os

__all__ = ["process_id"]

# A system call per write costs more than all other checks of a write, so a fork hook updates a variable.
_id = os.getpid()


def process_id() -> int:
    """Return the id of this process, correct also after a fork."""
    return _id


def _note() -> None:
    global _id  # noqa: PLW0603 - there is one process
    _id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)
