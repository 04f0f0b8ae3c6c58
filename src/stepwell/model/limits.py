"""Limits: maximum sizes. Anything larger is refused before any write, with the limit named."""

from __future__ import annotations

import re

from stepwell.errors import InvalidInput
from stepwell.model.plain_data import PlainRecord

__all__ = ["Limits", "bytes_of"]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?\s*", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def bytes_of(size: object, what: str) -> int:
    """Return a size in bytes, given as a whole number or a text such as ``2GiB`` or ``500 kB``."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) and len(size) < 100 else None
    if found is None:
        raise InvalidInput(f"{what} is a number of bytes or a text such as '2GiB' or '500kB', not {size!r}")
    number, prefix, binary = found.groups(default="")
    return round(float(number) * (1024 if binary else 1000) ** _POWERS[prefix.lower()])


class Limits(PlainRecord, frozen=True, kw_only=True):
    """The maximum sizes of values, names, states, commits and scopes."""

    value_bytes: int = 256 * 1024
    """One value, in canonical bytes."""
    key_bytes: int = 512
    """One id, name or key, in UTF-8."""
    depth: int = 64
    """Lists and objects inside each other."""
    execution_bytes: int = 64 * 1024 * 1024
    """All entries of one execution's state together."""
    execution_keys: int = 1_000_000
    """The number of entries of one execution's state: steps, variables, loops, tokens and the like."""
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
    """The memory that one script may allocate."""
    script_calls: int = 10_000
    """Calls of state, tools and workflows by one script."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            size: object = getattr(self, name)
            if type(size) is not int or size < 1:
                raise InvalidInput(f"Limits({name}=...) is a whole number, 1 or more, not {size!r}")
