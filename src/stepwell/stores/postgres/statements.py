"""The statements of one schema by name, and the binary format of their arguments and rows.

Binary, because values then need no quoting, and because packing one column of a group is one join of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import Format
from psycopg.pq.abc import PGresult
from psycopg.types.bool import BoolBinaryLoader
from psycopg.types.numeric import Int4BinaryLoader, Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader

from stepwell.errors import InvalidInput
from stepwell.stores.sql_files import read_queries

__all__ = [
    "Row",
    "address",
    "advisory_key",
    "blobs",
    "booleans",
    "channel_of",
    "encode",
    "fences_of",
    "in_schema",
    "integers",
    "rows_of",
    "statements_of",
    "texts",
]


Row = tuple[Any, ...]

_BOOL, _BYTEA, _BIGINT, _INTEGER, _TEXT = 16, 17, 20, 23, 25
_pack_bigint = struct.Struct("!q").pack
_pack_length = struct.Struct("!i").pack
_array_head = struct.Struct("!iiIii").pack
_NULL = _pack_length(-1)
_BIGINT_LENGTH = _pack_length(8)
_TRUE, _FALSE = _pack_length(1) + b"\1", _pack_length(1) + b"\0"


def encode(value: object) -> bytes | None:
    """Encode one argument of a statement. Bytes are sent as they are: a bytea, or an array that is packed already."""
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, str):
        return _utf8(value)
    raise TypeError(f"no PostgreSQL type for {type(value).__name__}")


def texts(values: Iterable[str | None]) -> bytes:
    """Pack a ``text[]``."""
    return _array(_TEXT, [*values], _text_cell)


def blobs(values: Iterable[bytes | None]) -> bytes:
    """Pack a ``bytea[]``."""
    return _array(_BYTEA, [*values], _cell)


def integers(values: Iterable[int | None]) -> bytes:
    """Pack a ``bigint[]``."""
    return _array(_BIGINT, [*values], _integer_cell)


def booleans(values: Iterable[bool]) -> bytes:
    """Pack a ``boolean[]``."""
    return _array(_BOOL, [*values], {True: _TRUE, False: _FALSE}.__getitem__)


def _array(kind: int, column: Sequence[Any], pack: Callable[[Any], bytes]) -> bytes:
    cells = pack(column[0]) * len(column) if _is_one_value(column) else b"".join(map(pack, column))
    return _array_head(1, 1, kind, len(column), 1) + cells


def _is_one_value(column: Sequence[object]) -> bool:
    """Return whether all values are equal, so that one is packed for all: true for half of the columns of a typical group."""
    return len(column) > 1 and column.count(column[0]) == len(column)


def _cell(value: bytes | None) -> bytes:
    return _NULL if value is None else _pack_length(len(value)) + value


def _text_cell(value: str | None) -> bytes:
    if value is None:
        return _NULL
    data = _utf8(value)
    return _pack_length(len(data)) + data


def _integer_cell(value: int | None) -> bytes:
    return _NULL if value is None else _BIGINT_LENGTH + _pack_bigint(value)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{text!r} contains half of a surrogate pair, which is not a character") from None


def rows_of(result: PGresult) -> list[Row]:
    """Return the rows of a result, in Python's types."""
    transformer = Transformer(_ADAPTATION)
    transformer.set_pgresult(result, format=Format.BINARY)
    return list(transformer.load_rows(0, result.ntuples, tuple))


class _Adaptation:
    """Decoding of values, independent of what the process has registered with psycopg for these types."""

    connection: psycopg.BaseConnection[Any] | None = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap()
        for kind, loader in _LOADERS.items():
            self.adapters.register_loader(kind, loader)


_ANY = 0
_LOADERS = {
    _ANY: ByteaBinaryLoader,
    _BOOL: BoolBinaryLoader,
    _BYTEA: ByteaBinaryLoader,
    _BIGINT: Int8BinaryLoader,
    _INTEGER: Int4BinaryLoader,
    _TEXT: TextBinaryLoader,
}
_ADAPTATION = _Adaptation()
_WRITERS: dict[type, Callable[[Any], bytes | None]] = {
    type(None): lambda value: value,
    bytes: lambda value: value,
    bool: lambda value: b"\1" if value else b"\0",
    int: _pack_bigint,
    str: _utf8,
}


_QUERIES = {**read_queries("stepwell.stores.postgres"), **read_queries("stepwell.stores.postgres", "queue.sql")}


def in_schema(text: str, schema: str) -> str:
    """Put a schema's name, quoted, in place of ``{schema}`` in the text of one of the package's ``.sql`` files."""
    ours = cast(Any, text)  # it comes from a file of this package, which no type can say
    return sql.SQL(ours).format(schema=sql.Identifier(schema)).as_string(None)


def statements_of(schema: str) -> dict[str, bytes]:
    """Return every statement by name, ready to be sent."""
    return {name: in_schema(text, schema).encode() for name, text in _QUERIES.items()}


def fences_of(schema: str) -> str:
    """Return the name of the sequence of fencing tokens, quoted."""
    return sql.Identifier(schema, "fences").as_string(None)


def channel_of(schema: str) -> str:
    """Return the channel of a schema's notifications. A digest, since a channel's name is cut at 63 bytes."""
    return f"stepwell_{sha256(schema.encode()).hexdigest()[:32]}"


def advisory_key(schema: str, name: str) -> int:
    """Return the advisory lock under which a named lock is acquired. A collision only serializes two names."""
    return int.from_bytes(sha256(f"{schema}\0{name}".encode()).digest()[:8], "big", signed=True)


def address(name: str) -> bytes:
    """Return the key of a scope or a lock: a digest, since their names may be longer than an index entry."""
    return sha256(name.encode()).digest()
