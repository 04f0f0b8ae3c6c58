"""The ledger: a chain of receipts in which every edit, gap, reorder, splice, cut and rewrite is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest
from tests.unit.sample import NOW, Chain, step, story

from stepwell import Stepwell
from stepwell.errors import Corrupted, NotFound
from stepwell.model import receipt_chain
from stepwell.model.commit import Head, Loaded, StoredCommit
from stepwell.model.execution_state import State, sha256_hex
from stepwell.model.receipt import Receipt, decode_header, encode_header, sign_head
from stepwell.model.receipt_chain import fast_forward, rebuild, replay, snapshot_due, verify
from stepwell.model.snapshot import StoredSnapshot, store_snapshot, stored_state
from stepwell.testing.store_access import parts_of, store_under

replace = msgspec.structs.replace
Rows = list[StoredCommit]


def test_good_chain_verifies() -> None:
    chain = story()
    result = chain.verify()
    assert result.ok
    assert result.problems == ()
    assert result.receipts == len(chain.receipts)
    assert result.head == chain.receipts[-1].digest


def edited(row: StoredCommit, **fields: object) -> StoredCommit:
    return replace(row, header=encode_header(replace(decode_header(row.header), **fields)))


# T50: what can be done to the rows of a store, and the head left as it is.
TAMPERINGS: dict[str, Callable[[Rows, Rows], Rows]] = {
    "delete the first": lambda rows, _: rows[1:],
    "delete one in the middle": lambda rows, _: rows[:3] + rows[4:],
    "cut the tail": lambda rows, _: rows[:-1],
    "cut all": lambda rows, _: [],
    "swap two": lambda rows, _: [*rows[:2], rows[3], rows[2], *rows[4:]],
    "swap two and their revisions": lambda rows, _: [
        *rows[:2],
        replace(rows[3], revision=2),
        replace(rows[2], revision=3),
        *rows[4:],
    ],
    "reverse": lambda rows, _: rows[::-1],
    "repeat one": lambda rows, _: [*rows[:3], rows[2], *rows[3:]],
    "repeat the last": lambda rows, _: [*rows, rows[-1]],
    "repeat the last as the next": lambda rows, _: [*rows, replace(rows[-1], revision=len(rows))],
    "splice one in": lambda rows, other: [*rows[:3], other[3], *rows[4:]],
    "splice the tail": lambda rows, other: [*rows[:4], *other[4:]],
    "splice the body": lambda rows, other: [*rows[:4], replace(rows[4], body=other[1].body), *rows[5:]],
    "take the whole of another": lambda _, other: other,
    "renumber": lambda rows, _: [*rows[:2], replace(rows[2], revision=7), *rows[3:]],
    "no JSON in a header": lambda rows, _: [*rows[:2], replace(rows[2], header=b"\xff"), *rows[3:]],
    "no JSON in a body": lambda rows, _: [*rows[:2], _body(rows[2], b"\xff"), *rows[3:]],
    "an unknown mutation": lambda rows, _: [*rows[:2], _body(rows[2], b'[{"type":"launch"}]'), *rows[3:]],
    "a mutation that breaks a rule": lambda rows, _: [*rows[:3], _body(rows[3], rows[2].body), *rows[4:]],
    "a body as deep as the stack": lambda rows, _: [*rows[:2], _body(rows[2], b"[" * 100_000), *rows[3:]],
    "a newer schema": lambda rows, _: [*rows[:2], edited(rows[2], schema=2), *rows[3:]],
}


def _body(row: StoredCommit, body: bytes) -> StoredCommit:
    """Another body, with the digest in its receipt made to fit."""
    return replace(edited(row, mutations=sha256_hex(body)), body=body)


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_tampering_is_found(tampering: str) -> None:
    """T50."""
    chain, other = story(), story("run-2")
    rows = TAMPERINGS[tampering](list(chain.rows), list(other.rows))
    result = chain.verify(rows)
    assert not result.ok
    assert result.problems


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_tampered_execution_is_not_loaded(tampering: str) -> None:
    """T11, T50: it is quarantined with the reason, never shown as something else."""
    chain, other = story(), story("run-2")
    rows = TAMPERINGS[tampering](list(chain.rows), list(other.rows))
    with pytest.raises(Corrupted, match=r"execution 'run-1' is quarantined: ."):
        rebuild(Loaded(chain.head, None, rows))


@pytest.mark.parametrize("other", [story("run-1", "evil"), story("run-2", "acme")], ids=["workspace", "execution"])
def test_receipts_of_another_execution_or_workspace_are_found(other: Chain) -> None:
    """T50: who it belongs to is inside each receipt, not only in its place."""
    chain = story()
    head = replace(chain.head, digest=other.head.digest)
    assert "belongs to" in chain.verify(other.rows, head=head).problems[0]


FIELDS: dict[str, object] = {
    "schema": 0,
    "execution_id": "run-9",
    "workspace_id": "evil",
    "revision": 9,
    "commit_id": "other",
    "committed_at": NOW.replace(year=2020),
    "mutations": "1" * 64,
    "before": "1" * 64,
    "after": "1" * 64,
    "previous": "1" * 64,
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("position", [0, 3, -1])
def test_edit_of_any_field_of_any_receipt_is_found(field: str, position: int) -> None:
    """T50."""
    chain = story()
    rows = list(chain.rows)
    rows[position] = edited(rows[position], **{field: FIELDS[field]})
    assert rows[position] != chain.rows[position]
    assert not chain.verify(rows).ok


def test_all_fields_of_a_receipt_are_edited_above() -> None:
    assert set(FIELDS) == set(decode_header(story().rows[0].header).__struct_fields__)


def test_every_flipped_byte_is_found() -> None:
    """T11, T50: every byte of every header and body."""
    chain = story()
    for index, row in enumerate(chain.rows):
        for name in ("header", "body"):
            data: bytes = getattr(row, name)
            for position in range(len(data)):
                damaged = bytearray(data)
                damaged[position] ^= 1 << (position % 7)
                rows = [*chain.rows[:index], replace(row, **{name: bytes(damaged)}), *chain.rows[index + 1 :]]
                assert not chain.verify(rows).ok, (index, name, position)


@pytest.mark.parametrize(
    "change", [{"revision": 6}, {"revision": 8}, {"digest": "0" * 64}, {"execution_id": "x"}, {"workspace_id": "x"}]
)
def test_head_that_does_not_fit_is_found(change: dict[str, object]) -> None:
    chain = story()
    assert not chain.verify(head=replace(chain.head, **change)).ok
    with pytest.raises(Corrupted):
        rebuild(Loaded(replace(chain.head, **change), None, chain.rows))


def test_last_receipt_edited_together_with_the_head_is_found() -> None:
    """T50: the links all fit; only the state tells that the digests in the receipt are not its own."""
    chain = story()
    for field, value in (("after", "1" * 64), ("before", "1" * 64), ("mutations", "1" * 64)):
        row = edited(chain.rows[-1], **{field: value})
        head = replace(chain.head, digest=sha256_hex(row.header))
        assert not chain.verify([*chain.rows[:-1], row], head=head).ok
        if field != "before":
            with pytest.raises(Corrupted):
                rebuild(Loaded(head, None, [*chain.rows[:-1], row]))


# Rewriting everything, digests included: found with a key kept outside the store, or with receipts kept elsewhere.


def cut(chain: Chain, length: int) -> tuple[Rows, Head]:
    """The chain as if its last commits had never been, head included."""
    receipt = chain.receipts[length - 1]
    return chain.rows[:length], replace(chain.head, revision=receipt.revision, digest=receipt.digest)


def rewritten(key: bytes | None = None) -> Chain:
    """Another history under the same ids."""
    chain = Chain(key=key)
    for number in range(7):
        chain.set("forged", number)
    return chain


def test_rewritten_chain_is_found_by_the_signature() -> None:
    """T50."""
    chain, forged = story(key=b"secret"), rewritten()
    head = replace(forged.head, signature=chain.head.signature)
    assert "signature does not match" in chain.verify(forged.rows, head=head).problems[0]
    assert not chain.verify(forged.rows, head=replace(forged.head, signature=None)).ok
    assert not chain.verify(forged.rows, head=rewritten(key=b"guessed").head).ok
    assert chain.verify().ok


def test_rewritten_chain_is_found_by_a_kept_receipt() -> None:
    """T50."""
    chain, forged = story(), rewritten()
    assert forged.verify().ok
    for kept in chain.receipts:
        assert "not the one you kept" in forged.verify(anchors=[kept]).problems[0]
    assert chain.verify(anchors=chain.receipts).ok


def test_every_kept_receipt_of_a_revision_is_compared() -> None:
    """T50: two that were kept of one revision cannot both be of the history; the order they are given in says nothing."""
    chain, forged = story(), rewritten()
    good, bad = chain.receipts[3], forged.receipts[3]
    for anchors in ([bad, good], [good, bad]):
        assert "not the one you kept" in chain.verify(anchors=anchors).problems[0]
    assert chain.verify(anchors=[good, good]).ok


def test_tail_cut_together_with_the_head_is_found_by_the_signature() -> None:
    """T50."""
    chain = story(key=b"secret")
    rows, head = cut(chain, 5)
    assert not chain.verify(rows, head=head).ok
    assert not chain.verify(rows, head=replace(head, signature=None)).ok


def test_tail_cut_together_with_the_head_is_found_by_a_kept_receipt() -> None:
    """T50."""
    chain = story()
    rows, head = cut(chain, 5)
    assert chain.verify(rows, head=head).ok
    result = chain.verify(rows, head=head, anchors=[chain.receipts[2], chain.receipts[6]])
    assert result.problems == ("the receipt you kept for revision 6 is gone; history was cut",)


def test_fork_of_a_history_is_found() -> None:
    """T50: two futures of one past; whoever kept a receipt of one sees that it is not the other."""
    one, two = story(), story()
    mine, theirs = one.set("choice", "left"), two.set("choice", "right")
    assert one.receipts[:-1] == two.receipts[:-1]
    assert not two.verify(anchors=[mine]).ok
    assert not one.verify([*one.rows[:-1], two.rows[-1]]).ok
    assert one.verify(anchors=[mine]).ok
    assert mine.digest != theirs.digest


def test_signature_binds_execution_revision_and_receipt() -> None:
    parts = (b"k", "run-1", 3, "d", "a")
    others = [(b"l", "run-1", 3, "d", "a"), (b"k", "run-2", 3, "d", "a"), (b"k", "run-1", 4, "d", "a"),
              (b"k", "run-1", 3, "e", "a"), (b"k", "run-1", 3, "d", "b"), (b"k", 'run-1",3,"d', 3, "d", "a")]  # fmt: skip
    assert sign_head(*parts) == sign_head(*parts)
    assert sign_head(*parts) not in [sign_head(*other) for other in others]


# A chain that begins with a snapshot.


def archived(through: int = 4) -> Chain:
    chain = story()
    state = rebuild(Loaded(chain.head, None, chain.rows[: through + 1]), at=through)
    chain.archive(through, state)
    return chain


def test_archived_chain_verifies_from_its_snapshot() -> None:
    chain = archived()
    result = chain.verify(anchors=story().receipts)
    assert result.ok
    assert result.receipts == 3
    assert rebuild(Loaded(chain.head, chain.base, chain.rows)).digest == chain.state.digest


def reseal(snapshot: StoredSnapshot, data: bytes, accumulator: bytes | None = None) -> StoredSnapshot:
    """A snapshot with other content, whose own digests were made to fit: what an attacker would leave."""
    label, _, body = data.partition(b"\n")
    data = msgspec.json.encode({**msgspec.json.decode(label), "digest": sha256_hex(body)}) + b"\n" + body
    accumulator = accumulator or snapshot.accumulator
    return StoredSnapshot(snapshot.revision, data, accumulator, sha256_hex(data + accumulator))


def test_changed_snapshot_at_the_base_is_found() -> None:
    """T50."""
    chain = archived()
    base = chain.base
    for forged in (
        replace(base, data=base.data.replace(b'"paid":true', b'"paid":fals')),
        replace(base, digest="0" * 64),
        reseal(base, base.data.replace(b'"paid":true', b'"paid":null')),
        reseal(base, base.data.replace(b'"revision":4', b'"revision":3')),
        reseal(base, base.data, bytes(512)),
        archived(5).base,
        store_snapshot(story("run-2").state),
    ):
        chain.base = forged
        assert not chain.verify().ok


def test_base_that_was_replaced_whole_is_found_by_a_kept_receipt() -> None:
    """T50: archived up to its head, a chain is nothing but a snapshot; a kept receipt knows its digests."""
    chain, forged = story(), rewritten()
    kept = chain.receipts[-1]
    chain.archive(7, chain.state)
    forged.archive(7, forged.state)
    assert forged.verify().ok
    assert not forged.verify(anchors=[kept]).ok
    assert chain.verify(anchors=[kept]).ok


def test_base_whose_entries_were_replaced_is_found_by_the_signature() -> None:
    """T50: archived up to its head, no receipt is left to tell the digest of the state; the signature does."""
    chain = story(key=b"secret")
    chain.archive(7, chain.state)
    entries = chain.state.copy_entries()
    entries["variables"]["paid"] = b'"forged"'
    assert chain.verify().ok
    chain.base = store_snapshot(State.of(entries, chain.state.revision, chain.state.receipt, None))
    assert "signature does not match" in chain.verify().problems[0]


def snapshotted() -> tuple[Chain, StoredSnapshot]:
    """A chain long enough that a commit carried a snapshot of the state before it."""
    chain = Chain()
    while not chain.snapshots:
        chain.set("blob", [chain.state.revision, "x" * 20_000])
    chain.set("after", 1)
    return chain, chain.snapshots[0]


def test_snapshot_that_loading_starts_from_is_checked_against_the_chain() -> None:
    """T50: entries edited, accumulator left as it was, digests made to fit; the commits after it would still add up."""
    chain, stored = snapshotted()
    assert verify(chain.head, None, chain.rows, snapshots=[stored]).ok
    forged = reseal(stored, stored.data.replace(b'"version":1', b'"version":9'))
    assert forged.data != stored.data
    result = verify(chain.head, None, chain.rows, snapshots=[forged])
    assert f"the snapshot at revision {stored.revision} is not of the state there" in result.problems[0]


def test_verify_of_a_well_looks_at_the_snapshot_that_loading_starts_from() -> None:
    """T50: written into the store by somebody who knows the format."""
    with Stepwell("memory://") as well:
        well.create("run")
        for number in range(8):
            with well.transaction("run") as tx:
                tx.set_variable("blob", [number, "x" * 20_000])
        assert well.verify("run").ok
        snapshots = kept_snapshots(well)
        snapshots[-1] = reseal(snapshots[-1], snapshots[-1].data.replace(b'"workflow_id":"manual"', b'"workflow_id":"forged"'))
        result = well.verify("run")
    assert not result.ok
    assert "is not of the state there" in result.problems[0]


Snapshots = list[StoredSnapshot]


def travelled() -> tuple[Stepwell, Snapshots]:
    """A well with an execution of many stored snapshots, and these as its store keeps them."""
    well = Stepwell("memory://", worker=False)
    well.create("run", context={"balance": 70})
    for number in range(20):
        with well.transaction("run") as tx:
            tx.set_variable("blob", [number, "x" * 20_000])
    assert len(kept_snapshots(well)) > 2
    return well, kept_snapshots(well)


def kept_snapshots(well: Stepwell) -> Snapshots:
    return store_under(well)._executions.rows["run"].snapshots


def with_other_entries(stored: StoredSnapshot) -> StoredSnapshot:
    """Other entries, with accumulator and digests made to fit."""
    state = stored_state(stored)
    entries = state.copy_entries()
    entries["context"]["balance"] = b"999999"
    return store_snapshot(State.of(entries, state.revision, state.receipt, None))


FORGERIES: dict[str, Callable[[StoredSnapshot], StoredSnapshot]] = {
    "all digests made to fit": with_other_entries,
    "accumulator left as it was": lambda stored: reseal(stored, stored.data.replace(b'"balance":70', b'"balance":9999')),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("which", [0, 1, -1])
def test_forged_snapshot_is_found_wherever_it_is_and_nothing_is_built_on_it(
    which: int, forge: Callable[[StoredSnapshot], StoredSnapshot], tmp_path: Path
) -> None:
    """T50: not only the newest one; also loading an older revision starts from a snapshot."""
    well, snapshots = travelled()
    with well:
        good, at = snapshots[which], snapshots[which].revision
        snapshots[which] = forge(good)
        assert snapshots[which] != good
        assert f"the snapshot at revision {at} is not of the state there" in well.verify("run").problems[0]
        for revision in (at, at + 1):
            for use in (
                lambda revision=revision: well.load("run", at=revision),
                lambda revision=revision: well.fork("run", "branch", at=revision),
                lambda revision=revision: well.diff("run", 0, revision),
                lambda revision=revision: well.archive("run", tmp_path / "proof", through=revision),
            ):
                with pytest.raises(Corrupted, match="execution 'run' is quarantined"):
                    use()
        with pytest.raises(NotFound):
            well.load("branch")
        assert not (tmp_path / "proof").exists()
        assert well.load("run", at=at - 1).context == {"balance": 70}
        snapshots[which] = good
        assert well.verify("run").ok
        assert well.load("run", at=at).context == {"balance": 70}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_no_snapshot_is_handed_out_of_a_state_that_was_built_on_a_forged_one(
    forge: Callable[[StoredSnapshot], StoredSnapshot],
) -> None:
    """T50: it would be found when it is to be restored, which is too late."""
    well, snapshots = travelled()
    with well:
        snapshots[-1] = forge(snapshots[-1])
        parts_of(well).executions.forget("run")
        with pytest.raises(Corrupted, match="execution 'run' is quarantined"):
            well.snapshot("run")


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_newest_state_is_not_loaded_from_a_forged_snapshot(forge: Callable[[StoredSnapshot], StoredSnapshot]) -> None:
    """T50: nor is anything written on it."""
    well, snapshots = travelled()
    with well:
        snapshots[-1] = forge(snapshots[-1])
        parts_of(well).executions.forget("run")
        with pytest.raises(Corrupted, match="execution 'run' is quarantined"):
            well.load("run")
        with pytest.raises(Corrupted, match="execution 'run' is quarantined"), well.transaction("run") as tx:
            tx.set_variable("more", 1)


def test_large_snapshot_is_loaded_without_adding_up_and_verified_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest would take twice as long to load; see docs/design/0005-snapshots.md."""
    monkeypatch.setattr(receipt_chain, "_MOST_ADDED_UP", 4)
    well, snapshots = travelled()
    with well:
        snapshots[-1] = FORGERIES["accumulator left as it was"](snapshots[-1])
        parts_of(well).executions.forget("run")
        assert well.load("run").context == {"balance": 9999}
        assert not well.verify("run").ok


