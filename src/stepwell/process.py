"""The id of this process, which a write checks to notice a fork."""

from __future__ import annotations

import os

__all__ = ["process_id"]

# Asking the system costs more than all else that a write checks, so a fork is noted instead.
_id = os.getpid()


def process_id() -> int:
    """The id of this process, also after a fork."""
    return _id


def _note() -> None:
    global _id  # noqa: PLW0603 - there is one process
    _id = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)
