"""Digests: the same for the same state, whatever way led there, in whatever process; and never another encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sample import Chain, atoms, step, story

from stepwell.model.execution_state import EMPTY, ZERO, State, element, sha256_hex, state_digest
from stepwell.model.snapshot import read_snapshot, write_snapshot

GOLDEN = json.loads((Path(__file__).parent / "golden" / "digests.json").read_text())


def golden_digests() -> dict[str, object]:
    """The digests of known values must never change."""
    chain = story()
    return {
        "empty": EMPTY,
        "element": sha256_hex(element(b"variables", "näme", b'{"a":1}').to_bytes(512, "little")),
        "states": [receipt.after for receipt in chain.receipts],
        "receipts": [receipt.digest for receipt in chain.receipts],
        "bodies": [sha256_hex(receipt.body) for receipt in chain.receipts],
        "snapshot": sha256_hex(write_snapshot(chain.state)),
        "signature": sha256_hex(story(key=b"k" * 32).head.signature or b""),
    }


def test_encodings_are_the_ones_that_were_released() -> None:
    """T51: a change here breaks every stored receipt; it needs a new schema number, not a new golden file."""
    assert golden_digests() == GOLDEN


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_digests_are_the_same_in_every_process(seed: str) -> None:
    """T51: restart with another hash seed."""
    code = "import json; from tests.unit.test_digest import golden_digests; print(json.dumps(golden_digests()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == GOLDEN


writes = st.lists(st.tuples(st.sampled_from("abcd"), atoms), max_size=8)


@given(writes, st.randoms())
@settings(max_examples=60, deadline=None)
def test_digest_depends_on_the_state_and_not_on_the_way_to_it(wanted: list[tuple[str, object]], random: object) -> None:
    """T51: in one commit, in many, in another order, with detours."""
    final = dict(wanted)
    at_once, by_steps, detour = Chain(), Chain(), Chain()
    at_once.change(lambda tx: [tx.set_variable(name, value) for name, value in wanted])
    for name, value in wanted:
        by_steps.set(name, value)
    shuffled = list(final.items())
    random.shuffle(shuffled)
    detour.change(lambda tx: [tx.set_variable(name, "else") for name in final])
    detour.change(lambda tx: [tx.set_variable(name, value) for name, value in shuffled])
    assert at_once.state.digest == by_steps.state.digest == detour.state.digest


@given(st.dictionaries(st.sampled_from("abcd"), atoms), st.dictionaries(st.sampled_from("abcd"), atoms))
@settings(max_examples=60, deadline=None)
def test_different_states_have_different_digests(a: dict[str, object], b: dict[str, object]) -> None:
    first, second = Chain(), Chain()
    first.change(lambda tx: [tx.set_variable(name, value) for name, value in a.items()])
    second.change(lambda tx: [tx.set_variable(name, value) for name, value in b.items()])
    assert (first.state.digest == second.state.digest) == (first.view == second.view)


def test_removing_brings_the_digest_back() -> None:
    chain = Chain()
    before = chain.state.digest
    chain.change(lambda tx: tx.add_token("t", node="n"))
    assert chain.state.digest != before
    chain.change(lambda tx: tx.remove_token("t"))
    assert chain.state.digest == before


def test_running_digest_is_that_of_all_entries() -> None:
    chain = story()
    assert chain.state.add_up() == chain.state.accumulator
    assert state_digest(chain.state.accumulator) == chain.state.digest


def test_digest_is_the_same_after_restore() -> None:
    """T51."""
    chain = story()
    _, state = read_snapshot(write_snapshot(chain.state))
    assert state.digest == chain.state.digest
    assert (state.revision, state.receipt, state.size) == (chain.state.revision, chain.state.receipt, chain.state.size)


def test_before_of_a_receipt_is_after_of_the_one_before() -> None:
    """T51: status, times and everything else a commit changes is inside."""
    receipts = story().receipts
    assert receipts[0].before == EMPTY
    assert receipts[0].previous == ZERO
    for last, this in pairwise(receipts):
        assert (this.before, this.previous, this.revision) == (last.after, last.digest, last.revision + 1)


def test_every_section_is_in_the_digest() -> None:
    """T51: the status and the metadata, too."""
    chain = Chain()
    seen = {chain.state.digest}
    for change in (
        lambda tx: tx.set_status("RUNNING"),
        lambda tx: tx.set_metadata({"a": 1}),
        lambda tx: tx.set_trigger(1),
        lambda tx: tx.increment_step_count(),
        lambda tx: tx.set_context({"a": 1}),
        lambda tx: tx.set_variable("a", 1),
        lambda tx: tx.record_step(step("a", 1)),
        lambda tx: tx.enter_scope("a"),
        lambda tx: tx.add_token("a", node="n"),
    ):
        chain.change(change)
        assert chain.state.digest not in seen
        seen.add(chain.state.digest)


def test_address_of_an_entry_is_in_its_element() -> None:
    """The lengths keep section, key and data from flowing into each other."""
    alike = [
        (b"ab", "c", b"d"),
        (b"a", "bc", b"d"),
        (b"a", "b", b"cd"),
        (b"ab", "cd", b""),
        (b"a", "1:b", b""),
        (b"a1", "b", b""),
    ]
    numbers = {element(*parts) for parts in alike}
    assert len(numbers) == len(alike)
    assert all(0 <= number < 2**4096 for number in numbers)


def test_empty_state_is_closed_with_its_own_label() -> None:
    assert State().digest == EMPTY
    assert sha256_hex(bytes(512)) != EMPTY


def test_numbers_remembered_for_speed_are_few_and_never_stale() -> None:
    chain = Chain()
    for size in (10, 60, 500, 3):
        for _ in range(2):
            chain.change(lambda tx, size=size: [tx.set_variable(f"v{number}", chain.state.revision) for number in range(size)])
            assert len(chain.state.elements) <= 64
    chain.change(lambda tx: (tx.add_token("t", node="n"), tx.set_variable("v1", "x")))
    chain.change(lambda tx: (tx.remove_token("t"), tx.set_variable("v1", "x")))
    chain.change(lambda tx: (tx.add_token("t", node="n"), tx.set_variable("v1", "y")))
    assert chain.state.add_up() == chain.state.accumulator