def test_forged_base_is_not_loaded_while_a_receipt_follows_it(tmp_path: Path) -> None:
    """T50: its own receipt is archived, but the next one names the state that it follows."""
    well, _ = travelled()
    with well:
        well.archive("run", tmp_path / "proof", through=10)
        assert well.load("run", at=10).context == {"balance": 70}
        snapshots = kept_snapshots(well)
        snapshots[0] = with_other_entries(snapshots[0])
        assert not well.verify("run").ok
        with pytest.raises(Corrupted, match="not of the state that the receipts name"):
            well.load("run", at=10)


def test_snapshot_does_not_stand_in_for_a_missing_receipt() -> None:
    """T50: where a snapshot is, its revision could be shown without any receipt."""
    well, snapshots = travelled()
    with well:
        at = snapshots[0].revision
        store = store_under(well)
        load = store.load
        store.load = lambda name, to=None, since=None: without(load(name, to, since), at)
        with pytest.raises(Corrupted, match=f"the receipt at revision {at} is missing"):
            well.load("run", at=at)


def without(loaded: Loaded, revision: int) -> Loaded:
    return replace(loaded, commits=[row for row in loaded.commits if row.revision != revision])


def test_state_at_the_head_has_the_receipt_of_the_head() -> None:
    chain = story()
    head = replace(chain.head, digest="0" * 64)
    with pytest.raises(Corrupted, match="not the one in its head"):
        rebuild(Loaded(head, None, chain.rows), at=head.revision)


