"""Operations on executions: create, commit, load, history, snapshots. Written once, driven by both faces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import (
    AlreadyExists,
    Conflict,
    Corrupted,
    InvalidInput,
    InvalidSnapshot,
    NotFound,
    StepwellError,
    ValidationFailed,
)
from stepwell.faults import fault
from stepwell.model.commit import Adoption, Archiving, Creation, Deletion, Head, Loaded, LockGuard, Rest, Seen, StoredCommit
from stepwell.model.draft import Planned
from stepwell.model.ending import mark_of
from stepwell.model.ids import NewId, check_key, new_commit_id
from stepwell.model.ledger import Verification, build_commit, fast_forward, rebuild, settle, verify
from stepwell.model.limits import Limits
from stepwell.model.mutation import Create, Restore
from stepwell.model.proof import write_proof
from stepwell.model.queue import ItemMark
from stepwell.model.receipt import Receipt, read_receipts, sign_head
from stepwell.model.record import Metadata, encode_record
from stepwell.model.snapshot import read_snapshot, store_snapshot, write_snapshot
from stepwell.model.state import ONLY, Change, ExecutionState, State, difference
from stepwell.model.status import FINAL, Status
from stepwell.model.validation import plan
from stepwell.model.value import Value, canonical, decode
from stepwell.state.endings import Ending, Endings
from stepwell.state.live import Live, LiveStates
from stepwell.state.operation import Operation, Tip, Write, read, write_or_raise

__all__ = ["MANUAL", "Executions", "Session", "Terms"]

MANUAL = "manual"
"""The workflow id of an execution whose state is driven by hand."""

_PAGE = 1_000

# No execution gets there, and a database can still compare with it.
_NEVER = 2**31


class Terms(msgspec.Struct, frozen=True):
    """On what terms a transaction commits."""

    commit_id: str | None = None
    """An id of the caller's own, so that a retry lands once."""
    fence: int | None = None
    """The fence of the execution's lease, if the writer has one."""
    guards: tuple[LockGuard, ...] = ()
    """Locks that the writer must still hold."""
    rest: Rest | None = None
    """What becomes of the lease with this commit."""
    nudges: tuple[str, ...] = ()
    """Executions that should be looked at because of it."""
    mark: ItemMark | None = None
    """What becomes of the queue item that the execution came from; its end needs no saying."""


_FREE = Terms()


class Session:
    """Where a transaction stands: an execution's state at hand, and the revision its commit must follow."""

    __slots__ = ("commit_id", "live", "may_have_landed", "revision", "terms")

    def __init__(self, live: Live, terms: Terms, new_id: NewId) -> None:
        self.live, self.revision, self.terms = live, live.state.revision, terms
        self.may_have_landed = terms.commit_id is not None
        """Whether a commit of this id may be stored: its user named it, perhaps for a retry, or it was tried."""
        self.commit_id = terms.commit_id or new_commit_id(self.revision + 1, new_id())


