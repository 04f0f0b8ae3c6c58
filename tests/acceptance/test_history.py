"""History: time travel, differences, forks, archives, restores and deletions; the chain verifies through all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import (
    AlreadyExists,
    Change,
    Conflict,
    FakeClock,
    InvalidInput,
    InvalidSnapshot,
    Limits,
    NotFound,
    ReceiptArchived,
    Status,
    Stepwell,
    verify_proof,
)
from stepwell.model.execution_state import State
from stepwell.model.snapshot import read_snapshot, write_snapshot

KEY = b"a key kept outside the store"


def write(well: Stepwell, execution_id: str, **variables: object) -> None:
    with well.transaction(execution_id) as tx:
        for name, value in variables.items():
            tx.set_variable(name, value)


@pytest.fixture
def run(well: Stepwell) -> str:
    """An execution of six revisions, with n the number of each."""
    well.create("run", workspace="acme", context={"c": 1})
    for number in range(1, 6):
        write(well, "run", n=number)
    return "run"


def test_state_at_any_revision(well: Stepwell, run: str) -> None:
    assert well.load(run, at=0).variables == {}
    for number in range(1, 6):
        state = well.load(run, at=number)
        assert (state.variables, state.revision) == ({"n": number}, number)
        assert state.state_digest == well.receipts(run)[number].after
    assert well.load(run).revision == 5


def test_difference_of_two_revisions(well: Stepwell, run: str) -> None:
    with well.transaction(run) as tx:
        tx.set_variable("new", [1])
        tx.set_context({})
    changes = well.diff(run, 2, 6)
    assert changes == [
        Change("context", "c", before=1),
        Change("variables", "n", 2, 5),
        Change("variables", "new", after=[1]),
    ]
    assert well.diff(run, 6, 2)[1] == Change("variables", "n", 5, 2)
    assert well.diff(run, 3, 3) == []


def test_receipts_can_be_read_in_pages(well: Stepwell, run: str) -> None:
    receipts = well.receipts(run)
    assert [receipt.revision for receipt in receipts] == list(range(6))
    assert well.receipts(run, after=2) == receipts[3:]
    assert well.receipts(run, after=1, limit=2) == receipts[2:4]
    assert well.receipts(run, limit=0) == []
    assert well.receipts(run, after=5) == []


def test_chain_verifies(well: Stepwell, run: str) -> None:
    result = well.verify(run)
    assert (result.ok, result.problems, result.receipts) == (True, (), 6)
    assert result.head == well.receipts(run)[-1].digest
    assert well.verify(run, anchors=well.receipts(run)).ok


def test_kept_receipt_of_another_history_is_told(open_well: OpenWell) -> None:
    """T50."""
    mine, theirs = open_well("memory://"), open_well("memory://")
    for well, value in ((mine, 1), (theirs, 2)):
        well.create("run")
        write(well, "run", n=value)
    result = theirs.verify("run", anchors=mine.receipts("run")[1:])
    assert not result.ok
    assert "not the one you kept" in result.problems[0]


# Fork.


def test_fork_starts_a_new_execution_from_any_revision(well: Stepwell, run: str) -> None:
    receipt = well.fork(run, "branch", at=3)
    assert (receipt.execution_id, receipt.revision) == ("branch", 0)
    state = well.load("branch")
    assert state.variables == {"n": 3}
    assert state.context == {"c": 1}
    assert (state.identity.parent_id, state.identity.workspace_id) == ("run", "acme")
    write(well, "branch", n="own")
    assert well.load(run).variables == {"n": 5}
    assert well.load("branch").variables == {"n": "own"}
    assert well.verify("branch").ok
    assert well.verify(run).ok


def test_fork_of_a_finished_execution_can_go_on(well: Stepwell, run: str) -> None:
    with well.transaction(run) as tx:
        tx.set_status("CANCELLED")
    well.fork(run, "again")
    assert well.load("again").status is Status.PENDING
    write(well, "again", n="more")
    assert well.load(run).status is Status.CANCELLED


def test_fork_begins_with_edited_variables_and_its_receipt_says_so(well: Stepwell, run: str) -> None:
    receipt = well.fork(run, "edited", at=3, input={"order": 8}, variables={"n": [1], "fresh": "x"})
    kinds = [each["type"] for each in receipt.mutations]
    assert kinds == ["restore", "set_variable", "set_variable", "set_trigger"]
    state = well.load("edited")
    assert state.variables == {"n": [1], "fresh": "x"}
    assert state.trigger == {"order": 8}
    assert well.load(run).variables == {"n": 5}
    assert well.verify("edited").ok
    with pytest.raises(InvalidInput, match="Stepwell's own"):
        well.fork(run, "refused", variables={"$own": 1})
    with pytest.raises(InvalidInput, match="variable 'n'"):
        well.fork(run, "refused", variables={"n": {1}})  # type: ignore[dict-item]


def test_fork_to_a_taken_id_is_refused(well: Stepwell, run: str) -> None:
    well.create("taken")
    for taken in ("taken", run):
        with pytest.raises(AlreadyExists, match="choose another id"):
            well.fork(run, taken)
    assert well.load("taken").variables == {}


# Snapshot and restore.


def test_restore_brings_back_the_state_by_a_new_commit(well: Stepwell, run: str) -> None:
    snapshot = well.snapshot(run)
    write(well, run, n=99, other=1)
    state = well.restore(run, snapshot)
    assert state.variables == {"n": 5}
    assert state.revision == 7
    assert well.load(run, at=6).variables == {"n": 99, "other": 1}
    assert well.receipts(run)[-1].after == well.receipts(run)[5].after
    assert well.receipts(run)[-1].mutations[0]["type"] == "restore"
    assert well.verify(run).ok


def test_restore_into_an_empty_store(well: Stepwell, run: str, open_well: OpenWell, tmp_path: Path) -> None:
    snapshot, kept = well.snapshot(run), well.receipts(run)[-1]
    other = open_well(f"sqlite:///{tmp_path}/other.db", signing_key=KEY)
    state = other.restore(run, snapshot)
    assert state == well.load(run)
    assert state.revision == 5
    assert other.verify(run, anchors=[kept]).ok
    assert other.receipts(run) == []
    write(other, run, n=6)
    assert [receipt.revision for receipt in other.receipts(run)] == [6]
    assert other.receipts(run)[0].previous == kept.digest
    assert other.verify(run, anchors=[kept]).ok
    assert other.load(run, at=5).variables == {"n": 5}
    with pytest.raises(NotFound, match="revisions 5 to 6"):
        other.load(run, at=4)


def test_restored_execution_cannot_be_adopted_twice(well: Stepwell, run: str, open_well: OpenWell) -> None:
    other = open_well("memory://")
    other.restore(run, well.snapshot(run))
    other.delete(run)
    with pytest.raises(AlreadyExists):
        other.restore(run, well.snapshot(run))


def test_snapshot_of_another_execution_is_refused(well: Stepwell, run: str) -> None:
    """B4."""
    well.create("other")
    snapshot, before = well.snapshot("other"), well.load(run)
    with pytest.raises(InvalidSnapshot, match="execution id mismatch: the snapshot is of 'other', not of 'run'"):
        well.restore(run, snapshot)
    assert well.load(run) == before
    assert well.load(run).revision == 5


def test_snapshot_of_another_history_under_the_same_id_is_refused(well: Stepwell, run: str, open_well: OpenWell) -> None:
    """B4."""
    other = open_well("memory://")
    other.create("run", workspace="acme")
    for number in range(3):
        write(other, "run", n=number)
    with pytest.raises(InvalidSnapshot, match="not of this execution's history"):
        well.restore(run, other.snapshot("run"))
    for number in range(10):
        write(other, "run", n=number)
    with pytest.raises(InvalidSnapshot, match="not of this execution's history"):
        well.restore(run, other.snapshot("run"))
    assert well.load(run).revision == 5


def test_snapshot_of_another_workspace_under_the_same_id_is_refused(
    well: Stepwell, run: str, open_well: OpenWell, tmp_path: Path
) -> None:
    """B4, T57: even when the revision it claims is archived and cannot be compared."""
    other = open_well("memory://")
    other.create("run", workspace="evil")
    well.archive(run, tmp_path / "proof")
    with pytest.raises(InvalidSnapshot, match="workspace mismatch"):
        well.restore(run, other.snapshot("run"))
    assert well.load(run).identity.workspace_id == "acme"


def test_snapshot_of_another_history_at_the_start_of_the_chain_is_refused(open_well: OpenWell, url: str, tmp_path: Path) -> None:
    """B4: its receipt was archived here; what the chain starts from still says which one it was."""
    here, there = open_well(url), open_well("memory://")
    here.create("run")
    there.restore("run", here.snapshot("run"))
    write(here, "run", who="here")
    write(there, "run", who="there")
    mine, theirs = here.snapshot("run"), there.snapshot("run")
    here.archive("run", tmp_path / "proof")
    for _ in range(2):  # with nothing after the start of the chain, and with a commit
        with pytest.raises(InvalidSnapshot, match="not of this execution's history"):
            here.restore("run", theirs)
        assert here.restore("run", mine).variables == {"who": "here"}
    assert here.load("run").revision == 3
    assert here.verify("run").ok


def test_snapshot_from_before_the_start_of_the_chain_is_restored(well: Stepwell, run: str, tmp_path: Path) -> None:
    """B4: nothing is left here that could tell whether it is of this history."""
    snapshot = well.snapshot(run)
    write(well, run, n=6)
    well.archive(run, tmp_path / "proof")
    well.restore(run, snapshot)
    assert (well.load(run).revision, well.load(run).variables["n"]) == (7, 5)


@pytest.mark.parametrize("through", [None, 5])
def test_snapshot_of_another_state_with_the_receipt_of_this_history_is_refused(
    well: Stepwell, run: str, through: int | None, tmp_path: Path
) -> None:
    """B4: somebody who knows the format can give any entries their digests; the receipt still names the state's own."""
    snapshot, state = read_snapshot(well.snapshot(run))
    entries = state.copy_entries()
    entries["variables"]["n"] = b"99"
    forged = write_snapshot(State.of(entries, snapshot.revision, snapshot.receipt, None))
    if through is not None:
        well.archive(run, tmp_path / "proof", through=through)
    with pytest.raises(InvalidSnapshot, match="not of this execution's history"):
        well.restore(run, forged)
    assert well.load(run).revision == 5


