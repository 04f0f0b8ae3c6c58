"""Messages between a worker and a Lua process, as frames of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["HostReply", "ProcessLimits", "ScriptMessage", "ScriptTask"]


class ProcessLimits(msgspec.Struct, frozen=True):
    """Limits of one process; the first frame that it gets."""

    memory_bytes: int
    """What one script may allocate in Lua."""
    cpu_seconds: int
    """What the process may use in its life."""


class ScriptTask(msgspec.Struct, frozen=True):
    """A script to run."""

    code: str
    input: Any
    workflow: str
    execution_id: str
    step: str
    attempt: int
    now: float
    seed: int
    memory_bytes: int
    depth: int


class ScriptMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a script's process: a call, or the end of the script."""

    kind: str
    """``ask``, ``done`` or ``failed``."""
    name: str = ""
    """Of a call; of a failure ``syntax``, ``error``, ``memory`` or ``value``."""
    arguments: list[Any] = []
    value: Any = None
    printed: list[tuple[str, str]] = []


class HostReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parent's answer to a call."""

    value: Any = None
    error: str | None = None
