"""Seals: what was stored comes back, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepwell.errors import Corrupted
from stepwell.model.checksum import seal, unseal
from stepwell.model.scoped_operations import StoredEntry

PATH, KEY = "custom/default/s", "k"
ROW = StoredEntry(b'{"name":"Ada"}', 7, 1_000, 500, True)


def stored(row: StoredEntry) -> StoredEntry:
    return replace(row, data=seal(PATH, KEY, row))


def test_a_row_comes_back_as_it_was() -> None:
    assert unseal(PATH, KEY, stored(ROW)) == ROW


def test_version_of_a_value_is_stored_unless_it_is_the_first() -> None:
    """T48: in four bytes after the checksum, under a mark of its own; a value of version 1 has neither."""
    assert stored(ROW).data == b"\x01" + bytes.fromhex("90ed02ab") + b'{"name":"Ada"}'
    later = stored(replace(ROW, version=300))
    assert later.data == b"\x04" + bytes.fromhex("b2794bbc") + b"\x00\x00\x01\x2c" + b'{"name":"Ada"}'
    assert unseal(PATH, KEY, later) == replace(ROW, version=300)


def test_a_tombstone_has_no_seal() -> None:
    tomb = StoredEntry(None, 3, 100)
    assert seal(PATH, KEY, tomb) is None
    assert unseal(PATH, KEY, tomb) == tomb


@given(data=st.binary(min_size=1, max_size=60), at=st.integers(min_value=0), bit=st.integers(0, 7), version=st.integers(1, 2**31))
def test_any_flipped_bit_is_found(data: bytes, at: int, bit: int, version: int) -> None:
    """T11."""
    row = stored(replace(ROW, data=data, version=version))
    assert row.data is not None
    flipped = bytearray(row.data)
    flipped[at % len(flipped)] ^= 1 << bit
    assert not unseal(PATH, KEY, replace(row, data=bytes(flipped))).is_sound


@pytest.mark.parametrize(
    "change", [{"revision": 8}, {"expires_ms": 1_001}, {"expires_ms": None}, {"ttl_ms": 501}, {"sliding": False}]
)
def test_everything_about_a_row_is_under_its_seal(change: dict[str, object]) -> None:
    assert not unseal(PATH, KEY, replace(stored(ROW), **change)).is_sound


def test_a_row_of_another_key_or_scope_is_found() -> None:
    assert not unseal(PATH, "other", stored(ROW)).is_sound
    assert not unseal("custom/default/other", KEY, stored(ROW)).is_sound


@pytest.mark.parametrize("data", [b"null", b"true", b"false", b"-1", b"0.5", b'"x"', b"[]", b"{}"])
def test_a_value_that_was_stored_before_there_were_seals_is_taken_as_it_is(data: bytes) -> None:
    row = replace(ROW, data=data)
    assert unseal(PATH, KEY, row) == row


def test_what_is_not_sound_is_not_given_out() -> None:
    with pytest.raises(Corrupted, match="the value of key 'k' in scope 'custom/default/s' does not match its checksum"):
        unseal(PATH, KEY, replace(stored(ROW), revision=8)).checked(PATH, KEY)
    assert not unseal(PATH, KEY, replace(ROW, data=b"")).is_sound