@pytest.mark.parametrize("revision", [-1, -(2**70), 2**31, 2**40, 2**70])
def test_snapshot_of_a_revision_that_cannot_be_is_refused(well: Stepwell, run: str, revision: int) -> None:
    """B4."""
    snapshot, state = read_snapshot(well.snapshot(run))
    forged = write_snapshot(State.of(state.copy_entries(), revision, snapshot.receipt, None))
    with pytest.raises(InvalidSnapshot):
        well.restore(run, forged)
    assert well.load(run).revision == 5
    with Stepwell("memory://", worker=False) as elsewhere, pytest.raises(InvalidSnapshot):
        elsewhere.restore(run, forged)


@pytest.mark.parametrize(
    "data", [b"", b"junk", b"\x80\x04K\x05.", "text", None, b'{"format":"stepwell.snapshot","schema":2,"digest":""}\n{}']
)
def test_what_is_no_snapshot_is_refused(well: Stepwell, run: str, data: bytes) -> None:
    """B4, T48, T59."""
    with pytest.raises(InvalidSnapshot):
        well.restore(run, data)
    with pytest.raises(InvalidSnapshot):
        well.restore("new", data)
    assert well.load(run).revision == 5
    with pytest.raises(NotFound):
        well.load("new")


# Proofs and archives.


