"""The kind of a commit: decided from its fields, whoever builds it."""

from __future__ import annotations

import msgspec
import pytest

from stepwell.model.commit import Commit, CommitKind, Creation, LockGuard, Rest
from stepwell.model.ids import new_commit_id, new_id
from stepwell.model.queue_item import ItemMark
from stepwell.model.scoped_operations import Delete
from stepwell.model.snapshot import StoredSnapshot

NEW, FINAL, WAITING = Creation("shop", 1), Rest(is_final=True), Rest(wake_ms=5)
CLAIMED, ENDED = ItemMark("i", "DISPATCHED", fence=3), ItemMark("i", "COMPLETED")


def commit(**changes: object) -> Commit:
    fields: dict[str, object] = {"execution_id": "x", "workspace_id": "w", "revision": 4, "previous": "p", "digest": "d"}
    fields |= {"commit_id": new_commit_id(4, new_id()), "header": b"h", "body": b"b", "committed_ms": 0, "is_named": False}
    return Commit(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, CommitKind.STEP),
        ({"fence": 2, "signature": b"s"}, CommitKind.STEP),
        ({"status": "RUNNING"}, CommitKind.ROW),
        ({"status": "WAITING", "rest": WAITING}, CommitKind.ROW),
        ({"status": "COMPLETED", "rest": FINAL}, CommitKind.LAST),
        ({"status": "COMPLETED", "rest": FINAL, "mark": ENDED}, CommitKind.LAST),
        ({"creation": NEW, "status": "RUNNING"}, CommitKind.FIRST),
        ({"creation": NEW, "mark": CLAIMED}, CommitKind.FIRST),
        ({"creation": NEW, "mark": CLAIMED, "rest": FINAL, "status": "COMPLETED"}, CommitKind.RUN),
    ],
)
def test_kind_follows_from_what_the_commit_does(changes: dict[str, object], kind: CommitKind) -> None:
    assert commit(**changes).kind is kind


@pytest.mark.parametrize(
    "changes",
    [
        {"is_named": True},
        {"commit_id": "pay", "is_named": True},
        {"commit_id": new_commit_id(5, new_id())},
        {"snapshot": StoredSnapshot(3, b"", b"", "")},
        {"ops": (Delete("global", "k"),)},
        {"guards": (LockGuard("till", 1),)},
        {"nudges": ("parent",)},
        {"mark": ENDED},
        {"status": "CANCELLED", "rest": FINAL, "mark": ItemMark("i", "CANCELLED")},
        {"status": "PENDING", "rest": FINAL, "mark": ItemMark("i", "QUEUED")},
        {"status": "WAITING", "rest": WAITING, "mark": ENDED},
        {"creation": NEW, "rest": WAITING},
        {"creation": NEW, "rest": FINAL, "status": "COMPLETED"},
        {"creation": NEW, "mark": ENDED},
    ],
)
def test_commit_that_needs_more_than_one_statement_is_general(changes: dict[str, object]) -> None:
    assert commit(**changes).kind is CommitKind.GENERAL


def test_changed_copy_of_a_commit_has_the_kind_of_what_it_does() -> None:
    assert msgspec.structs.replace(commit(), nudges=("parent",)).kind is CommitKind.GENERAL
    assert commit(kind=CommitKind.STEP, status="RUNNING").kind is CommitKind.ROW
