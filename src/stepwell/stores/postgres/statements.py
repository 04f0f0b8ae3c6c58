"""The statements of one schema, by name, with the schema's name put in as an identifier."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, cast

from psycopg import sql

from stepwell.stores.sql import read_queries

__all__ = ["address", "channel_of", "fences_of", "in_schema", "statements_of", "turn"]

_QUERIES = {**read_queries("stepwell.stores.postgres"), **read_queries("stepwell.stores.postgres", "queue.sql")}


def in_schema(text: str, schema: str) -> str:
    """The text of one of our own ``.sql`` files with ``{schema}`` in it, for one schema."""
    ours = cast(Any, text)  # it comes from a file of this package, which no type can say
    return sql.SQL(ours).format(schema=sql.Identifier(schema)).as_string(None)


def statements_of(schema: str) -> dict[str, bytes]:
    """Every statement, ready to be sent."""
    return {name: in_schema(text, schema).encode() for name, text in _QUERIES.items()}


def fences_of(schema: str) -> str:
    """The sequence of fences, as the server reads a name."""
    return sql.Identifier(schema, "fences").as_string(None)


def channel_of(schema: str) -> str:
    """The channel of a schema's notifications; a channel's name is cut at 63 bytes, and a digest is short."""
    return f"stepwell_{sha256(schema.encode()).hexdigest()[:32]}"


def turn(schema: str, name: str) -> int:
    """The number by which the server lets one process at a time acquire a lock; two locks that share one merely take turns, too."""
    return int.from_bytes(sha256(f"{schema}\0{name}".encode()).digest()[:8], "big", signed=True)


def address(name: str) -> bytes:
    """The key of a scope or a lock: both may have names that are longer than an index can hold."""
    return sha256(name.encode()).digest()