def test_exported_proof_verifies_without_the_store(open_well: OpenWell, url: str) -> None:
    well = open_well(url, signing_key=KEY)
    well.create("run")
    write(well, "run", n=1)
    proof = well.export("run")
    assert verify_proof(proof).ok
    assert verify_proof(proof, key=KEY).ok
    assert not verify_proof(proof, key=b"other").ok
    assert not verify_proof(proof.replace(b'"n"', b'"m"'), key=KEY).ok


def test_archived_execution_still_verifies_loads_and_goes_on(open_well: OpenWell, url: str, tmp_path: Path) -> None:
    well = open_well(url, signing_key=KEY)
    well.create("run")
    for number in range(1, 10):
        write(well, "run", n=number)
    receipts, state = well.receipts("run"), well.load("run")
    assert well.archive("run", tmp_path / "first.proof", through=5) == 6
    assert well.receipts("run") == receipts[6:]
    assert well.load("run") == state
    assert well.load("run", at=5).variables == {"n": 5}
    assert well.verify("run", anchors=receipts).ok
    with pytest.raises(NotFound, match="revisions 5 to 9, not 4"):
        well.load("run", at=4)
    archived = verify_proof((tmp_path / "first.proof").read_bytes(), key=KEY)
    assert (archived.ok, archived.receipts, archived.head) == (True, 6, receipts[5].digest)
    write(well, "run", n=10)
    assert well.archive("run", tmp_path / "second.proof") == 5
    second = verify_proof((tmp_path / "second.proof").read_bytes(), key=KEY)
    assert (second.ok, second.receipts) == (True, 5)
    assert well.receipts("run") == []
    assert well.verify("run").ok
    assert verify_proof(well.export("run"), key=KEY).ok
    write(well, "run", n=11)
    assert well.verify("run").ok
    assert well.diff("run", 10, 11) == [Change("variables", "n", 10, 11)]


def test_archiving_what_is_archived_moves_nothing_and_writes_no_file(well: Stepwell, run: str, tmp_path: Path) -> None:
    well.archive(run, tmp_path / "first", through=3)
    assert well.archive(run, tmp_path / "again", through=3) == 0
    assert not (tmp_path / "again").exists()
    with pytest.raises(NotFound):
        well.archive(run, tmp_path / "again", through=2)
    assert well.verify(run).ok


