"""Locks: how they are named in a store, so that no two kinds can ever meet, and how long they may be held."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

from stepwell.errors import InvalidInput
from stepwell.model.ids import check_key

__all__ = ["check_seconds", "conversation_lock", "scheduled_lock", "user_lock"]

_LONGEST_SECONDS = 366 * 24 * 3600


def user_lock(name: str) -> str:
    """The lock that a user calls ``name``."""
    return f"user/{quote(check_key(name, 'a lock name'), safe='')}"


def scheduled_lock(name: str) -> str:
    """The lock of a scheduled job."""
    return f"scheduled/{quote(check_key(name, 'a lock name'), safe='')}"


def conversation_lock(conversation_id: str, workspace: str) -> str:
    """The lock of a conversation of a workspace."""
    parts = check_key(workspace, "a workspace id"), check_key(conversation_id, "a conversation id")
    return "conversation/" + "/".join(quote(part, safe="") for part in parts)


def check_seconds(span: float | timedelta, what: str, *, least: float = 0.001) -> float:
    """A span in seconds, checked before it comes near a store: a TTL of nothing would free a lock and call that success."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not least <= seconds <= _LONGEST_SECONDS:
        raise InvalidInput(f"{what} is a number of seconds from {least:g} to one year, not {span!r}")
    return float(seconds)
