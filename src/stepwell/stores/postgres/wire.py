"""PostgreSQL's binary format for the few types that this store sends and receives.

Binary, because values then keep their bytes without quoting, and because packing a column of a group is one join.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import Format
from psycopg.pq.abc import PGresult
from psycopg.types.bool import BoolBinaryLoader
from psycopg.types.numeric import Int4BinaryLoader, Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader

from stepwell.errors import InvalidInput

__all__ = ["Row", "blobs", "booleans", "encode", "integers", "rows_of", "texts"]

Row = tuple[Any, ...]

_BOOL, _BYTEA, _BIGINT, _INTEGER, _TEXT = 16, 17, 20, 23, 25
_pack_bigint = struct.Struct("!q").pack
_pack_length = struct.Struct("!i").pack
_array_head = struct.Struct("!iiIii").pack
_NULL = _pack_length(-1)
_MOST_CHARACTERS = 64
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
    column = [*values]
    if _is_one_value(column) and (column[0] is None or len(column[0]) <= _MOST_CHARACTERS):
        return _same_texts(column[0], len(column))
    return _array(_TEXT, [None if value is None else _utf8(value) for value in column])


def blobs(values: Iterable[bytes | None]) -> bytes:
    """A ``bytea[]``."""
    return _array(_BYTEA, list(values))


def integers(values: Iterable[int | None]) -> bytes:
    """A ``bigint[]``."""
    column = [*values]
    if _is_one_value(column):
        return _same_integers(column[0], len(column))
    parts = [_NULL if value is None else _BIGINT_LENGTH + _pack_bigint(value) for value in column]
    return _array_head(1, 1, _BIGINT, len(parts), 1) + b"".join(parts)


def _is_one_value(column: Sequence[object]) -> bool:
    """Whether it is the same value over and over: in a group of runs, half of the columns are."""
    return len(column) > 1 and column.count(column[0]) == len(column)


@lru_cache(1_000)
def _same_texts(value: str | None, count: int) -> bytes:
    return _array(_TEXT, [None if value is None else _utf8(value)] * count)


@lru_cache(1_000)
def _same_integers(value: int | None, count: int) -> bytes:
    cell = _NULL if value is None else _BIGINT_LENGTH + _pack_bigint(value)
    return _array_head(1, 1, _BIGINT, count, 1) + cell * count


def booleans(values: Iterable[bool]) -> bytes:
    """A ``boolean[]``."""
    parts = [_TRUE if value else _FALSE for value in values]
    return _array_head(1, 1, _BOOL, len(parts), 1) + b"".join(parts)


def _array(kind: int, items: Sequence[bytes | None]) -> bytes:
    parts = [_NULL if item is None else _pack_length(len(item)) + item for item in items]
    return _array_head(1, 1, kind, len(items), 1) + b"".join(parts)


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
