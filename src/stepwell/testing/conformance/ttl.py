"""TTL: an expired key is absent at once, for readers and writers, and a sweep only frees its space."""

from __future__ import annotations

import pytest

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, LimitExceeded
from stepwell.model.commit import StateBatch, Sweep
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import ABSENT, Clear, Copy, Delete, Increment, StateOp, StoredEntry, Touch
from stepwell.testing.conformance.samples import HOUR, SCOPE, answers, content, put, refused, write, write_state

OTHER = Scope.custom("other", "acme").path
DAY_MS = 24 * HOUR * 1000


def end_of(store: Store, key: str, scope: str = SCOPE) -> float:
    """In how many hours a key ends, by the store's clock; to a tenth, since that clock may go on."""
    ends = store.entries(scope, [key])[key].expires_ms
    assert ends is not None, f"key {key!r} has no end"
    return round((ends - store.now_ms()) / 1000 / HOUR, 1)


def test_key_ends_after_its_ttl(store: Store, clock: FakeClock) -> None:
    earliest = store.now_ms()
    [written] = write_state(store, put("k", ttl=HOUR))
    assert (written.ttl_ms, written.sliding) == (HOUR * 1000, False)
    assert earliest <= written.expires_ms - HOUR * 1000 <= store.now_ms()
    clock.advance(0.9 * HOUR)
    assert content(store) == {"k": 1}
    clock.advance(0.2 * HOUR)
    assert content(store) == {}


def test_expired_key_is_absent_for_every_reader_at_once(store: Store, clock: FakeClock) -> None:
    write_state(store, put("k", ttl=HOUR), put("kept"))
    clock.advance(1.1 * HOUR)
    assert store.entries(SCOPE, ["k", "kept"]).keys() == {"kept"}
    assert [key for key, _ in store.scan(SCOPE)] == ["kept"]
    assert [key for key, _ in store.scan(SCOPE, prefix="k", limit=1)] == ["kept"]


def test_expired_key_is_absent_for_every_operation_at_once(store: Store, clock: FakeClock) -> None:
    ends = ("put", "deleted", "n", "copied", "touched", "expected")
    write_state(store, *(put(key, 5, ttl=HOUR, sliding=key == "touched") for key in ends))
    clock.advance(1.1 * HOUR)
    ops: list[StateOp] = [
        put("put", 1, expected=ABSENT),
        Delete(SCOPE, "deleted"),
        Increment(SCOPE, "n"),
        Copy(SCOPE, "copied", SCOPE, "copy"),
        Touch(SCOPE, "touched"),
    ]
    assert write_state(store, *ops)[1:] == [False, 1, False, False]
    assert content(store) == {"put": 1, "n": 1}
    refused(write(store, StateBatch((put("expected", expected=6),))), Conflict)
    refused(write(store, StateBatch((Delete(SCOPE, "expected", expected=6),))), Conflict)


def test_clear_does_not_count_keys_that_have_expired(store: Store, clock: FakeClock) -> None:
    write_state(store, put("a", ttl=HOUR), put("b", ttl=HOUR), put("kept"))
    clock.advance(1.1 * HOUR)
    assert write_state(store, Clear(SCOPE), put("new"), Clear(SCOPE))[::2] == [1, 1]
    write_state(store, put("c", ttl=HOUR), put("d", ttl=HOUR))
    clock.advance(1.1 * HOUR)
    assert write_state(store, put("c"), Delete(SCOPE, "d"), Clear(SCOPE))[2] == 1
    assert (content(store), store.totals(SCOPE).keys) == ({}, 0)


def test_clear_counts_what_the_units_before_it_left(store: Store, clock: FakeClock) -> None:
    """In one group: a key that had expired and was set again counts, one that was cleared does not."""
    write_state(store, *(put(key, ttl=HOUR) for key in "abc"))
    clock.advance(1.1 * HOUR)
    ops = (put("a"), Delete(SCOPE, "b"), Clear(SCOPE), Clear(SCOPE), put("c"), Clear(SCOPE))
    outcomes = store.write([StateBatch((op,)) for op in ops])
    assert [answers(outcome)[0] for outcome, op in zip(outcomes, ops, strict=True) if isinstance(op, Clear)] == [1, 0, 1]


