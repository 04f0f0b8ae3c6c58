"""History: summaries, heads, receipts, states at a revision, and proofs. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from stepwell.clock import from_ms
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import Corrupted, InvalidInput, NotFound, ReceiptArchived
from stepwell.model.commit import Head, Loaded, StoredCommit
from stepwell.model.execution_state import State
from stepwell.model.ids import check_id, check_key, revision_in
from stepwell.model.limits import Limits
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import Item
from stepwell.model.receipt import Receipt, read_receipts
from stepwell.model.receipt_chain import Verification, check_vouched, rebuild, verify, write_proof
from stepwell.model.retention import decode_tombstone, removed_error, tombstone_path
from stepwell.model.scoped_operations import StoredEntry
from stepwell.model.snapshot import StoredSnapshot
from stepwell.model.status import Status
from stepwell.pipeline.operations import Operation, read
from stepwell.pipeline.paged_reads import all_entries

__all__ = ["ExecutionSummary", "History", "no_execution"]

_PAGE = 1_000

# No execution reaches this revision, and a database can still compare with it.
_NEVER = 2**31


class ExecutionSummary(PlainRecord, frozen=True):
    """An execution in a list."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    version: int
    status: Status
    revision: int
    created_at: datetime
    updated_at: datetime
    parent_id: str | None = None

    @classmethod
    def of(cls, head: Head) -> ExecutionSummary:
        """Return the summary of an execution's row."""
        return cls(
            head.execution_id,
            head.workspace_id,
            head.workflow_id,
            head.version,
            Status(head.status),
            head.revision,
            from_ms(head.created_ms),
            from_ms(head.updated_ms),
            head.parent_id,
        )


