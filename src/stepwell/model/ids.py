"""Ids, names and keys: what is allowed, and how new ids are made."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar
from uuid import UUID

from stepwell.errors import InvalidInput, LimitExceeded

__all__ = [
    "MAX_KEY_BYTES",
    "MOST_REVISIONS",
    "Id",
    "NewId",
    "check_id",
    "check_key",
    "check_trace_id",
    "check_variable",
    "child_id_of",
    "id_text",
    "is_made_for",
    "keyed_id_of",
    "new_commit_id",
    "new_id",
    "revision_in",
]

MAX_KEY_BYTES = 512

NewId = Callable[[], str]

Id = str | UUID
"""An id as users give it; a ``uuid.UUID`` stands for its text."""

T = TypeVar("T")


def id_text(given: UUID | T) -> str | T:
    """Return a ``uuid.UUID`` as its text, and anything else as it is."""
    return str(given) if isinstance(given, UUID) else given


def check_key(text: object, what: str, maximum: int | None = None, *, is_fixed: bool = False) -> str:
    """Give back ``text`` if it can address something in every store: a non-empty string without NUL, short in UTF-8.

    A ``uuid.UUID`` is given back as its text.

    ``maximum`` is what ``Limits`` allow, unless it is fixed; without one it is ``MAX_KEY_BYTES``, whatever they allow.
    NUL ends a C string inside some storage engines and a lone surrogate has no UTF-8, so two different ids could meet there.
    Every other character is safe: ids are always bound or encoded, never concatenated.
    """
    if type(text) is not str:
        if isinstance(text, UUID):
            return str(text)
        raise InvalidInput(f"{what} must be a string, not {type(text).__name__}")
    if not text:
        raise InvalidInput(f"{what} is empty; give it at least one character")
    if "\0" in text:
        raise InvalidInput(f"{what} contains the NUL character U+0000; leave it out")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} contains half of a surrogate pair, which is not a character") from None
    if size > (most := MAX_KEY_BYTES if maximum is None else maximum):
        raise LimitExceeded.of("key_bytes", most, size, f"{what}, in bytes,", is_fixed=is_fixed or maximum is None)
    return text


def check_id(text: object, what: str, key_bytes: int) -> str:
    """Return ``text`` if it can be an id: as ``check_key``, and no longer than the limit, which is at most ``MAX_KEY_BYTES``."""
    return check_key(text, what, key_bytes if key_bytes < MAX_KEY_BYTES else None)


def check_variable(name: object, key_bytes: int) -> str:
    """Return ``name`` if code of users may set the variable: as ``check_key``, and none of Stepwell's own, such as ``$spent``."""
    text = check_key(name, "a variable's name", key_bytes)
    if text.startswith("$"):
        raise InvalidInput(f"variable {text!r} is Stepwell's own; choose a name that does not begin with $")
    return text


def check_trace_id(text: object) -> str:
    """Return ``text`` if it can be the id of a trace, as the W3C's Trace Context has it: 32 hexadecimal digits, not all zero."""
    if type(text) is not str or not re.fullmatch(r"[0-9a-f]{32}", text) or not text.strip("0"):
        raise InvalidInput(f"trace_id must be 32 hexadecimal digits in lower case, not all zero, as in a traceparent; not {text!r}")
    return text


_time_ns = time.time_ns

# A generator of our own: a program may seed the shared one, and then two processes would make the same ids.
_random = random.Random(os.urandom(32))  # noqa: S311 - ids must be unique, not secret
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(32)))


def new_id() -> str:
    """Return a fresh id that sorts by the time it was made: 48 bits of milliseconds, 80 random bits."""
    return f"{_time_ns() // 1_000_000 << 80 | _random.getrandbits(80):032x}"


def new_commit_id(revision: int, fresh: str) -> str:
    """Return a new commit id that contains its revision, so that a store finds it without an index."""
    return f"r{revision}.{fresh}"


def child_id_of(parent_id: str, call: str, maximum: int = MAX_KEY_BYTES) -> str:
    """Return the id of a child execution; an id that would be too long contains a digest instead."""
    for parent, name in ((parent_id, call), (_digest(parent_id), call)):
        if len((child_id := f"{parent}:{name}").encode()) <= maximum:
            return child_id
    return f"{_digest(parent_id)}:{_digest(call)}"


def keyed_id_of(workspace_id: str, key: str) -> str:
    """Return the id of a queue item with an idempotency key.

    It follows from the key, so that it is known before the item is stored: a step's requests are stored after its code has ended.
    """
    return _digest(f"{workspace_id}\0{key}")[:32]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def is_made_for(commit_id: str, revision: int) -> bool:
    """Return whether ``new_commit_id`` made an id for this revision. Cheaper than ``revision_in``, since every commit asks."""
    beginning = f"r{revision}."
    return commit_id.startswith(beginning) and len(commit_id) == len(beginning) + 32


_MADE = re.compile(r"r([0-9]{1,10})\.[0-9a-f]{32}", re.ASCII)
MOST_REVISIONS = 2**31
"""The most revisions of an execution. In some stores, a higher one that a user made up would be at another one's place."""


def revision_in(commit_id: str) -> int | None:
    """Return the revision in an id made by ``new_commit_id`` with ``new_id``; None for an id that a user chose."""
    found = _MADE.fullmatch(commit_id)
    revision = MOST_REVISIONS if found is None else int(found[1])
    return revision if revision < MOST_REVISIONS else None