# Loading.


def test_loading_gives_the_state_of_every_revision() -> None:
    chain, states = Chain(), []
    for number in range(5):
        chain.set("n", number)
        states.append(chain.view)
    for state in states:
        found = rebuild(Loaded(chain.head, None, chain.rows[: state.revision + 1]), at=state.revision)
        assert (found.digest, found.revision) == (state.state_digest, state.revision)


def test_loading_from_a_snapshot_gives_the_same_state_and_digest() -> None:
    chain, stored = snapshotted()
    rows = [row for row in chain.rows if row.revision > stored.revision]
    state = rebuild(Loaded(chain.head, stored, rows))
    assert (state.digest, state.receipt, state.size) == (chain.state.digest, chain.state.receipt, chain.state.size)
    assert state.add_up() == state.accumulator


def test_damaged_snapshot_is_not_loaded() -> None:
    """T11: every 64th byte."""
    chain, stored = snapshotted()
    rows = [row for row in chain.rows if row.revision > stored.revision]
    for name in ("data", "accumulator"):
        data: bytes = getattr(stored, name)
        for position in range(0, len(data), 64 if name == "accumulator" else 4096):
            damaged = bytearray(data)
            damaged[position] ^= 1
            with pytest.raises(Corrupted):
                rebuild(Loaded(chain.head, replace(stored, **{name: bytes(damaged)}), rows))


