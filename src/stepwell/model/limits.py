"""Limits: maximum sizes. Anything larger is refused before any write, with the limit named."""

from __future__ import annotations

import msgspec

from stepwell.errors import InvalidInput

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum sizes of values, names, states, commits and scopes."""

    value_bytes: int = 256 * 1024
    """One value, in canonical bytes."""
    key_bytes: int = 512
    """One id, name or key, in UTF-8."""
    depth: int = 64
    """Lists and objects inside each other."""
    execution_bytes: int = 64 * 1024 * 1024
    """All entries of one execution's state together."""
    commit_mutations: int = 100_000
    """Mutations of one commit."""
    scope_keys: int = 10_000
    """Keys of one state scope."""
    scope_bytes: int = 64 * 1024 * 1024
    """Keys and values of one state scope together."""
    child_depth: int = 100
    """Child executions inside each other; it stops a workflow that calls itself without end."""
    script_ms: int = 5_000
    """How long one script may compute, in milliseconds, without the time of the tools and workflows that it calls."""
    script_memory_bytes: int = 64 * 1024 * 1024
    """What one script may allocate."""
    script_calls: int = 10_000
    """Calls of state, tools and workflows by one script."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            size: object = getattr(self, name)
            if type(size) is not int or size < 1:
                raise InvalidInput(f"Limits({name}=...) is a whole number, 1 or more, not {size!r}")