class Executions:
    """All that can be done with executions in one store."""

    def __init__(self, store: Store, clock: Clock, limits: Limits, new_id: NewId, signing_key: bytes | None) -> None:
        self._store, self._clock, self._limits = store, clock, limits
        self._new_id, self._key = new_id, signing_key
        self._live = LiveStates()
        self.endings = Endings()

    def create(
        self,
        execution_id: str,
        workspace: str,
        context: Mapping[str, Value],
        workflow: str = MANUAL,
        version: int = 1,
        commit_id: str | None = None,
    ) -> Operation[Receipt]:
        """Make an execution whose state is driven by hand."""
        check_key(execution_id, "execution_id", self._limits.key_bytes)
        if commit_id is not None:
            check_key(commit_id, "commit_id")
        identity = Metadata(execution_id, workspace, workflow, version, self._clock.now())
        if not isinstance(context, Mapping):
            raise InvalidInput(f"the context must be a dict, not {type(context).__name__}")
        encoded = canonical(dict(context), self._limits, what="the context")
        mutation = Create(msgspec.Raw(encode_record(identity)), msgspec.Raw(encoded))
        return (yield from self.begin_history(identity, [mutation], commit_id=commit_id))

    def begin_history(
        self, identity: Metadata, batch: Sequence[Planned], creation: Creation | None = None, commit_id: str | None = None
    ) -> Operation[Receipt]:
        """Make an execution by its first commit."""
        live = Live(identity.execution_id, identity.workspace_id, State())
        session = Session(live, Terms(commit_id), self._new_id)
        creation = creation or Creation(identity.workflow_id, identity.version, identity.parent_id)
        receipt = yield from self.commit(session, batch, creation)
        self._live.put(live)
        return receipt

    def keep(self, live: Live) -> None:
        """Have the state of an execution that was just made at hand."""
        self._live.put(live)

    def at_hand(self, execution_id: str) -> Live | None:
        """The state at hand of an execution, which may be behind the store: for a writer whose fence guards it."""
        return self._live.get(execution_id)

    def begin(self, execution_id: str, terms: Terms = _FREE) -> Operation[Session]:
        """Start a transaction on the newest state of an execution."""
        if terms.commit_id is not None:
            check_key(terms.commit_id, "commit_id")
        if terms.fence is not None and not (type(terms.fence) is int and abs(terms.fence) < 2**63):
            raise InvalidInput(f"a fence is a whole number that a lease came with, not {terms.fence!r}")
        live = yield from self.newest(execution_id)
        return Session(live, terms, self._new_id)

    def begin_at_hand(self, execution_id: str, terms: Terms) -> Session | None:
        """The same as ``begin`` if it takes no waiting, since the newest state is at hand for sure; else None."""
        live = self._live.get(execution_id)
        if (
            live is None
            or terms.commit_id is not None
            or terms.fence is not None
            or self._store.known_tip(execution_id, is_guarded=True) != live.state.receipt
        ):
            return None
        return Session(live, terms, self._new_id)

    def status_at_hand(self, execution_id: str) -> Status | None:
        """The status of an execution whose newest state is at hand for sure; else None."""
        live = self._live.get(execution_id)
        if live is None or self._store.known_tip(execution_id) != live.state.receipt:
            return None
        with live.lock:
            return Status(decode(live.state.sections["status"][ONLY]))

    def commit(self, session: Session, batch: Sequence[Planned], creation: Creation | None = None) -> Operation[Receipt]:
        """Validate, persist, apply: the whole batch or none of it. The receipt is the proof."""
        live, terms = session.live, session.terms
        fault("commit.buffered")
        try:
            with live.lock:
                fault("commit.validating")
                if live.state.revision != session.revision:
                    raise _moved_on(session)
                draft = plan(live.state, batch, self._limits)
                commit, receipt = build_commit(
                    draft,
                    execution_id=live.execution_id,
                    workspace_id=live.workspace_id,
                    commit_id=session.commit_id,
                    committed_at=self._clock.now(),
                    fence=terms.fence,
                    guards=terms.guards,
                    rest=terms.rest,
                    nudges=terms.nudges,
                    key=self._key,
                    creation=creation,
                    mark=None if draft.status is terms.mark is None else mark_of(draft, terms.mark),
                    is_named=terms.commit_id is not None,
                )
        except (Conflict, ValidationFailed):
            # A retry finds its own first try in the state: a step that is recorded, a revision that is taken.
            landed = (yield from self.receipt(live.execution_id, session.commit_id)) if session.may_have_landed else None
            if landed is None:
                raise
            return landed
        fault("commit.validated")
        session.may_have_landed = True
        try:
            # Not through write_or_raise: every commit passes here, and each generator in between costs a microsecond.
            outcome = yield Write(commit)
            fault("commit.persisted")
            if isinstance(outcome, StepwellError):
                raise outcome
            if isinstance(outcome, Seen):
                self._live.forget(live.execution_id)
                return Receipt.read(outcome.header, outcome.body)
            with live.lock:
                if live.state.revision == commit.revision - 1:
                    settle(draft, commit)
            if draft.status is not None and draft.status in FINAL:
                self.endings.tell(live.execution_id, Ending(draft.status, draft.get("result", ONLY)))
        except BaseException:
            # Whether it landed is for the store to say; what is at hand may be behind it now, or half-way to it.
            self._live.forget(live.execution_id)
            raise
        fault("commit.applied")
        return receipt

    def newest(self, execution_id: str) -> Operation[Live]:
        """The newest state of an execution, from what is at hand and what the store has beyond it."""
        check_key(execution_id, "execution_id", self._limits.key_bytes)
        live = self._live.get(execution_id)
        if live is not None:
            if self._store.known_tip(execution_id) == live.state.receipt:
                return live
            if (yield from self._catch_up(live)):
                return live
            self._live.forget(execution_id)
        loaded = yield from self._load(execution_id)
        state = rebuild(loaded)
        self._check_signature(loaded.head, state)
        return self._live.put(Live(execution_id, loaded.head.workspace_id, state))

    def _check_signature(self, head: Head, state: State) -> None:
        """A chain that was rewritten must not be built on: the next commit would sign it. Unsigned history is taken as it is."""
        if self._key is None or head.signature is None:
            return
        if head.signature != sign_head(self._key, head.execution_id, head.revision, head.digest, state.digest):
            raise Corrupted(f"execution {head.execution_id!r} is quarantined: its head's signature does not match the key")

    def _catch_up(self, live: Live) -> Operation[bool]:
        """Ask the store for what is newer than the state at hand; False if the state cannot be brought up to it."""
        execution_id = live.execution_id
        tip = yield Tip(self._store, execution_id)
        if tip is None:
            self._live.forget(execution_id)
            raise _no_execution(execution_id)
        with live.lock:
            if live.state.receipt == tip:
                return True
            behind = live.state.revision
        loaded = yield from read(lambda: self._store.load(execution_id, since=behind))
        return loaded is not None and _catch_up(live, loaded, behind)

    def _load(self, execution_id: str, at: int | None = None) -> Operation[Loaded]:
        check_key(execution_id, "execution_id", self._limits.key_bytes)
        loaded = yield from read(lambda: self._store.load(execution_id, at))
        if loaded is None:
            raise _no_execution(execution_id)
        return loaded

    def load(self, execution_id: str, at: int | None = None) -> Operation[ExecutionState]:
        """The state of an execution now, or at a revision."""
        if at is not None:
            return ExecutionState((yield from self._state_at(execution_id, at)))
        live = yield from self.newest(execution_id)
        with live.lock:
            return ExecutionState(live.state)

    def _state_at(self, execution_id: str, at: int) -> Operation[State]:
        if type(at) is not int or at < 0:
            raise InvalidInput(f"a revision is a whole number, 0 or more, not {at!r}")
        loaded = yield from self._load(execution_id, min(at, _NEVER))
        oldest = max(loaded.head.base_revision, 0)
        if not oldest <= at <= loaded.head.revision:
            raise NotFound(f"execution {execution_id!r} has revisions {oldest} to {loaded.head.revision}, not {at}")
        return rebuild(loaded, at=at)

    def head(self, execution_id: str) -> Operation[Head]:
        """The execution's row."""
        check_key(execution_id, "execution_id", self._limits.key_bytes)
        head = yield from read(lambda: self._store.head(execution_id))
        if head is None:
            raise _no_execution(execution_id)
        return head

    def find(self, query: ExecutionQuery) -> Operation[list[Head]]:
        """Executions that match, newest first."""
        return (yield from read(lambda: self._store.find(query)))

    def receipts(self, execution_id: str, after: int, limit: int | None) -> Operation[list[Receipt]]:
        """The receipts after a revision, in order."""
        if type(after) is not int or not (limit is None or (type(limit) is int and limit >= 0)):
            raise InvalidInput(f"after and limit are whole numbers, limit not below 0, not {after!r} and {limit!r}")
        after = min(max(after, -1), _NEVER)
        yield from self.head(execution_id)
        rows = yield from read(lambda: list(self._pages(execution_id, after, limit)))
        return read_receipts(execution_id, ((row.header, row.body) for row in rows))

    def receipt(self, execution_id: str, commit_id: str) -> Operation[Receipt | None]:
        """The receipt of a commit id, or None if it did not land: how a lost reply is resolved."""
        check_key(execution_id, "execution_id", self._limits.key_bytes)
        check_key(commit_id, "commit_id")
        row = yield from read(lambda: self._store.commit_of(execution_id, commit_id))
        return None if row is None else Receipt.read(row.header, row.body)

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
        """Walk the whole chain of receipts and check everything about it."""
        kept = list(anchors)
        yield from self.head(execution_id)
        return (yield from read(lambda: self._verify(execution_id, kept)))

    def _verify(self, execution_id: str, anchors: list[Receipt]) -> Verification:
        head = self._store.head(execution_id)
        if head is None:
            raise _no_execution(execution_id)
        rows = (row for row in self._pages(execution_id, head.base_revision) if row.revision <= head.revision)
        loaded, base = self._store.load(execution_id), self._store.base(execution_id)
        newest = None if loaded is None else loaded.snapshot
        result = verify(head, base, rows, key=self._key, anchors=anchors, newest=newest)
        # Archiving moves the start of the chain; a walk that it overtook is walked again.
        now = self._store.head(execution_id)
        if not result.ok and now is not None and now.base_revision != head.base_revision:
            return self._verify(execution_id, anchors)
        return result

    def export(self, execution_id: str) -> Operation[bytes]:
        """One execution's proof as a file's bytes, to be verified offline by ``stepwell.verify_proof``."""
        head = yield from self.head(execution_id)
        return (yield from read(lambda: self._proof(head, head.revision)))

    def _proof(self, head: Head, through: int) -> bytes:
        rows = (row for row in self._pages(head.execution_id, head.base_revision) if row.revision <= through)
        return write_proof(head, self._store.base(head.execution_id), rows, self._key)

    def snapshot(self, execution_id: str) -> Operation[bytes]:
        """The execution's state now, as bytes that ``restore`` takes."""
        live = yield from self.newest(execution_id)
        with live.lock:
            return write_snapshot(live.state)

    def restore(self, execution_id: str, data: bytes) -> Operation[ExecutionState]:
        """Bring an execution to a snapshot's state, as a new commit; one that is not here is taken in."""
        check_key(execution_id, "execution_id", self._limits.key_bytes)
        snapshot, state = read_snapshot(data)
        if snapshot.execution_id != execution_id:
            raise InvalidSnapshot(
                f"execution id mismatch: the snapshot is of {snapshot.execution_id!r}, not of {execution_id!r}; "
                "use fork to start another execution from it"
            )
        head = yield from read(lambda: self._store.head(execution_id))
        if head is None:
            yield from self._adopt(state)
        else:
            if snapshot.workspace_id != head.workspace_id:
                raise InvalidSnapshot(
                    f"workspace mismatch: the snapshot is of {snapshot.workspace_id!r}, not of {head.workspace_id!r}"
                )
            yield from self._check_of_this_history(head, snapshot.revision, snapshot.receipt)
            session = yield from self.begin(execution_id)
            entries = _raw_entries(state)
            yield from self.commit(session, [Restore(execution_id, snapshot.revision, entries)])
        return (yield from self.load(execution_id))

    def _adopt(self, state: State) -> Operation[None]:
        who = state.identity
        stored = store_snapshot(state)
        signature = sign_head(self._key, who.execution_id, state.revision, state.receipt, state.digest) if self._key else None
        yield from write_or_raise(
            Adoption(
                execution_id=who.execution_id,
                workspace_id=who.workspace_id,
                creation=Creation(who.workflow_id, who.version, who.parent_id),
                status=ExecutionState(state).status,
                digest=state.receipt,
                snapshot=stored,
                signature=signature,
                adopted_ms=self._clock.now_ms(),
            )
        )

    def _check_of_this_history(self, head: Head, revision: int, digest: str) -> Operation[None]:
        rows = yield from read(lambda: self._store.history(head.execution_id, revision - 1, 1))
        row = rows[0] if rows else None
        if revision > head.revision or (row is not None and row.revision == revision and _digest(row) != digest):
            raise InvalidSnapshot("the snapshot is not of this execution's history: its receipt is not in the chain")

    def fork(self, execution_id: str, new_id: str, at: int | None) -> Operation[Receipt]:
        """Start a new execution from the state of another, now or at a revision. The first one is left as it is."""
        check_key(new_id, "the new execution's id", self._limits.key_bytes)
        head = yield from self.head(execution_id)
        state = yield from self._state_at(execution_id, head.revision if at is None else at)
        identity = _forked(state.identity, new_id, self._clock)
        entries = _raw_entries(state)
        entries.pop("result", None)
        entries["identity"] = {ONLY: msgspec.Raw(encode_record(identity))}
        entries["status"] = {ONLY: msgspec.Raw(b'"PENDING"')}
        try:
            # What has a workflow and its input goes on by itself; what was driven by hand still is.
            is_runnable = identity.workflow_id != MANUAL and bool(state.sections["trigger"])
            creation = Creation(identity.workflow_id, identity.version, identity.parent_id, is_runnable=is_runnable)
            return (yield from self.begin_history(identity, [Restore(execution_id, state.revision, entries)], creation))
        except AlreadyExists:
            raise AlreadyExists(f"execution {new_id!r} exists already; choose another id for the fork") from None

    def diff(self, execution_id: str, a: int, b: int) -> Operation[list[Change]]:
        """What differs between two revisions."""
        before = yield from self._state_at(execution_id, a)
        after = yield from self._state_at(execution_id, b)
        return difference(ExecutionState(before), ExecutionState(after))

    def archive(self, execution_id: str, to: Path, through: int | None) -> Operation[int]:
        """Move the receipts up to a revision into a proof file, leaving a snapshot; the chain verifies from there on."""
        head = yield from self.head(execution_id)
        upto = head.revision if through is None else through
        state = yield from self._state_at(execution_id, upto)
        if upto == head.base_revision:
            return 0  # archived up to here already: there is nothing to prove
        if to.exists():
            raise InvalidInput(f"{str(to)!r} exists already; name a new file")
        yield from read(lambda: _write_file(to, self._proof(head, upto)))
        yield from write_or_raise(Archiving(execution_id, store_snapshot(state)))
        return upto - head.base_revision

    def delete(self, execution_id: str) -> Operation[None]:
        """Delete an execution with its history. Its id is never used again."""
        check_key(execution_id, "execution_id", self._limits.key_bytes)
        try:
            yield from write_or_raise(Deletion(execution_id))
        finally:
            self._live.forget(execution_id)


