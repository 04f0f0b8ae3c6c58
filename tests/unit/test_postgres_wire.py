"""Columns of a group in PostgreSQL's format: a value that stands in all of them is packed as any other."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import InvalidInput
from stepwell.stores.postgres.statements import integers, texts


def cells(packed: bytes, kind: int) -> list[bytes | None]:
    """Return the elements of an array, read as the server reads it."""
    dimensions, has_nulls, element, count, first = struct.unpack_from("!iiIii", packed)
    assert (dimensions, has_nulls, element, first) == (1, 1, kind, 1)
    found: list[bytes | None] = []
    at = 20
    for _ in range(count):
        (length,) = struct.unpack_from("!i", packed, at)
        at += 4
        found.append(None if length < 0 else packed[at : at + length])
        at += max(length, 0)
    assert at == len(packed)
    return found


def columns(values: st.SearchStrategy) -> st.SearchStrategy[list]:
    """Some of many values, and some of one."""
    return st.lists(values, max_size=5) | st.builds(lambda value, count: [value] * count, values, st.integers(1, 5))


@given(columns(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.just("long" * 50)))
def test_texts_are_packed_one_by_one(values: list[str | None]) -> None:
    assert cells(texts(values), 25) == [None if value is None else value.encode() for value in values]
    assert texts(iter(values)) == texts(values)


@given(columns(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_integers_are_packed_one_by_one(values: list[int | None]) -> None:
    assert cells(integers(values), 20) == [None if value is None else struct.pack("!q", value) for value in values]


@pytest.mark.parametrize("values", [["\ud800"], ["\ud800", "\ud800"], ["\ud800", "a"]])
def test_half_a_surrogate_pair_is_refused_however_often_it_stands_there(values: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput, match="surrogate"):
            texts(values)
