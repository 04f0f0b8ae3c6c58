"""Proofs: receipts in a file that anybody can check without the store."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.sample import Chain, story

from stepwell import verify_proof
from stepwell.errors import InvalidInput
from stepwell.model.commit import Loaded
from stepwell.model.receipt_chain import rebuild, write_proof

KEY = b"k" * 32
CHAIN = story(key=KEY)
PROOF = write_proof(CHAIN.head, None, CHAIN.rows, KEY)
UNSIGNED = write_proof(story().head, None, story().rows, None)


def test_proof_verifies_by_itself() -> None:
    result = verify_proof(PROOF)
    assert result.ok
    assert (result.receipts, result.head) == (8, CHAIN.receipts[-1].digest)
    assert verify_proof(PROOF, key=KEY).ok
    assert verify_proof(UNSIGNED).ok


def test_proof_without_the_right_signature_is_found() -> None:
    """T50."""
    assert not verify_proof(PROOF, key=b"another").ok
    assert not verify_proof(UNSIGNED, key=KEY).ok


def test_export_does_not_lend_the_key_to_a_chain_that_was_rewritten() -> None:
    """T50: the proof carries the signature that the head has, not a new one over whatever is there now."""
    forged = Chain()
    for number in range(7):
        forged.set("forged", number)
    head = msgspec.structs.replace(forged.head, signature=CHAIN.head.signature)
    assert not verify_proof(write_proof(head, None, forged.rows, KEY), key=KEY).ok


def test_proof_has_a_line_for_each_receipt_that_people_can_read() -> None:
    first, *lines, last = PROOF.split(b"\n")
    assert msgspec.json.decode(first)["execution_id"] == "run-1"
    assert [msgspec.json.decode(line)["receipt"]["revision"] for line in lines] == list(range(8))
    assert msgspec.json.decode(lines[2])["mutations"][0]["type"] == "record_step"
    assert last == b""


def test_every_flipped_byte_is_found() -> None:
    """T50."""
    unseen = []
    for position in range(len(PROOF)):
        damaged = bytearray(PROOF)
        damaged[position] ^= 1 << (position % 7)
        try:
            if verify_proof(bytes(damaged), key=KEY).ok:
                unseen.append(position)
        except InvalidInput:
            continue
    assert unseen == []


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[:3] + lines[4:],
        lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
        lambda lines: [*lines[:3], lines[3], *lines[3:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0]],
        lambda lines: [*lines, b"{}"],
        lambda lines: [*lines, b"[" * 100_000],
        lambda lines: [*lines[:3], b"", *lines[3:]],
    ],
)
def test_lines_taken_added_or_moved_are_found(change: object) -> None:
    """T50."""
    lines = PROOF.split(b"\n")[:-1]
    assert not verify_proof(b"\n".join([*change(lines), b""])).ok


def test_lines_of_another_execution_are_found() -> None:
    """T50."""
    other = story("run-2")
    foreign = write_proof(other.head, None, other.rows, None).split(b"\n")
    assert not verify_proof(b"\n".join([PROOF.split(b"\n")[0], *foreign[1:]])).ok


def test_proof_of_the_first_part_ends_where_that_ends() -> None:
    part = write_proof(CHAIN.head, None, CHAIN.rows[:4], KEY)
    result = verify_proof(part, key=KEY)
    assert result.ok
    assert (result.receipts, result.head) == (4, CHAIN.receipts[3].digest)


def test_proof_of_an_archived_chain_begins_with_its_snapshot() -> None:
    chain = story(key=KEY)
    chain.archive(4, rebuild(Loaded(chain.head, None, chain.rows[:5]), at=4))
    proof = write_proof(chain.head, chain.base, chain.rows, KEY)
    result = verify_proof(proof, key=KEY)
    assert result.ok
    assert result.receipts == 3
    assert not verify_proof(proof.replace(b'"revision":7', b'"revision":8', 1), key=KEY).ok


def test_proof_of_a_chain_that_is_all_snapshot() -> None:
    chain = Chain()
    chain.archive(0, chain.state)
    assert verify_proof(write_proof(chain.head, chain.base, chain.rows, None)).ok


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"null\n", b"[" * 100_000, b"SQLite format 3\0"], ids=repr)
def test_what_is_no_proof_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a Stepwell proof"):
        verify_proof(data)


def test_newer_proof_is_refused_with_both_versions_named() -> None:
    """T48."""
    with pytest.raises(InvalidInput, match=r"schema 2; this Stepwell reads 'stepwell\.proof' up to 1"):
        verify_proof(PROOF.replace(b'"schema":1', b'"schema":2', 1))
    with pytest.raises(InvalidInput, match=r"stepwell\.snapshot"):
        verify_proof(PROOF.replace(b"stepwell.proof", b"stepwell.snapshot", 1))


def test_proof_of_ids_with_line_breaks_stays_in_its_lines() -> None:
    """T46."""
    chain = Chain("a\nb\u2028\x85\x0b\x0c\x1c", "w\r\n")
    chain.set("v\x0b\x1c\u2029", "text\n\x0b\x1e\x85\u2028")
    proof = write_proof(chain.head, None, chain.rows, None)
    assert verify_proof(proof).ok