def test_snapshots_come_by_weight_and_not_by_count() -> None:
    chain = Chain()
    for number in range(50):
        chain.set("small", number)
    assert not snapshot_due(chain.state)
    assert not chain.snapshots
    chain, stored = snapshotted()
    assert stored.revision == chain.state.revision - 2
    assert not snapshot_due(chain.state)


def test_state_behind_the_store_is_brought_up() -> None:
    chain, behind = story(), story()
    chain.set("more", 1)
    chain.set("more", 2)
    assert fast_forward(behind.state, Loaded(chain.head, None, chain.rows[-2:]))
    assert behind.state.digest == chain.state.digest
    assert behind.state.receipt == chain.state.receipt


def test_state_that_went_another_way_is_left_alone() -> None:
    chain, other = story(), story()
    other.set("mine", 1)
    before = other.view
    chain.set("more", 1)
    chain.set("more", 2)
    assert not fast_forward(other.state, Loaded(chain.head, None, chain.rows[-1:]))
    assert other.view == before


def test_replay_checks_the_state_before() -> None:
    chain = Chain()
    state = State()
    replay(state, chain.head, chain.rows[0])
    chain.set("a", 1)
    state.digest = "0" * 64
    with pytest.raises(Exception, match="the state before revision 1"):
        replay(state, chain.head, chain.rows[1])


