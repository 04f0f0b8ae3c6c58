"""Locks: how they are named in a store, so that no two kinds can ever meet."""

from __future__ import annotations

from urllib.parse import quote

from stepwell.model.ids import check_key

__all__ = ["conversation_lock", "probe_lock", "scheduled_lock", "user_lock"]


def user_lock(name: str) -> str:
    """The lock that a user calls ``name``."""
    return f"user/{quote(check_key(name, 'a lock name'), safe='')}"


def scheduled_lock(name: str) -> str:
    """The lock of a scheduled job."""
    return f"scheduled/{quote(check_key(name, 'a lock name'), safe='')}"


def probe_lock() -> str:
    """The lock that is taken for a moment to see whether the store can be written to."""
    return "health/probe"


def conversation_lock(conversation_id: str, workspace: str) -> str:
    """The lock of a conversation of a workspace."""
    parts = check_key(workspace, "a workspace id"), check_key(conversation_id, "a conversation id")
    return "conversation/" + "/".join(quote(part, safe="") for part in parts)