def test_a_very_late_retry_of_an_archived_commit_is_refused(well: Stepwell, tmp_path: Path) -> None:
    """P9, T03: the id is known for ever; where its receipt is, the error says."""
    well.create("run")
    with well.transaction("run", commit_id="pay") as tx:
        tx.set_variable("paid", 1)
    write(well, "run", n=1)
    made = well.receipts("run")[-1].commit_id
    well.archive("run", tmp_path / "proof")
    write(well, "run", n=2)
    before = well.load("run")
    for commit_id in ("pay", made):
        with pytest.raises(ReceiptArchived, match="look in the proof files") as caught:
            well.receipt("run", commit_id)
        assert (caught.value.code, caught.value.execution_id, caught.value.commit_id) == ("SW-207", "run", commit_id)
        with pytest.raises(ReceiptArchived), well.transaction("run", commit_id=commit_id) as tx:
            tx.set_variable("paid", 2)
    assert well.load("run") == before
    assert well.receipt("run", "never sent") is None
    with well.transaction("run", commit_id="r1.chosen by a user") as tx:
        tx.set_variable("paid", 3)
    assert well.receipt("run", "r1.chosen by a user") == tx.receipt
    assert well.verify("run").ok


def test_archive_never_overwrites_a_file(well: Stepwell, run: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InvalidInput, match="exists already; name a new file"):
        well.archive(run, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"
    assert len(well.receipts(run)) == 6


# Long histories.


def test_long_history_with_snapshots_loads_and_verifies(open_well: OpenWell, url: str) -> None:
    """The commits weigh enough that several snapshots are taken on the way."""
    well = open_well(url, limits=Limits())
    well.create("run")
    for number in range(30):
        write(well, "run", n=number, blob=f"{number}" + "x" * 20_000)
    assert well.verify("run").ok
    assert well.verify("run").receipts == 31
    for at in (0, 1, 7, 15, 29, 30):
        assert well.load("run", at=at).variables.get("n") == (None if at == 0 else at - 1)


def test_more_receipts_than_a_page(open_well: OpenWell) -> None:
    well = open_well("memory://")
    well.create("run")
    for number in range(1_100):
        write(well, "run", n=number)
    assert [receipt.revision for receipt in well.receipts("run")] == list(range(1_101))
    assert len(well.receipts("run", limit=1_050)) == 1_050
    assert well.verify("run").receipts == 1_101
    assert verify_proof(well.export("run")).receipts == 1_101


# Delete.


def test_deleted_execution_is_gone_and_its_id_is_never_used_again(well: Stepwell, run: str) -> None:
    snapshot = well.snapshot(run)
    well.delete(run)
    for use in (
        lambda: well.load(run),
        lambda: well.load(run, at=1),
        lambda: well.receipts(run),
        lambda: well.verify(run),
        lambda: well.snapshot(run),
        lambda: well.export(run),
        lambda: well.fork(run, "x"),
        lambda: well.delete(run),
    ):
        with pytest.raises(NotFound):
            use()
    with pytest.raises(AlreadyExists):
        well.create(run)
    with pytest.raises(AlreadyExists):
        well.restore(run, snapshot)
    assert well.executions.list() == []


def test_late_writer_cannot_revive_a_deleted_execution(well: Stepwell, run: str) -> None:
    """T07."""
    tx = well.transaction(run)
    tx.set_variable("a", 1)
    well.delete(run)
    with pytest.raises((NotFound, Conflict)):
        tx.commit()
    with pytest.raises(NotFound):
        well.load(run)


# Listing.


def test_executions_are_listed_newest_first_and_in_pages(well: Stepwell, clock: FakeClock) -> None:
    for number in range(5):
        well.create(f"run-{number}", workspace="acme" if number % 2 else "other", workflow="w" if number < 3 else "v", version=2)
        clock.advance(1)
    with well.transaction("run-1") as tx:
        tx.set_status("RUNNING")
    names = [summary.execution_id for summary in well.executions.list()]
    assert names == ["run-4", "run-3", "run-2", "run-1", "run-0"]
    first = well.executions.list(limit=2)
    second = well.executions.list(limit=2, after=first[-1])
    assert [summary.execution_id for summary in first + second] == names[:4]
    assert [summary.execution_id for summary in well.executions.list(workspace="acme")] == ["run-3", "run-1"]
    assert [summary.execution_id for summary in well.executions.list(workflow="v")] == ["run-4", "run-3"]
    (running,) = well.executions.list(status="RUNNING")
    assert (running.execution_id, running.status, running.revision, running.version) == ("run-1", Status.RUNNING, 1, 2)
    assert running.created_at < running.updated_at == clock.now()
    assert well.executions.list(workspace="acme", status=Status.COMPLETED) == []


def test_executions_of_one_moment_are_each_listed_once(well: Stepwell) -> None:
    for number in range(7):
        well.create(f"run-{number}")
    seen, after = [], None
    while page := well.executions.list(limit=3, after=after):
        seen += [summary.execution_id for summary in page]
        after = page[-1]
    assert sorted(seen) == [f"run-{number}" for number in range(7)]
