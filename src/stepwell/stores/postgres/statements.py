"""PostgreSQL's binary format for the few types that this store sends and receives.

Binary, because values then keep their bytes without quoting, and because packing a column of a group is one join.

The statements of one schema, by name, with the schema's name put in as an identifier.
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
    "turn",
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
    """One argument of a statement. Bytes are sent as they are: a bytea, or an array that is packed already."""
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, str):
        return _utf8(value)
    raise TypeError(f"no PostgreSQL type for {type(value).__name__}")


def texts(values: Iterable[str | None]) -> bytes:
    """A ``text[]``."""
    return _array(_TEXT, [*values], _text_cell)


def blobs(values: Iterable[bytes | None]) -> bytes:
    """A ``bytea[]``."""
    return _array(_BYTEA, [*values], _cell)


def integers(values: Iterable[int | None]) -> bytes:
    """A ``bigint[]``."""
    return _array(_BIGINT, [*values], _integer_cell)


def booleans(values: Iterable[bool]) -> bytes:
    """A ``boolean[]``."""
    return _array(_BOOL, [*values], {True: _TRUE, False: _FALSE}.__getitem__)


def _array(kind: int, column: Sequence[Any], pack: Callable[[Any], bytes]) -> bytes:
    cells = pack(column[0]) * len(column) if _is_one_value(column) else b"".join(map(pack, column))
    return _array_head(1, 1, kind, len(column), 1) + cells


def _is_one_value(column: Sequence[object]) -> bool:
    """Whether it is the same value over and over, and need be packed only once: in a group of runs, half of the columns are."""
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
    """The rows of a result, in Python's types."""
    transformer = Transformer(_ADAPTATION)
    transformer.set_pgresult(result, format=Format.BINARY)
    return list(transformer.load_rows(0, result.ntuples, tuple))


class _Adaptation:
    """How values are read, whatever else in this process has told psycopg about the same types."""

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