class History:
    """Reads the history of one store."""

    def __init__(self, store: Store, limits: Limits, signing_key: bytes | None) -> None:
        self._store, self.limits, self._key = store, limits, signing_key

    def _load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Operation[Loaded]:
        check_id(execution_id, "execution_id", self.limits.key_bytes)
        loaded = yield from read(lambda: self._store.load(execution_id, at, since))
        if loaded is None:
            raise (yield from self.missing(execution_id))
        return loaded

    def state_at(self, execution_id: str, at: int) -> Operation[State]:
        if type(at) is not int or at < 0:
            raise InvalidInput(f"a revision is a whole number, 0 or more, not {at!r}")
        loaded = yield from self._load(execution_id, min(at, _NEVER))
        _check_retained(loaded.head, at)
        state = rebuild(loaded, at=at)
        if loaded.snapshot is not None:
            beside = yield from self._load(execution_id, at + 1, since=at - 1)
            _check_retained(beside.head, at)  # archiving may have come in between
            check_vouched(state, beside)
        return state

    def head(self, execution_id: str) -> Operation[Head]:
        """Return the execution's row. Raise ``NotFound`` if there is none."""
        check_id(execution_id, "execution_id", self.limits.key_bytes)
        head = yield from read(lambda: self._store.head(execution_id))
        if head is None:
            raise (yield from self.missing(execution_id))
        return head

    def missing(self, execution_id: str) -> Operation[NotFound]:
        """Return the error for an execution that is not in the store: retention may have removed it."""
        return (yield from read(lambda: self._missing(execution_id)))

    def _missing(self, execution_id: str) -> NotFound:
        found = self._store.entries(tombstone_path(execution_id), (execution_id,)).get(execution_id)
        return no_execution(execution_id) if found is None else removed_error(decode_tombstone(found.data or b""))

    def head_now(self, execution_id: str) -> Operation[tuple[Head, int]]:
        """Return the execution's row, and the store's time when it was read."""
        head = yield from self.head(execution_id)
        return head, (yield from read(self._store.now_ms))

    def find(self, query: ExecutionQuery) -> Operation[list[Head]]:
        """Return the executions that match, newest first."""
        return (yield from read(lambda: self._store.find(query)))

    def summaries(
        self,
        status: str | None,
        workspace: str | None,
        workflow: str | None,
        after: ExecutionSummary | None,
        limit: int,
    ) -> Operation[list[ExecutionSummary]]:
        """Return the executions that match, newest first; those ``after`` the last one of the page before."""
        if type(limit) is not int or not 1 <= limit <= 10_000:
            raise InvalidInput(f"limit is a whole number from 1 to 10,000, not {limit!r}")
        if status is not None and status not in frozenset(Status):
            raise InvalidInput(f"{status!r} is no status; use one of {', '.join(Status)}")
        for what, name in (("workspace", workspace), ("workflow", workflow)):
            if name is not None:
                check_key(name, f"{what} in a query")
        if after is not None and not isinstance(after, ExecutionSummary):
            raise InvalidInput(f"after is the last execution of the page before, not {after!r}")
        cursor = None if after is None else (round(after.created_at.timestamp() * 1000), after.execution_id)
        query = ExecutionQuery(
            workspace_id=workspace,
            workflow_id=workflow,
            status=None if status is None else str(status),
            after=cursor,
            limit=limit,
        )
        heads = yield from self.find(query)
        return [ExecutionSummary.of(head) for head in heads]

    def summary(self, execution_id: str, workspace_id: str | None = None) -> Operation[ExecutionSummary]:
        """Return the summary of one execution.

        - ``workspace_id``: look only in this workspace. One of another is answered like one that does not exist, after the same
          reads: neither the reply nor its time tells that it exists.
        """
        found = ExecutionSummary.of((yield from self.head(execution_id)))
        if workspace_id not in (None, found.workspace_id):
            yield from self.missing(execution_id)
            raise no_execution(execution_id)
        return found

    def digests(self, execution_ids: Sequence[str]) -> Operation[dict[str, str]]:
        """Return the digest of the newest receipt of each execution that exists."""
        for each in execution_ids:
            check_id(each, "execution_id", self.limits.key_bytes)
        found = yield from read(lambda: self._store.head_digests(execution_ids))
        return {name: digest for name, digest in zip(execution_ids, found, strict=True) if digest is not None}

    def item(self, item_id: str) -> Operation[Item | None]:
        """Return the queue item that an execution came from."""
        return (yield from read(lambda: self._store.item(item_id)))

    def scan(self, scope: str) -> Operation[list[tuple[str, StoredEntry]]]:
        """Return the live entries of a scope."""
        return (yield from read(lambda: list(all_entries(self._store, scope))))

    def receipts(self, execution_id: str, after: int, limit: int | None) -> Operation[list[Receipt]]:
        """Return the receipts after a revision, in order."""
        if type(after) is not int or not (limit is None or (type(limit) is int and limit >= 0)):
            raise InvalidInput(f"after and limit are whole numbers, limit not below 0, not {after!r} and {limit!r}")
        after = min(max(after, -1), _NEVER)
        yield from self.head(execution_id)
        rows = yield from read(lambda: list(self._pages(execution_id, after, limit)))
        return read_receipts(execution_id, ((row.header, row.body, row.opened) for row in rows))

    def receipt(self, execution_id: str, commit_id: str) -> Operation[Receipt | None]:
        """Return the receipt of a commit id, or None if the commit did not land: this resolves a lost reply."""
        check_id(execution_id, "execution_id", self.limits.key_bytes)
        check_key(commit_id, "commit_id")
        row = yield from read(lambda: self._store.commit_of(execution_id, commit_id))
        if row is not None:
            return Receipt.found(execution_id, commit_id, row.header, row.body, row.opened)
        yield from self.check_not_archived(execution_id, commit_id)
        return None

    def check_not_archived(self, execution_id: str, commit_id: str) -> Operation[None]:
        """Raise an error for one of our own commit ids that was archived.

        Nothing is left of it, but the id has its revision, so at least no wrong answer is given.
        """
        revision = revision_in(commit_id)
        head = None if revision is None else (yield from read(lambda: self._store.head(execution_id)))
        if revision is not None and head is not None and revision <= head.base_revision:
            raise ReceiptArchived(
                f"execution {execution_id!r} is archived up to revision {head.base_revision}; if commit {commit_id!r} landed, "
                "its receipt is in the archive: look in the proof files",
                commit_id=commit_id,
                execution_id=execution_id,
            )

    def _pages(self, execution_id: str, after: int, limit: int | None = None) -> Iterator[StoredCommit]:
        left = limit
        while left is None or left > 0:
            rows = self._store.history(execution_id, after, _PAGE if left is None else min(_PAGE, left))
            yield from rows
            if len(rows) < _PAGE:
                return
            after = rows[-1].revision
            left = None if left is None else left - len(rows)

    def verify(self, execution_id: str, anchors: Iterable[Receipt] = ()) -> Operation[Verification]:
        """Verify the whole chain of receipts."""
        kept = list(anchors) if isinstance(anchors, Iterable) else None
        if kept is None or not all(isinstance(anchor, Receipt) for anchor in kept):
            raise InvalidInput("anchors are receipts of the execution that you kept; give a list of them")
        check_id(execution_id, "execution_id", self.limits.key_bytes)
        try:
            return (yield from read(lambda: self._verify(execution_id, kept)))
        except Corrupted as error:  # a store may find rows that it cannot return
            return Verification(ok=False, problems=(error.message,))

    def _verify(self, execution_id: str, anchors: list[Receipt]) -> Verification:
        head = self._store.head(execution_id)
        if head is None:
            raise self._missing(execution_id)
        rows = (row for row in self._pages(execution_id, head.base_revision) if row.revision <= head.revision)
        base, snapshots = self._store.base(execution_id), self._snapshots(head)
        result = verify(head, base, rows, key=self._key, anchors=anchors, snapshots=snapshots)
        # Archiving moves the start of the chain; verify again after an archiving that came during a verification.
        now = self._store.head(execution_id)
        if not result.ok and now is not None and now.base_revision != head.base_revision:
            return self._verify(execution_id, anchors)
        return result

    def _snapshots(self, head: Head) -> Iterator[StoredSnapshot]:
        """Return the snapshots after the base, newest first: loading the revision before one starts from the next older one."""
        at = head.revision
        while (loaded := self._store.load(head.execution_id, at)) is not None:
            stored = loaded.snapshot
            if stored is None or stored.revision <= head.base_revision:
                return
            yield stored
            at = stored.revision - 1

    def export(self, execution_id: str) -> Operation[bytes]:
        """Return one execution's proof as the bytes of a file, to be verified offline by ``stepwell.verify_proof``."""
        head = yield from self.head(execution_id)
        return (yield from read(lambda: self.proof(head, head.revision)))

    def proof(self, head: Head, through: int) -> bytes:
        rows = (row for row in self._pages(head.execution_id, head.base_revision) if row.revision <= through)
        return write_proof(head, self._store.base(head.execution_id), rows, self._key)


def _check_retained(head: Head, at: int) -> None:
    oldest = max(head.base_revision, 0)
    if not oldest <= at <= head.revision:
        raise NotFound(f"execution {head.execution_id!r} has revisions {oldest} to {head.revision}, not {at}")


def no_execution(execution_id: str) -> NotFound:
    """Return the ``NotFound`` for an execution id."""
    return NotFound(f"there is no execution {execution_id!r} in this store; check the id and the URL")