def test_put_sets_a_ttl_anew_or_takes_it_away(store: Store, clock: FakeClock) -> None:
    write_state(store, put("anew", ttl=HOUR), put("away", ttl=HOUR))
    clock.advance(0.5 * HOUR)
    write_state(store, put("anew", ttl=HOUR), put("away"))
    assert end_of(store, "anew") == 1.0
    clock.advance(9 * HOUR)
    assert content(store) == {"away": 1}


def test_touch_starts_a_sliding_ttl_anew_and_nothing_else(store: Store, clock: FakeClock) -> None:
    """The revision stays: a reader must not break another caller's compare-and-set."""
    [before] = write_state(store, put("k", ttl=HOUR, sliding=True))
    for _ in range(3):
        clock.advance(0.8 * HOUR)
        assert write_state(store, Touch(SCOPE, "k")) == [True]
        assert end_of(store, "k") == 1.0
    after = store.entries(SCOPE, ["k"])["k"]
    assert (after.data, after.revision, after.ttl_ms, after.sliding) == (before.data, before.revision, HOUR * 1000, True)
    assert store.totals(SCOPE).revision == 1
    clock.advance(1.1 * HOUR)
    assert content(store) == {}


def test_touch_does_not_prolong_a_fixed_ttl(store: Store, clock: FakeClock) -> None:
    write_state(store, put("k", ttl=HOUR))
    clock.advance(0.5 * HOUR)
    assert write_state(store, Touch(SCOPE, "k")) == [False]
    assert end_of(store, "k") == 0.5


def test_increment_leaves_a_fixed_ttl_and_starts_a_sliding_one_anew(store: Store, clock: FakeClock) -> None:
    write_state(store, put("fixed", ttl=HOUR), put("sliding", ttl=HOUR, sliding=True))
    clock.advance(0.5 * HOUR)
    write_state(store, Increment(SCOPE, "fixed"), Increment(SCOPE, "sliding"))
    assert (end_of(store, "fixed"), end_of(store, "sliding")) == (0.5, 1.0)
    clock.advance(0.6 * HOUR)
    assert content(store) == {"sliding": 2}


@pytest.mark.parametrize("move", [False, True], ids=["copy", "move"])
def test_copy_takes_the_ttl_along(store: Store, clock: FakeClock, move: bool) -> None:
    write_state(store, put("fixed", ttl=HOUR), put("sliding", ttl=HOUR, sliding=True), put("endless"))
    clock.advance(0.5 * HOUR)
    write_state(store, *(Copy(SCOPE, key, OTHER, key, move=move) for key in ("fixed", "sliding", "endless")))
    assert (end_of(store, "fixed", OTHER), end_of(store, "sliding", OTHER)) == (0.5, 1.0)
    clock.advance(0.6 * HOUR)
    assert content(store, OTHER) == {"sliding": 1, "endless": 1}


def test_expired_key_that_is_set_again_has_a_new_revision(store: Store, clock: FakeClock) -> None:
    [first] = write_state(store, put("k", ttl=HOUR))
    clock.advance(2 * HOUR)
    assert write_state(store, put("k"))[0].revision > first.revision


GROWING = {"put": put("new"), "increment": Increment(SCOPE, "new"), "copy": Copy(OTHER, "k", SCOPE, "new")}


@pytest.mark.parametrize("op", GROWING.values(), ids=GROWING)
def test_expired_keys_do_not_block_a_full_scope(small_store: Store, clock: FakeClock, op: StateOp) -> None:
    """T44: their space is freed as soon as a write needs it, before the next sweep."""
    write_state(small_store, put("a", ttl=HOUR), put("b", ttl=HOUR), put("c"), put("k", scope=OTHER))
    refused(write(small_store, StateBatch((op,))), LimitExceeded)
    clock.advance(1.1 * HOUR)
    assert len(write_state(small_store, op)) == 1
    assert content(small_store).keys() == {"c", "new"}
    write_state(small_store, put("d"))
    refused(write(small_store, StateBatch((put("e"),))), LimitExceeded)