def test_receipt_says_everything_about_its_commit() -> None:
    chain = Chain()
    receipt = chain.commit([], "mine")
    assert (receipt.mutations, receipt.before) == ((), receipt.after)
    receipt = chain.change(lambda tx: tx.record_step(step("a", {"x": 1})))
    assert (receipt.execution_id, receipt.workspace_id, receipt.revision) == ("run-1", "acme", 2)
    assert receipt.mutations[0]["type"] == "record_step"
    assert receipt.mutations[0]["step"]["output"] == {"x": 1}
    row = chain.rows[-1]
    assert Receipt.read(row.header, row.body) == receipt
    assert receipt.digest == sha256_hex(row.header)
    with pytest.raises(AttributeError):
        receipt.revision = 5


@pytest.mark.parametrize(
    ("column", "value"),
    [("status", "COMPLETED"), ("workflow_id", "another"), ("version", 2), ("parent_id", "someone"), ("status", "no status")],
)
def test_edited_column_of_an_executions_row_is_found(column: str, value: object) -> None:
    """Lists and workers go by the row, so what it says must be what the state says."""
    chain = story()
    result = chain.verify(head=replace(chain.head, **{column: value}))
    assert not result.ok
    assert result.problems[0].startswith(f"the execution's row says {column.removesuffix('_id')} {value!r}, and its state says ")


def test_status_edited_in_the_file_is_found(tmp_path: Path) -> None:
    with Stepwell(f"sqlite:///{tmp_path}/well.db", worker=False) as well:
        well.create("run")
        assert well.verify("run").ok
        store = apsw.Connection(str(tmp_path / "well.db"))
        store.execute("UPDATE executions SET status = 'COMPLETED'")
        store.close()
        [problem] = well.verify("run").problems
        assert problem == "the execution's row says status 'COMPLETED', and its state says 'PENDING'; the row was edited"
        assert well.load("run").status == "PENDING"
