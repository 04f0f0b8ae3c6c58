"""Encrypted and compressed values, subjects and their erasure, rotation of keys, on every store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepwell
from stepwell import (
    AlreadyExists,
    Conflict,
    Corrupted,
    EncryptionKeyMissing,
    InvalidInput,
    KeyRing,
    Limits,
    NotFound,
    Scope,
    Stepwell,
    ValueErased,
    step,
    verify_proof,
    workflow,
)
from stepwell.contract.store import Store
from stepwell.model.commit import StateBatch
from stepwell.model.data_key import data_key_path, key_id_of_workspace
from stepwell.model.queue_item import NewItem
from stepwell.model.scoped_operations import Copy, Increment, Put
from stepwell.model.sealed_value import seal_value
from stepwell.stores.sealed_store import SealedStore
from stepwell.testing.conformance.fixtures import MakeStore

MARK = "Zaphod-Beeblebrox"
OLD, NEW = KeyRing.of({"k1": b"1" * 32}), KeyRing.of({"k1": b"1" * 32, "k2": b"2" * 32})
SUBJECT = "user:42"

OpenWell = Callable[..., Stepwell]


@step
async def greet(name: str) -> str:
    return f"hello {name}"


@workflow
async def welcome(name: str) -> str:
    return await greet(name)


@workflow
async def refuse(name: str) -> str:
    raise ValueError(f"{name} is unknown")


@workflow
async def parent(name: str) -> str:
    return await welcome(name)


@workflow
async def patient(name: str) -> str:
    await stepwell.wait_signal("go")
    return name


@pytest.fixture
def store(make_store: MakeStore) -> Iterator[Store]:
    """The store inside, which every well of a test has."""
    made = make_store(stepwell.SystemClock(), Limits())
    made.open()
    yield made
    made.close()


@pytest.fixture
def open_well(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenWell]:
    """Opens wells around one store that outlives them."""
    monkeypatch.setattr(store, "close", lambda: None)
    monkeypatch.setattr(store, "open", lambda: None)
    wells: list[Stepwell] = []

    def make(**options: Any) -> Stepwell:
        wells.append(Stepwell(store, **options))
        return wells[-1]

    yield make
    for each in wells:
        each.close()
    monkeypatch.undo()


def stored_texts(store: Store) -> str:
    """Everything that a store holds of executions, state and the queue, as one text."""
    parts: list[object] = []
    for head in store.find(stepwell_query()):
        parts += [head, store.load(head.execution_id), store.history(head.execution_id, -1, 1000), store.base(head.execution_id)]
    for path in store.scopes():
        parts += [path, store.changes(path, 0)]
    parts += store.items(items_query())
    return repr(parts)


def stepwell_query() -> Any:
    from stepwell.contract.store import ExecutionQuery

    return ExecutionQuery(limit=1000)


def items_query() -> Any:
    from stepwell.model.queue_item import ItemQuery

    return ItemQuery(limit=1000)


def test_no_value_is_stored_in_the_clear_and_everything_reads_as_before(open_well: OpenWell, store: Store) -> None:
    well = open_well(encryption=OLD)
    run = well.start(parent, MARK)
    assert run.result(timeout=20) == f"hello {MARK}"
    item = well.enqueue(welcome, MARK)
    assert item.result(timeout=20) == f"hello {MARK}"
    assert well.queue.list(limit=1)[0].input == MARK
    well.create("by-hand", context={"name": MARK})
    with well.transaction("by-hand") as tx:
        tx.set_variable("name", MARK)
        tx.state(Scope.custom("x")).set("name", MARK)
    well.state.globals.set("name", MARK)
    well.state.globals.copy("name", "copy")
    assert well.state.custom("x").get("name") == MARK
    assert well.state.globals.all() == {"name": MARK, "copy": MARK}
    assert well.load("by-hand").variables == {"name": MARK}
    assert [each["type"] for each in well.receipts("by-hand")[-1].mutations] == ["set_variable", "write_state"]
    assert MARK not in stored_texts(store)
    other = open_well(encryption=OLD, worker=False)
    assert other.load("by-hand").context == {"name": MARK}
    assert other.run(run.execution_id).result() == f"hello {MARK}"
    for name in ("by-hand", run.execution_id):
        found = other.verify(name)
        assert (found.ok, found.unreadable) == (True, 0)


def test_subject_is_found_and_erased_and_every_chain_still_verifies(open_well: OpenWell, store: Store) -> None:
    well = open_well(encryption=OLD, signing_key=b"sign")
    run = well.start(parent, MARK, subject=SUBJECT, execution_id="order-1")
    other = well.start(parent, "somebody else", execution_id="order-2")
    assert (run.result(timeout=20), other.result(timeout=20)) == (f"hello {MARK}", "hello somebody else")
    item = well.enqueue(welcome, MARK, subject=SUBJECT)
    assert item.result(timeout=20) == f"hello {MARK}"
    well.create("by-hand", context={"name": MARK}, subject=SUBJECT)
    profile = well.state.custom("profile")
    profile.set("name", MARK)
    profile.increment("visits")
    profile.hold_data_of(SUBJECT)
    profile.set("city", MARK)
    profile.increment("visits")
    well.fork("by-hand", "copy-of-it")

    (found,) = well.find(SUBJECT)
    names = {each.execution_id for each in found.runs}
    children = {each.execution_id for each in well.executions.list(workflow="welcome")}
    assert names == {"order-1", "by-hand", "copy-of-it", *children} - {child_of(well, "order-2")}
    assert (found.items, found.scopes) == ((item.item_id,), (profile.scope.path,))
    proof = well.export("order-1")

    with pytest.raises(Conflict, match="have not ended"):
        well.erase(SUBJECT)
    (receipt,) = well.erase(SUBJECT, cancel=True)
    assert (receipt.runs, receipt.items, receipt.scopes) == (len(names), 1, 1)
    assert receipt.signature is not None
    assert SUBJECT not in repr(receipt)
    assert well.erasures() == [receipt]

    for reader in (well, open_well(encryption=OLD, signing_key=b"sign", worker=False)):
        for name in names:
            with pytest.raises(ValueErased):
                reader.load(name)
            checked = reader.verify(name)
            assert (checked.ok, checked.problems, checked.unreadable > 0) == (True, (), True)
            assert reader.executions.get(name).status in ("COMPLETED", "CANCELLED")
            assert verify_proof(reader.export(name), key=b"sign").ok
        with pytest.raises(ValueErased):
            reader.run("order-1").result()
        with pytest.raises(ValueErased):
            reader.receipts("order-1")[0].mutations  # noqa: B018 - reading it raises
        with pytest.raises(ValueErased, match="name"):
            reader.state.custom("profile").get("name")
        assert reader.state.custom("profile").keys() == ["city", "name"]
        assert reader.load("order-2").result == {"output": "hello somebody else"}
        erased = next(each for each in reader.queue.list() if each.item_id == item.item_id)
        assert (erased.input, erased.is_erased) == (None, True)
    assert verify_proof(proof, key=b"sign").ok
    assert well.find(SUBJECT) == []
    with pytest.raises(NotFound):
        well.erase(SUBJECT)
    assert SUBJECT not in stored_texts(store)
    again = well.start(welcome, MARK, subject=SUBJECT)
    assert again.result(timeout=20) == f"hello {MARK}"
    assert [each.execution_id for each in well.find(SUBJECT)[0].runs] == [again.execution_id]


def child_of(well: Stepwell, execution_id: str) -> str:
    (found,) = [each for each in well.executions.list() if each.parent_id == execution_id]
    return found.execution_id


def test_live_and_waiting_runs_of_a_subject_end_with_its_erasure(open_well: OpenWell) -> None:
    well = open_well(encryption=OLD)
    run = well.start(patient, MARK, subject=SUBJECT)
    waits = well.enqueue(welcome, MARK, subject=SUBJECT, delay="1h")
    run.signal("other", MARK)
    (receipt,) = well.erase(SUBJECT, cancel=True)
    assert (receipt.runs, receipt.items) == (1, 1)
    assert well.executions.get(run.execution_id).status == "CANCELLED"
    assert waits.state().status == "CANCELLED"
    assert well.verify(run.execution_id).ok


def test_subjects_of_two_workspaces_are_apart(open_well: OpenWell) -> None:
    well = open_well(encryption=OLD, worker=False)
    well.create("a", "acme", {"name": MARK}, subject=SUBJECT)
    well.create("b", "beta", {"name": MARK}, subject=SUBJECT)
    assert {each.workspace for each in well.find(SUBJECT)} == {"acme", "beta"}
    assert [each.workspace for each in well.erase(SUBJECT, workspace="acme", cancel=True)] == ["acme"]
    with pytest.raises(ValueErased):
        well.load("a")
    assert well.load("b").context == {"name": MARK}


def test_value_that_is_moved_elsewhere_is_refused(open_well: OpenWell, store: Store) -> None:
    well = open_well(encryption=OLD, worker=False)
    well.state.globals.set("limit", 100)
    well.state.globals.set("price", 1)
    well.state.workspace("acme").set("limit", 7)
    globals_, acme = Scope.globals().path, Scope.of_workspace("acme").path
    row = store.entries(globals_, ("price",))["price"]
    for path, key in ((globals_, "limit"), (acme, "limit")):
        store.write((StateBatch((Put(path, key, msgspec.Raw(row.data or b"")),)),))
        with pytest.raises(Corrupted, match="another place"):
            well.state.at(Scope.parse(path)).get(key)


def test_counters_merges_copies_and_ttls_work_on_encrypted_scopes(open_well: OpenWell, store: Store) -> None:
    well = open_well(encryption=OLD, worker=False)
    state = well.state.custom("numbers")
    state.set("n", 5, ttl="1h")
    assert (state.increment("n", 2), state.get("n")) == (7, 7)
    entry = state.entry("n")
    assert entry is not None
    assert entry.expires_at is not None
    assert state.merge("n", 9, "max") == 9
    state.set("text", MARK, ttl="1h", sliding=True)
    assert state.copy("text", "other") is True
    assert state.copy("absent", "other") is False
    assert state.move("other", "third", scope=Scope.globals()) is True
    assert (state.get("other"), well.state.globals.get("third")) == (None, MARK)
    with well.state.transaction() as tx:
        tx.state(state).set("k", 5)
        tx.state(state).increment("k", 2)
    assert state.get("k") == 7
    assert state.copy("k", "of-k") is True
    assert state.get("of-k") == 7
    revision = state.set("c", 1)
    assert state.compare_and_set("c", 2, revision=revision) > revision
    with pytest.raises(Conflict):
        state.compare_and_set("c", 3, revision=revision)
    assert state.set_if_absent("c", 4) is False
    assert MARK not in stored_texts(store)


def test_rotation_wraps_every_data_key_anew_and_old_keys_can_go(open_well: OpenWell) -> None:
    well = open_well(encryption=OLD, worker=False)
    well.create("a", context={"name": MARK}, subject=SUBJECT)
    well.create("b", "acme", {"name": MARK})
    well.create("c", context={"name": MARK}, subject="user:7")
    well.erase("user:7", cancel=True)
    only_new = KeyRing.of({"k2": b"2" * 32})
    with pytest.raises(EncryptionKeyMissing, match="k1"):
        open_well(encryption=only_new, worker=False).load("a")
    report = open_well(encryption=NEW, worker=False).rotate_keys()
    assert (report.active, report.rewrapped) == ("k2", 3)
    assert open_well(encryption=NEW, worker=False).rotate_keys().rewrapped == 0
    late = open_well(encryption=only_new, worker=False)
    assert [late.load(name).context for name in "ab"] == [{"name": MARK}] * 2
    with pytest.raises(ValueErased):
        late.load("c")


def test_store_with_encrypted_values_is_not_opened_without_its_keys(open_well: OpenWell, store: Store) -> None:
    open_well(encryption=OLD, worker=False).state.globals.set("name", MARK)
    for options in ({}, {"compress_over": 100}, {"encryption": KeyRing.of({"other": b"3" * 32})}):
        with pytest.raises(EncryptionKeyMissing):
            open_well(worker=False, **options).state.globals.get("name")
    with pytest.raises(Corrupted, match="key is another"):
        open_well(worker=False, encryption=KeyRing.of({"k1": b"4" * 32})).state.globals.get("name")
    lost = data_key_path("default", key_id_of_workspace("default"))
    assert store.totals(lost).keys == 1


def test_large_values_are_compressed_and_small_ones_stay_as_they_are(open_well: OpenWell, store: Store) -> None:
    well = open_well(compress_over=1000)
    large = "lorem ipsum " * 2000
    well.create("a", context={"text": large})
    for number in range(12):  # enough for a snapshot
        with well.transaction("a") as tx:
            tx.set_variable("n", large + str(number))
    well.state.globals.set_many({"large": large, "small": MARK})
    assert well.start(welcome, large).result(timeout=20) == f"hello {large}"
    assert (well.state.globals.get("large"), well.load("a").variables["n"]) == (large, large + "11")
    assert (well.verify("a").ok, verify_proof(well.export("a")).unreadable) == (True, 13)
    rows = store.entries(Scope.globals().path, ("large", "small"))
    assert len(rows["large"].data or b"") < len(large) // 10
    assert rows["small"].data == f'"{MARK}"'.encode()
    with pytest.raises(EncryptionKeyMissing, match="compress_over"):
        open_well(worker=False).health()
    again = open_well(compress_over=1000, worker=False)
    assert again.load("a", at=5).variables["n"] == large + "4"
    assert again.load("a").context == {"text": large}


def test_snapshots_and_archives_are_encrypted(open_well: OpenWell, store: Store, tmp_path: Path) -> None:
    well = open_well(encryption=OLD, worker=False)
    well.create("a", context={"text": MARK}, subject=SUBJECT)
    for number in range(40):
        with well.transaction("a") as tx:
            tx.set_variable("n", f"{MARK}{number}" + os.urandom(4_000).hex())
    loaded = store.load("a")
    assert loaded is not None
    assert loaded.snapshot is not None
    assert well.load("a", at=30).variables["n"].startswith(f"{MARK}29")
    assert well.archive("a", tmp_path / "proof", through=20) == 21
    assert MARK.encode() not in (tmp_path / "proof").read_bytes()
    assert MARK not in stored_texts(store)
    fresh = open_well(encryption=OLD, worker=False)
    assert (fresh.load("a").context, fresh.verify("a").ok) == ({"text": MARK}, True)
    fresh.erase(SUBJECT, cancel=True)
    checked = fresh.verify("a")
    assert (checked.ok, checked.problems) == (True, ())
    assert verify_proof((tmp_path / "proof").read_bytes()).ok
    assert verify_proof(fresh.export("a")).ok


def test_well_without_keys_refuses_subjects_and_bad_settings(open_well: OpenWell, tmp_path: Path) -> None:
    well = open_well(worker=False)
    for call in (
        lambda: well.start(welcome, "x", subject=SUBJECT),
        lambda: well.enqueue(welcome, "x", subject=SUBJECT),
        lambda: well.create("x", subject=SUBJECT),
        lambda: well.find(SUBJECT),
        lambda: well.erase(SUBJECT),
        well.rotate_keys,
        lambda: well.state.globals.hold_data_of(SUBJECT),
    ):
        with pytest.raises(InvalidInput, match="keys"):
            call()
    assert well.executions.list() == []
    bad = tmp_path / "keys.json"
    bad.write_text("{}")
    for options in (
        {"encryption": "nowhere.json"},
        {"encryption": bad},
        {"encryption": 7},
        {"compress_over": -1},
        {"secrets": "password"},
        {"secrets": [7]},
    ):
        with pytest.raises(InvalidInput):
            open_well(**options)


def test_commit_that_is_repeated_under_its_id_lands_once(open_well: OpenWell) -> None:
    well = open_well(encryption=OLD, worker=False)
    first = well.create("a", context={"n": 1}, commit_id="c0", subject=SUBJECT)
    assert well.create("a", context={"n": 1}, commit_id="c0", subject=SUBJECT).digest == first.digest
    with well.transaction("a", commit_id="c1") as tx:
        tx.set_variable("n", 2)
    with well.transaction("a", commit_id="c1") as again:
        again.set_variable("n", 2)
    assert again.receipt is not None
    assert tx.receipt is not None
    assert again.receipt.digest == tx.receipt.digest
    with pytest.raises(Conflict), well.transaction("a", commit_id="c1") as other:
        other.set_variable("n", 3)


def test_cached_state_in_another_process_ends_with_the_key(open_well: OpenWell, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.stores import sealed_store

    monkeypatch.setattr(sealed_store, "_FRESH_SECONDS", 0)
    well, other = open_well(encryption=OLD, worker=False), open_well(encryption=OLD, worker=False)
    well.create("a", context={"name": MARK}, subject=SUBJECT)
    assert other.load("a").context == {"name": MARK}
    well.erase(SUBJECT, cancel=True)
    with pytest.raises(ValueErased):
        other.load("a")


def test_units_of_one_group_see_what_comes_before_them(store: Store) -> None:
    sealed: Any = SealedStore(store, OLD, None)
    path, raw = Scope.custom("group").path, msgspec.Raw
    done = sealed.write(
        (
            StateBatch((Put(path, "n", raw(b"1")),)),
            StateBatch((Increment(path, "n", 4),)),
            StateBatch((Put(path, "text", raw(b'"a"')),)),
            StateBatch((Copy(path, "text", path, "copy"), Copy(path, "none", path, "other"), Copy(path, "n", path, "m"))),
            StateBatch((Put(path, "x", raw(b'"b"')), Copy(path, "x", path, "y", move=True))),
        )
    )
    assert [each.answers[-1] for each in done[1:2]] == [5]
    assert list(done[3].answers) == [True, False, True]
    assert list(done[4].answers)[1] is True
    found = sealed.entries(path, ("n", "m", "text", "copy", "other", "x", "y"))
    assert {key: row.data for key, row in found.items()} == {
        "n": b"5",
        "m": b"5",
        "text": b'"a"',
        "copy": b'"a"',
        "y": b'"b"',
    }


def test_erased_runs_are_no_obstacle_to_usage_retention_and_lists(open_well: OpenWell) -> None:
    well = open_well(encryption=OLD, worker=False)
    for name in ("erased", "kept"):
        well.create(name, context={"name": MARK}, subject=SUBJECT if name == "erased" else None)
        for number in range(5):
            with well.transaction(name) as tx:
                tx.set_variable("n", number)
    well.erase(SUBJECT, cancel=True)
    assert well.usage.workspace("default").amounts["executions"].used == 2
    well.retention.put(payloads=0, receipts=2)
    assert well.retention.apply().problems == ()
    assert (well.verify("erased").ok, well.verify("kept").ok) == (True, True)
    well.retention.put(executions=0)
    assert well.retention.apply().removed == 1
    assert [each.execution_id for each in well.executions.list()] == ["kept"]


def test_run_of_a_subject_that_is_adopted_from_another_store_is_found_and_erased(open_well: OpenWell, tmp_path: Path) -> None:
    with Stepwell(f"sqlite:///{tmp_path}/first.db", encryption=NEW, worker=False) as first:
        first.create("profile", context={"name": MARK}, subject=SUBJECT)
        first.create("second", context={"name": MARK}, subject=SUBJECT)
        snapshots = {name: first.snapshot(name) for name in ("profile", "second")}
        plain = open_well(worker=False)
        with pytest.raises(InvalidInput, match="no keys"):
            plain.restore("profile", snapshots["profile"])
    well = open_well(encryption=OLD, worker=False)
    for name, data in snapshots.items():
        assert well.restore(name, data).context == {"name": MARK}
    assert {each.execution_id for each in well.find(SUBJECT)[0].runs} == {"profile", "second"}
    well.erase(SUBJECT, cancel=True)
    for name, data in snapshots.items():
        with pytest.raises(ValueErased):
            well.load(name)
        with pytest.raises((ValueErased, AlreadyExists)):
            well.restore(name, data)
    well.create("new", subject=SUBJECT)
    with pytest.raises((ValueErased, Conflict)):
        well.restore("profile", snapshots["profile"])


def test_groups_of_errors_forget_what_a_subject_s_run_failed_with(open_well: OpenWell) -> None:
    well = open_well(encryption=OLD)
    run = well.start(refuse, MARK, subject=SUBJECT)
    with pytest.raises(stepwell.ExecutionFailed):
        run.result(timeout=20)
    assert MARK in well.errors.list()[0].example
    well.erase(SUBJECT)
    assert well.errors.list() == []


def test_item_that_does_not_open_holds_up_no_other_and_ends_as_failed(
    open_well: OpenWell, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim lands together with those of others, which must not be lost with it."""
    monkeypatch.setattr("stepwell.queue.dispatcher._ERROR_DELAY_MS", 10)
    with monkeypatch.context() as patch:
        # The id in the place that an input is bound to: as if the operator of the store had exchanged two inputs.
        patch.setattr(SealedStore, "_sealed_item", _of_another)
        bad = open_well(encryption=OLD, worker=False).enqueue(welcome, MARK)
    assert store.items(items_query())[0].input.startswith(b'{ "sealed"')
    well = open_well(encryption=OLD)
    good = well.enqueue(welcome, "Ada")
    assert good.result(timeout=20) == "hello Ada"
    with pytest.raises(stepwell.ExecutionFailed, match="does not open"):
        well.queue.item(bad.item_id).result(timeout=20)
    listed = {each.item_id: each for each in well.queue.list()}
    assert listed[good.item_id].input == "Ada"
    assert (listed[bad.item_id].status, listed[bad.item_id].input) == ("FAILED", None)
    assert not listed[bad.item_id].is_erased


def _of_another(_: SealedStore, item: NewItem) -> NewItem:
    sealed = seal_value(item.input, ("item", "default", "another"), (key_id_of_workspace("default"), b"3" * 32), None)
    return msgspec.structs.replace(item, input=sealed)