def test_giving_back_space_spares_what_the_unit_before_has_set_again(small_store: Store, clock: FakeClock) -> None:
    write_state(small_store, put("a", ttl=HOUR), put("b", ttl=HOUR), put("c"))
    clock.advance(1.1 * HOUR)
    small_store.write([StateBatch((put("a", "anew"),)), StateBatch((put("d"),))])
    assert content(small_store) == {"a": "anew", "c": 1, "d": 1}


def test_expired_bytes_do_not_block_a_full_scope(small_store: Store, clock: FakeClock) -> None:
    write_state(small_store, put("a", "x" * 80, ttl=HOUR))
    refused(write(small_store, StateBatch((put("b", "x" * 80),))), LimitExceeded)
    clock.advance(1.1 * HOUR)
    write_state(small_store, put("b", "x" * 80))
    assert content(small_store).keys() == {"b"}


def test_space_of_expired_keys_is_not_given_back_for_a_batch_that_is_refused(small_store: Store, clock: FakeClock) -> None:
    write_state(small_store, put("a", ttl=HOUR), put("b"), put("c"))
    clock.advance(1.1 * HOUR)
    before = small_store.totals(SCOPE)
    refused(write(small_store, StateBatch((put("d"), put("e"), put("f", expected=7)))), LimitExceeded)
    refused(write(small_store, StateBatch((put("d"), put("f", expected=7)))), Conflict)
    assert small_store.totals(SCOPE) == before


def swept(store: Store, *, tombstone_ms: int = DAY_MS, limit: int = 1_000) -> int:
    """Return how many expired keys a sweep found."""
    [count] = answers(write(store, Sweep(tombstone_ms, limit)))
    return count


def test_sweep_turns_expired_keys_into_tombstones(store: Store, clock: FakeClock) -> None:
    write_state(store, put("a", ttl=HOUR), put("b", ttl=3 * HOUR), put("c"), put("d", ttl=HOUR, scope=OTHER))
    clock.advance(2 * HOUR)
    assert swept(store) == 2
    assert [(key, row.data) for key, row in store.changes(SCOPE, 3)] == [("a", None)]
    assert (store.totals(SCOPE).keys, store.totals(OTHER).keys) == (2, 0)
    assert swept(store) == 0


def test_sweep_is_limited(store: Store, clock: FakeClock) -> None:
    write_state(store, *(put(f"k{number}", ttl=HOUR) for number in range(5)))
    clock.advance(2 * HOUR)
    assert [swept(store, limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_sweep_drops_tombstones_that_are_old_enough(store: Store, clock: FakeClock) -> None:
    write_state(store, put("a"), put("b"), put("kept"))
    write_state(store, Delete(SCOPE, "a"))
    clock.advance(2 * HOUR)
    write_state(store, Delete(SCOPE, "b"))
    swept(store, tombstone_ms=HOUR * 1000)
    assert [key for key, _ in store.changes(SCOPE, 0)] == ["kept", "b"]
    clock.advance(2 * HOUR)
    swept(store, tombstone_ms=HOUR * 1000)
    assert [key for key, _ in store.changes(SCOPE, 0)] == ["kept"]


def test_revision_grows_over_a_sweep_that_leaves_nothing(store: Store, clock: FakeClock) -> None:
    """A key that comes back after every trace of it was dropped still shows a revision it never had."""
    [first] = write_state(store, put("k"))
    write_state(store, Clear(SCOPE))
    clock.advance(2 * HOUR)
    swept(store, tombstone_ms=0)
    assert store.changes(SCOPE, 0) == []
    [again] = write_state(store, put("k"))
    assert again == StoredEntry(b"1", again.revision)
    assert again.revision > first.revision + 1


def test_swept_key_can_be_set_again(store: Store, clock: FakeClock) -> None:
    write_state(store, put("k", "old", ttl=HOUR))
    clock.advance(2 * HOUR)
    swept(store)
    write_state(store, put("k", "new", expected=ABSENT))
    assert content(store) == {"k": "new"}
    assert store.totals(SCOPE).keys == 1
