"""History: loading at a revision, paging through receipts, archiving behind a snapshot, taking in, and finding executions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import AlreadyExists, Conflict, NotFound
from stepwell.model.commit import Archiving, Deletion, Head, Loaded, Seen, StoredCommit
from stepwell.model.receipt import Receipt
from stepwell.model.receipt_chain import rebuild
from stepwell.model.snapshot import StoredSnapshot
from stepwell.testing.conformance.samples import (
    START,
    SampleExecution,
    claim,
    everything,
    landed,
    pages_of,
    refused,
    status,
    variable,
    walk,
    write,
)


def grown(execution: SampleExecution) -> list[str]:
    """Land six commits, the third and the fifth with a snapshot; the digest of the state at each of the revisions 0 to 6."""
    digests = [execution.state.digest]
    for revision in range(1, 7):
        execution.land(snapshot=execution.snapshot() if revision in (3, 5) else None)
        digests.append(execution.state.digest)
    return digests


def load(store: Store, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded:
    """Return what a store loads of an execution that must exist."""
    loaded = store.load(execution_id, at, since)
    assert loaded is not None, f"execution {execution_id!r} is gone"
    return loaded


def revisions(loaded: Loaded) -> tuple[int | None, list[int]]:
    """The revision of the snapshot and those of the commits after it."""
    return loaded.snapshot and loaded.snapshot.revision, [commit.revision for commit in loaded.commits]


def test_load_starts_from_the_newest_snapshot(store: Store, execution: SampleExecution) -> None:
    grown(execution)
    loaded = load(store, execution.id)
    assert revisions(loaded) == (4, [5, 6])
    assert loaded.head == execution.head
    assert rebuild(loaded).sections == execution.state.sections


def test_load_without_a_snapshot_starts_from_the_creation(store: Store, execution: SampleExecution) -> None:
    execution.grow(2)
    assert revisions(load(store, execution.id)) == (None, [0, 1, 2])


@pytest.mark.parametrize(("at", "start"), [(0, None), (1, None), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4)])
def test_load_at_a_revision_gives_what_leads_there(store: Store, execution: SampleExecution, at: int, start: int | None) -> None:
    digests = grown(execution)
    loaded = load(store, execution.id, at)
    assert revisions(loaded) == (start, list(range(0 if start is None else start + 1, at + 1)))
    assert loaded.head.revision == 6
    assert rebuild(loaded, at=at).digest == digests[at]


def test_load_beyond_the_head_gives_what_there_is(store: Store, execution: SampleExecution) -> None:
    grown(execution)
    assert revisions(load(store, execution.id, 1_000)) == (4, [5, 6])


@pytest.mark.parametrize("since", [-1, 0, 4, 6, 9])
def test_load_since_a_revision_gives_the_commits_after_it(store: Store, execution: SampleExecution, since: int) -> None:
    grown(execution)
    assert revisions(load(store, execution.id, since=since)) == (None, list(range(since + 1, 7)))


def test_load_since_one_revision_up_to_another(store: Store, execution: SampleExecution) -> None:
    grown(execution)
    assert revisions(load(store, execution.id, at=4, since=1)) == (None, [2, 3, 4])


def test_stored_commits_and_snapshots_come_back_byte_for_byte(store: Store, execution: SampleExecution) -> None:
    snapshot = execution.snapshot()
    commit = execution.land(snapshot=snapshot)
    loaded = load(store, execution.id)
    assert loaded.snapshot == snapshot
    assert list(loaded.commits) == [StoredCommit(1, commit.header, commit.body)]
    assert isinstance(loaded.snapshot, StoredSnapshot)
    assert isinstance(loaded.snapshot.data, bytes)
    assert isinstance(loaded.commits[0].header, bytes)


def test_missing_execution_has_no_history(store: Store) -> None:
    assert everything(store, "nobody") == (None, None, [], None)
    assert store.load("nobody", at=0) is None
    assert store.load("nobody", since=0) is None
    assert store.commit_of("nobody", "any") is None


def test_history_comes_in_pages(store: Store, execution: SampleExecution) -> None:
    execution.grow(24)
    rows = pages_of(lambda after: store.history(execution.id, after, 10), -1, lambda row: row.revision)
    pages = [[row.revision for row in page] for page in rows]
    assert pages == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


def test_history_is_of_one_execution_alone(store: Store, execution: SampleExecution) -> None:
    SampleExecution(store, "other").create().grow(5)
    execution.grow(2)
    headers = [Receipt.read(row.header, row.body) for row in store.history(execution.id, -1, 100)]
    assert [(each.execution_id, each.revision) for each in headers] == [(execution.id, revision) for revision in range(3)]


def test_chain_verifies_from_the_creation(store: Store, execution: SampleExecution) -> None:
    grown(execution)
    assert store.base(execution.id) is None
    result = walk(store, execution.id)
    assert (result.ok, result.receipts, result.head) == (True, 7, execution.state.receipt)


def test_commit_is_found_by_its_id(store: Store, execution: SampleExecution) -> None:
    commits = [execution.land() for _ in range(3)] + [execution.land(commit_id="pay"), execution.land(commit_id="r2.pay")]
    for revision, commit in enumerate(commits, 1):
        assert store.commit_of(execution.id, commit.commit_id) == StoredCommit(revision, commit.header, commit.body)


@pytest.mark.parametrize("commit_id", ["pa", "pay ", "PAY", "%", "r1.nobody", "r2.pay"])
def test_commit_is_not_found_by_another_id(store: Store, execution: SampleExecution, commit_id: str) -> None:
    execution.land(commit_id="pay")
    execution.land()
    assert store.commit_of(execution.id, commit_id) is None


def test_commit_is_not_found_in_another_execution(store: Store, execution: SampleExecution) -> None:
    other = SampleExecution(store, "other").create()
    execution.land(commit_id="pay")
    mine = execution.land()
    assert store.commit_of(other.id, "pay") is None
    assert store.commit_of(other.id, mine.commit_id) is None


def state_at(store: Store, execution_id: str, at: int) -> StoredSnapshot:
    """The snapshot of a past revision."""
    view = SampleExecution(store, execution_id)
    view.state = rebuild(load(store, execution_id, at), at=at)
    return view.snapshot()


@pytest.mark.parametrize("through", range(7))
def test_archived_history_starts_with_its_snapshot(archiving_store: Store, execution: SampleExecution, through: int) -> None:
    digests = grown(execution)
    before, snapshot = execution.head, state_at(archiving_store, execution.id, through)
    landed(write(archiving_store, Archiving(execution.id, snapshot)))
    assert execution.head == replace(before, base_revision=through)
    assert archiving_store.base(execution.id) == snapshot
    assert [row.revision for row in archiving_store.history(execution.id, -1, 100)] == list(range(through + 1, 7))
    for at in range(through, 7):
        assert rebuild(load(archiving_store, execution.id, at), at=at).digest == digests[at]
    result = walk(archiving_store, execution.id)
    assert (result.ok, result.receipts) == (True, 6 - through)


def test_load_before_the_archived_revision_does_not_reach_it(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    landed(write(archiving_store, Archiving(execution.id, state_at(archiving_store, execution.id, 3))))
    assert revisions(load(archiving_store, execution.id, 2)) == (None, [])


def test_archiving_keeps_newer_snapshots(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    landed(write(archiving_store, Archiving(execution.id, state_at(archiving_store, execution.id, 3))))
    assert revisions(load(archiving_store, execution.id)) == (4, [5, 6])
    assert revisions(load(archiving_store, execution.id, 3)) == (3, [])


def test_archived_execution_goes_on(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    landed(write(archiving_store, Archiving(execution.id, execution.snapshot())))
    assert revisions(load(archiving_store, execution.id)) == (6, [])
    kept = execution.land(commit_id="after")
    execution.grow(2)
    assert revisions(load(archiving_store, execution.id)) == (6, [7, 8, 9])
    assert archiving_store.commit_of(execution.id, "after") == StoredCommit(7, kept.header, kept.body)
    assert walk(archiving_store, execution.id).ok


def test_archive_can_move_on_but_not_back(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    old, new = state_at(archiving_store, execution.id, 2), state_at(archiving_store, execution.id, 5)
    landed(write(archiving_store, Archiving(execution.id, old)))
    landed(write(archiving_store, Archiving(execution.id, new)))
    before = everything(archiving_store, execution.id)
    refused(write(archiving_store, Archiving(execution.id, old)), NotFound)
    assert everything(archiving_store, execution.id) == before
    assert archiving_store.base(execution.id) == new


def test_archiving_what_has_not_happened_is_refused(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    before = everything(archiving_store, execution.id)
    execution.foresee()
    refused(write(archiving_store, Archiving(execution.id, execution.snapshot())), NotFound)
    refused(write(archiving_store, Archiving("nobody", execution.snapshot())), NotFound)
    assert everything(archiving_store, execution.id) == before


def test_archived_commit_with_a_chosen_id_is_recognised(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    commit = execution.land(commit_id="pay")
    execution.grow(2)
    landed(write(archiving_store, Archiving(execution.id, execution.snapshot())))
    assert archiving_store.commit_of(execution.id, "pay") == StoredCommit(commit.revision, b"", b"")
    assert write(archiving_store, commit) == Seen(b"", b"")
    before = everything(archiving_store, execution.id)
    late = execution.foresee(commit_id="pay")
    assert write(archiving_store, late) == Seen(b"", b"")
    assert everything(archiving_store, execution.id) == before
    assert walk(archiving_store, execution.id).ok


def test_archived_and_recognised_in_one_group(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    commit = execution.land(commit_id="pay")
    outcomes = archiving_store.write([Archiving(execution.id, execution.snapshot()), commit])
    assert outcomes[1] == Seen(b"", b"")
    assert archiving_store.commit_of(execution.id, "pay") == StoredCommit(commit.revision, b"", b"")


def test_archived_commit_with_an_id_of_ours_leaves_nothing(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    commit = execution.land()
    landed(write(archiving_store, Archiving(execution.id, execution.snapshot())))
    assert archiving_store.commit_of(execution.id, commit.commit_id) is None
    refused(write(archiving_store, commit), Conflict)


def test_what_is_left_of_archived_commits_goes_with_the_execution(archiving_store: Store, execution: SampleExecution) -> None:
    commit = execution.land(commit_id="pay")
    landed(write(archiving_store, Archiving(execution.id, execution.snapshot())))
    landed(write(archiving_store, Deletion(execution.id)))
    assert archiving_store.commit_of(execution.id, "pay") is None
    refused(write(archiving_store, commit), NotFound)


def test_catching_up_from_before_the_archive_reads_no_empty_commits(archiving_store: Store, execution: SampleExecution) -> None:
    for number in range(4):
        execution.land(commit_id=f"named-{number}")
    landed(write(archiving_store, Archiving(execution.id, state_at(archiving_store, execution.id, 2))))
    assert revisions(load(archiving_store, execution.id, since=0)) == (None, [3, 4])
    assert [row.revision for row in archiving_store.history(execution.id, -1, 100)] == [3, 4]


def test_archived_execution_can_be_deleted(archiving_store: Store, execution: SampleExecution) -> None:
    grown(execution)
    landed(write(archiving_store, Archiving(execution.id, state_at(archiving_store, execution.id, 3))))
    landed(write(archiving_store, Deletion(execution.id)))
    assert everything(archiving_store, execution.id) == (None, None, [], None)


def elsewhere(store: Store, execution_id: str = "moved") -> SampleExecution:
    """An execution that lives in another store, at revision 2."""
    moved = SampleExecution(store, execution_id, workspace="theirs", workflow="imports")
    for _ in range(3):
        moved.foresee()
    return moved


def test_adopted_execution_starts_with_its_snapshot(store: Store) -> None:
    moved = SampleExecution(store, "moved", workspace="theirs", workflow="imports")
    for mutations in ((), (status("RUNNING"),), (status("WAITING"),)):
        moved.foresee(*mutations)
    landed(write(store, moved.adoption(status="WAITING", signature=b"signed")))
    head = moved.head
    assert (head.workspace_id, head.workflow_id, head.version, head.status) == ("theirs", "imports", 3, "WAITING")
    assert (head.revision, head.base_revision, head.digest) == (2, 2, moved.state.receipt)
    assert (head.signature, head.fence, head.holder) == (b"signed", 0, None)
    assert store.base(moved.id) == moved.snapshot()
    assert revisions(load(store, moved.id)) == (2, [])
    assert walk(store, moved.id).ok


def test_adopted_execution_goes_on(store: Store) -> None:
    moved = elsewhere(store)
    landed(write(store, moved.adoption()))
    moved.land(fence=claim(store, moved.id).fence)
    moved.land()
    assert revisions(load(store, moved.id)) == (2, [3, 4])
    assert walk(store, moved.id).receipts == 2


def test_execution_that_is_here_cannot_be_adopted(store: Store, execution: SampleExecution) -> None:
    before = everything(store, execution.id)
    refused(write(store, elsewhere(store, execution.id).adoption()), AlreadyExists)
    landed(write(store, elsewhere(store).adoption()))
    refused(write(store, elsewhere(store).adoption()), AlreadyExists)
    assert everything(store, execution.id) == before


def found(store: Store, **query: object) -> list[str]:
    """The ids of the executions that a query finds."""
    return [head.execution_id for head in store.find(ExecutionQuery(**query))]  # pyright: ignore[reportArgumentType] - test data


def crowd_of(store: Store) -> list[SampleExecution]:
    """Six executions, each a minute younger than the one before."""
    return [
        SampleExecution(
            store,
            f"e{number}",
            workspace="acme" if number % 2 else "globex",
            workflow="orders" if number < 3 else "refunds",
            created_at=START + timedelta(minutes=number),
        ).create(*([status("RUNNING")] if number in (1, 4) else []))
        for number in range(6)
    ]


def test_find_lists_the_newest_first(store: Store) -> None:
    crowd_of(store)
    assert found(store) == ["e5", "e4", "e3", "e2", "e1", "e0"]
    assert found(store, limit=2) == ["e5", "e4"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"workspace_id": "acme"}, ["e5", "e3", "e1"]),
        ({"workflow_id": "orders"}, ["e2", "e1", "e0"]),
        ({"status": "RUNNING"}, ["e4", "e1"]),
        ({"workspace_id": "acme", "workflow_id": "orders"}, ["e1"]),
        ({"workspace_id": "globex", "status": "RUNNING"}, ["e4"]),
        ({"workflow_id": "refunds", "status": "PENDING", "workspace_id": "acme"}, ["e5", "e3"]),
        ({"workspace_id": "acm"}, []),
        ({"workspace_id": "ACME"}, []),
        ({"workflow_id": "%"}, []),
        ({"status": "FAILED"}, []),
    ],
)
def test_find_gives_what_matches_every_filter(store: Store, query: dict[str, object], expected: list[str]) -> None:
    crowd_of(store)
    assert found(store, **query) == expected


def test_find_gives_whole_heads(store: Store) -> None:
    crowd = crowd_of(store)
    assert store.find(ExecutionQuery()) == [execution.head for execution in reversed(crowd)]


def test_find_follows_the_status(store: Store) -> None:
    crowd = crowd_of(store)
    crowd[0].land(status("RUNNING"))
    crowd[1].land(status("COMPLETED"))
    crowd[4].land(variable())
    assert found(store, status="RUNNING") == ["e4", "e0"]
    assert found(store, status="COMPLETED") == ["e1"]


def test_find_keeps_the_order_of_creation_whoever_was_written_last(store: Store) -> None:
    crowd = crowd_of(store)
    crowd[0].grow(3)
    claim(store, crowd[2].id)
    assert found(store) == ["e5", "e4", "e3", "e2", "e1", "e0"]


def test_find_leaves_out_the_deleted_and_takes_in_the_adopted(store: Store) -> None:
    crowd = crowd_of(store)
    landed(write(store, Deletion(crowd[3].id)))
    moved = elsewhere(store)
    landed(write(store, moved.adoption(adopted_ms=crowd[2].head.created_ms + 1)))
    assert found(store) == ["e5", "e4", "moved", "e2", "e1", "e0"]
    assert found(store, workspace_id="theirs") == ["moved"]


@pytest.mark.parametrize("query", [{}, {"workspace_id": "acme"}, {"status": "PENDING"}, {"workflow_id": "orders"}])
def test_pages_of_find_show_everything_once_even_of_one_instant(store: Store, query: dict[str, object]) -> None:
    names = ["a", "B", "b", "é", "z", "ä", "10", "9", "a b", "a%", "_"]
    for name in names:
        SampleExecution(store, name).create()

    def find(after: tuple[int, str] | None) -> list[Head]:
        return store.find(ExecutionQuery(limit=3, after=after, **query))  # pyright: ignore[reportArgumentType] - test data

    pages = pages_of(find, None, lambda head: (head.created_ms, head.execution_id))
    seen = [head.execution_id for page in pages for head in page]
    assert sorted(seen) == sorted(names)


def test_find_goes_on_after_a_moment_that_no_execution_has(store: Store) -> None:
    crowd = crowd_of(store)
    after = crowd[3].head.created_ms + 1, ""
    assert found(store, after=after) == ["e3", "e2", "e1", "e0"]
    assert found(store, after=after, workspace_id="globex") == ["e2", "e0"]
    assert found(store, after=after, status="RUNNING") == ["e1"]
    assert found(store, after=(crowd[3].head.created_ms, "")) == ["e2", "e1", "e0"]


def test_deletion_decided_on_an_earlier_revision_is_refused(store: Store) -> None:
    """An execution that was retried meanwhile is not deleted."""
    execution = SampleExecution(store).create()
    before = execution.head.digest
    execution.land()
    refused(write(store, Deletion(execution.id, before)), Conflict)
    assert execution.head.revision == 1
    landed(write(store, Deletion(execution.id, execution.head.digest)))
    assert store.head(execution.id) is None
    refused(write(store, Deletion(execution.id, before)), NotFound)
