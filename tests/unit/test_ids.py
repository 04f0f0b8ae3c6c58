"""Ids, names and keys: what may be one, and that new ones are in order and never meet."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sample import keys

from stepwell.errors import InvalidInput, LimitExceeded
from stepwell.model.ids import check_id, check_key, child_id_of, new_commit_id, new_id, revision_in

ODD_BUT_SAFE = [
    " ", ".", "..", "/", "a:step:b", "a:shared:b", "*", "[a]", "{x}", "%", "%2F", "_", "'", '"', "`", ";", "--", "\n", "\r\n", "\t",
    "\u202e", "\ufeff", "é", "e\u0301", "😀", "health", "ready", "$where", "../../etc/passwd", "Robert'); DROP TABLE executions;--",
    "6F9619FF-8B86-D011-B42D-00CF4FC964FF", "x" * 512, "é" * 256,
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_BUT_SAFE)
def test_any_text_is_an_id(text: str) -> None:
    """T46."""
    assert check_key(text, "execution_id") == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "execution_id is empty"),
        ("a\0b", "NUL"),
        ("\0", "NUL"),
        ("\ud800", "surrogate"),
        ("a\udfff", "surrogate"),
        (None, "must be a string, not NoneType"),
        (7, "must be a string, not int"),
        (b"a", "must be a string, not bytes"),
        (["a"], "must be a string, not list"),
    ],
)
def test_what_cannot_address_anything_is_refused(text: object, reason: str) -> None:
    """T46."""
    with pytest.raises(InvalidInput, match="execution_id") as caught:
        check_key(text, "execution_id")
    assert reason in caught.value.message


@pytest.mark.parametrize("text", ["x" * 513, "é" * 257, "x" * 10_000])
def test_length_is_limited_in_bytes(text: str) -> None:
    """T44, T46."""
    with pytest.raises(LimitExceeded, match=r"raise Limits\(key_bytes=\.\.\.\)") as caught:
        check_key(text, "a state key", 512)
    assert caught.value.actual == len(text.encode())


@pytest.mark.parametrize("key_bytes", [512, 1_000])
def test_where_no_more_is_possible_nobody_is_told_to_raise_a_limit(key_bytes: int) -> None:
    for check in (lambda: check_id("x" * 513, "execution_id", key_bytes), lambda: check_key("x" * 513, "a workspace id")):
        with pytest.raises(LimitExceeded, match="key_bytes=512; make it smaller: more is not possible here"):
            check()


def test_an_id_is_no_longer_than_limits_allow() -> None:
    assert check_id("x" * 10, "execution_id", 10)
    with pytest.raises(LimitExceeded, match=r"key_bytes=10; make it smaller or raise Limits"):
        check_id("x" * 11, "execution_id", 10)


def test_limit_can_be_another() -> None:
    assert check_key("x" * 1000, "id", 1000)
    with pytest.raises(LimitExceeded):
        check_key("abc", "id", 2)


@given(keys)
@settings(max_examples=100, deadline=None)
def test_every_key_survives_the_check(key: str) -> None:
    assert check_key(key, "a key") == key


def test_ids_that_differ_in_case_or_form_are_different_ids() -> None:
    """T46: nothing is normalised."""
    pairs = [("é", "e\u0301"), ("A", "a"), ("1", "1 "), ("ﬁ", "fi")]
    assert all(check_key(a, "id") != check_key(b, "id") for a, b in pairs)


def test_new_ids_never_meet_and_sort_by_time() -> None:
    found = [new_id() for _ in range(2_000)]
    assert len(set(found)) == 2_000
    assert [each[:12] for each in found] == sorted(each[:12] for each in found)
    assert all(len(each) == 32 and check_key(each, "id") for each in found)


HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize("revision", [0, 7, 123_456_789, 2**31 - 1])
def test_commit_id_says_its_revision(revision: int) -> None:
    assert revision_in(new_commit_id(revision, new_id())) == revision


@pytest.mark.parametrize(
    "text",
    [
        "",
        "order-7",
        "r",
        "r.",
        "r7",
        "r7.",
        "r7.abc",
        f"rx.{HEX}",
        f"r-1.{HEX}",
        f"r1e3.{HEX}",
        f"r٣.{HEX}",
        f"R7.{HEX}",
        f" r7.{HEX}",
        f"r7.{HEX}0",
        f"r7.{HEX}\n",
        f"r7.{HEX.upper()}",
        f"r{2**31}.{HEX}",
        f"r{2**32}.{HEX}",
        f"r99999999999999.{HEX}",
    ],
)
def test_an_id_of_the_users_own_says_none(text: str) -> None:
    assert revision_in(text) is None


@given(parent=st.text(min_size=1, max_size=600), call=st.text(min_size=1, max_size=600), maximum=st.integers(129, 512))
def test_ids_of_children_fit_and_say_whose_they_are_as_far_as_there_is_room(parent: str, call: str, maximum: int) -> None:
    child_id = child_id_of(parent, call, maximum)
    assert len(child_id.encode()) <= maximum
    assert child_id == child_id_of(parent, call, maximum)
    assert (child_id == f"{parent}:{call}") is (len(f"{parent}:{call}".encode()) <= maximum)