def _catch_up(live: Live, loaded: Loaded, behind: int) -> bool:
    """Bring a state at hand up to the store; False if it cannot be reached from there."""
    with live.lock:
        if live.state.revision != behind:
            return live.state.receipt == loaded.head.digest
        if not loaded.commits or loaded.commits[0].revision != behind + 1:
            return False
        return fast_forward(live.state, loaded)


def _moved_on(session: Session) -> Conflict:
    newest = session.live.state.revision
    return Conflict(
        f"execution {session.live.execution_id!r} is at revision {newest}, and this transaction began at {session.revision}; "
        "begin again",
        expected=session.revision,
        actual=newest,
    )


def _no_execution(execution_id: str) -> NotFound:
    return NotFound(f"there is no execution {execution_id!r} in this store; check the id and the URL")


def _forked(identity: Metadata, new_id: str, clock: Clock) -> Metadata:
    """Who a fork is: its original's own in all, but nobody's child, from no queue, and with all its time before it."""
    started_at, deadline_ms = clock.now(), identity.deadline_ms
    if deadline_ms is not None:
        deadline_ms += round((started_at - identity.started_at).total_seconds() * 1000)
    return msgspec.structs.replace(
        identity,
        execution_id=new_id,
        parent_id=identity.execution_id,
        is_child=False,
        item_id=None,
        started_at=started_at,
        deadline_ms=deadline_ms,
    )


def _raw_entries(state: State) -> dict[str, dict[str, msgspec.Raw]]:
    return {section: {key: msgspec.Raw(data) for key, data in rows.items()} for section, rows in state.sections.items() if rows}


def _digest(row: StoredCommit) -> str:
    return Receipt.read(row.header, row.body).digest


def _write_file(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InvalidInput(f"the proof cannot be written to {str(path)!r}: {error.strerror}; nothing was archived") from error
