"""Operations on executions: create, begin, commit, load. Cached states save loading an execution before each commit."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from stepwell.clock import Clock, from_ms, to_ms
from stepwell.contract.store import Store
from stepwell.errors import (
    Conflict,
    Corrupted,
    InvalidInput,
    LeaseLost,
    StepwellError,
    ValidationFailed,
    ValueErased,
)
from stepwell.fault_points import fault
from stepwell.model.commit import (
    Claim,
    Commit,
    CommitKind,
    Creation,
    Deletion,
    Head,
    Lease,
    Loaded,
    LockGuard,
    Release,
    Rest,
    Seen,
    Written,
)
from stepwell.model.draft import Draft, Opening, Planned
from stepwell.model.execution_state import ONLY, ExecutionState, State
from stepwell.model.external_engines import EngineRecord, record_of, records_path
from stepwell.model.ids import NewId, check_id, check_key, check_trace_id, new_commit_id
from stepwell.model.limits import Limits
from stepwell.model.mutation import Create, MigrateState, WriteState, encode_mutations
from stepwell.model.queue_item import ItemMark
from stepwell.model.queue_lifecycle import cancelled_in_wait, mark_of, waits_for_slot
from stepwell.model.receipt import Receipt, ReceiptHeader, sign_head
from stepwell.model.receipt_chain import build_commit, fast_forward, rebuild, settle
from stepwell.model.record import MANUAL, Metadata, decode_metadata, encode_record
from stepwell.model.redaction import Redaction
from stepwell.model.repeated_commit import is_repetition
from stepwell.model.scoped_operations import StateOp
from stepwell.model.sealed_value import is_sealed
from stepwell.model.state_migration import at_current_version, due_migration, state_version
from stepwell.model.status import FINAL, Status
from stepwell.model.validation import plan
from stepwell.model.value import Value, canonical
from stepwell.pipeline.completions import Completion, Completions
from stepwell.pipeline.operations import Operation, ReadHead, Write, read, read_slowly, write_many, write_or_raise
from stepwell.state.history import History
from stepwell.state.hooks import ExecutionEvent, Hooks
from stepwell.state.subjects import Subjects

__all__ = [
    "CachedExecution",
    "CommitTerms",
    "EndMessages",
    "ExecutionCache",
    "Executions",
    "OpenTransaction",
    "UnsharedChange",
    "UnsharedExecution",
    "is_driven_by_engine",
]


class CachedExecution:
    """An execution's state in this process. The lock guards reads and the application of a commit."""

    __slots__ = ("execution_id", "lock", "state", "weighed", "workspace_id")

    def __init__(self, execution_id: str, workspace_id: str, state: State) -> None:
        self.execution_id, self.workspace_id, self.state = execution_id, workspace_id, state
        self.lock = threading.RLock()
        self.weighed = 0
        """The size that the cache last counted, in bytes."""


class UnsharedExecution(NamedTuple):
    """An execution's row and state, which no cache has."""

    head: Head
    execution: CachedExecution

    def is_held(self, now_ms: int) -> bool:
        """Return whether a worker has it, by a lease that has not expired."""
        return self.head.holder is not None and (self.head.lease_until_ms or 0) > now_ms


class UnsharedChange(NamedTuple):
    """A change of an execution that no cache has and no worker holds."""

    live: CachedExecution
    head: Head
    batch: Sequence[Planned] = ()
    migrating: MigrateState | None = None
    """The state migration to make; None for the one that is due, if one is."""


class ExecutionCache:
    """An LRU cache of states, bounded by number and by bytes.

    Few ended executions are kept, since they are seldom used again. A cached state may be behind the store; its users compare
    heads.
    """

    def __init__(self, *, most: int = 10_000, most_bytes: int = 256 * 1024 * 1024, most_over: int = 1_000) -> None:
        self._most, self._most_bytes, self._most_over = most, most_bytes, most_over
        self._over: deque[str] = deque()
        self._lock = threading.Lock()
        self._states: OrderedDict[str, CachedExecution] = OrderedDict()
        self._bytes = 0

    def get(self, execution_id: str) -> CachedExecution | None:
        """Return the cached state, if any."""
        with self._lock:
            live = self._states.get(execution_id)
            if live is not None:
                self._states.move_to_end(execution_id)
                # A state grows with its commits, so its size is counted again at each use.
                self._bytes += live.state.size - live.weighed
                live.weighed = live.state.size
            return live

    def put(self, live: CachedExecution) -> CachedExecution:
        """Cache a state, and return it. If another thread has cached the same revision, return that object."""
        with self._lock:
            known = self._states.get(live.execution_id)
            if known is not None and known.state.receipt == live.state.receipt:
                return known
            self._forget(live.execution_id)
            self._states[live.execution_id] = live
            live.weighed = live.state.size
            self._bytes += live.weighed
            while len(self._states) > self._most or (self._bytes > self._most_bytes and len(self._states) > 1):
                self._forget(next(iter(self._states)))
            return live

    def retire(self, execution_id: str) -> None:
        """Note that an execution has ended: its state stays until enough others have ended."""
        with self._lock:
            self._over.append(execution_id)
            if len(self._over) > self._most_over:
                self._forget(self._over.popleft())

    def forget(self, execution_id: str) -> None:
        """Remove a state that may not match the store."""
        with self._lock:
            self._forget(execution_id)

    def _forget(self, execution_id: str) -> None:
        live = self._states.pop(execution_id, None)
        if live is not None:
            self._bytes -= live.weighed


def is_driven_by_engine(identity: Metadata) -> bool:
    """Return whether workers run an execution, so that its tokens, scopes, status and steps are theirs to change."""
    return identity.workflow_id != MANUAL and not identity.is_hand_driven


class CommitTerms(msgspec.Struct, frozen=True):
    """The terms of a commit: its id, fence, guards, and what lands beside its batch."""

    commit_id: str | None = None
    """The caller's own commit id, so that a retry lands once."""
    fence: int | None = None
    """The fence of the execution's lease, if the writer has a lease."""
    guards: tuple[LockGuard, ...] = ()
    """Locks that the writer must still hold."""
    rest: Rest | None = None
    """Whether and until when the execution rests with this commit."""
    nudges: tuple[str, ...] = ()
    """Executions to nudge with this commit."""
    mark: ItemMark | None = None
    """The new status of the execution's queue item; its end follows from the execution's and need not be given."""
    is_counted: bool = False
    """True if a user wrote every change of the commit, so that a fault is reported with its number."""


_FREE = CommitTerms()
_ENDING = CommitTerms(rest=Rest(is_final=True))

_CHANGE_SECONDS = 30.0
"""How long a change of what a dead worker left may take."""

_MOST_CONFLICTS = 20
"""How often to retry an end that other commits came before. A writer that always loses the race has met a loop."""


class OpenTransaction:
    """An open transaction: a cached state, and the revision that its commit must follow."""

    __slots__ = ("commit_id", "live", "may_have_landed", "revision", "terms")

    def __init__(self, live: CachedExecution, terms: CommitTerms, new_id: NewId) -> None:
        self.live, self.revision, self.terms = live, live.state.revision, terms
        self.may_have_landed = terms.commit_id is not None
        """Whether a commit with this id may be stored: its user chose the id, perhaps for a retry, or it was tried."""
        self.commit_id = terms.commit_id or new_commit_id(self.revision + 1, new_id())


class EndMessages(Protocol):
    """Operations on scoped state that land in the commit that ends an execution, such as webhooks to send."""

    def messages(self, workspace: str, execution_id: str, revision: int, status: str, now_ms: int) -> tuple[StateOp, ...]:
        """Return the operations for an execution that ends."""
        ...


class Executions(History):
    """Creates executions and commits to them, from cached states.

    Args:
        end_messages: what is enqueued in the commit that ends an execution.
        subjects: whose data executions hold, and how their commits are sealed.
        redaction: what is declared secret for the whole well.
        hooks: functions of the user that are called at changes.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        limits: Limits,
        new_id: NewId,
        signing_key: bytes | None,
        *,
        end_messages: EndMessages | None = None,
        subjects: Subjects | None = None,
        redaction: Redaction | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        super().__init__(store, limits, signing_key)
        self._clock, self._new_id = clock, new_id
        self._live = ExecutionCache()
        self.endings = Completions()
        self._end_messages = end_messages
        self.subjects, self.redaction = subjects or Subjects(None), redaction or Redaction()
        self.hooks = hooks or Hooks(limits)

    def create(
        self,
        execution_id: str,
        workspace: str,
        context: Mapping[str, Value],
        workflow: str = MANUAL,
        version: int = 1,
        commit_id: str | None = None,
        trace_id: str | None = None,
        subject: str | None = None,
    ) -> Operation[Receipt]:
        """Create an execution whose state is driven by hand."""
        check_id(execution_id, "execution_id", self.limits.key_bytes)
        data_key = None if subject is None else (yield from self.subjects.key_of(workspace, subject))
        if commit_id is not None:
            check_key(commit_id, "commit_id")
        is_named = workflow != MANUAL
        identity = Metadata(
            execution_id,
            workspace,
            workflow,
            version,
            self._clock.now(),
            workflow,
            trace_id=self._new_id() if trace_id is None else check_trace_id(trace_id),
            is_hand_driven=is_named,
            secrets=self.redaction.names or None,
            state_version=state_version(workflow),
        )
        identity = self.subjects.protected(identity, subject, data_key)
        if not isinstance(context, Mapping):
            raise InvalidInput(f"the context must be a dict, not {type(context).__name__}")
        encoded = canonical(dict(context), self.limits, what="the context")
        mutation = Create(msgspec.Raw(encode_record(identity)), msgspec.Raw(encoded))
        return (yield from self.begin_history(identity, [mutation], commit_id=commit_id))

    def begin_history(
        self, identity: Metadata, batch: Sequence[Planned], creation: Creation | None = None, commit_id: str | None = None
    ) -> Operation[Receipt]:
        """Create an execution by its first commit."""
        live = CachedExecution(identity.execution_id, identity.workspace_id, State())
        session = OpenTransaction(live, CommitTerms(commit_id), self._new_id)
        creation = creation or Creation(identity.workflow_id, identity.version, identity.parent_id)
        receipt = yield from self.commit(session, batch, creation)
        data = live.state.sections["identity"].get(ONLY)
        if data is not None:  # else it existed before
            live.state.name(data, identity)
            self._live.put(live)
        return receipt

    def keep(self, live: CachedExecution) -> None:
        """Cache the state of an execution that was just created."""
        self._live.put(live)

    def at_hand(self, execution_id: str) -> CachedExecution | None:
        """Return the cached state of an execution, which may be behind the store. For a writer with a fence."""
        return self._live.get(execution_id)

    def begin(self, execution_id: str, terms: CommitTerms = _FREE) -> Operation[OpenTransaction]:
        """Start a transaction on the newest state of an execution."""
        if terms.commit_id is not None:
            check_key(terms.commit_id, "commit_id")
        if terms.fence is not None and not (type(terms.fence) is int and abs(terms.fence) < 2**63):
            raise InvalidInput(f"a fence is a whole number that a lease came with, not {terms.fence!r}")
        live = yield from self.newest(execution_id)
        if terms.commit_id is not None:
            yield from self.check_not_archived(execution_id, terms.commit_id)
        return OpenTransaction(live, terms, self._new_id)

    def guess(self, execution_id: str, terms: CommitTerms) -> OpenTransaction | None:
        """Return a transaction on the cached state, which may be behind the store. For a commit whose caller has read nothing."""
        if terms.commit_id is not None or terms.fence is not None:
            return None
        live = self._live.get(execution_id)
        return None if live is None else OpenTransaction(live, terms, self._new_id)

    def commit(
        self,
        session: OpenTransaction,
        batch: Sequence[Planned],
        creation: Creation | None = None,
        opening: Opening | None = None,
    ) -> Operation[Receipt]:
        """Validate, persist and apply a batch, whole or not at all. Return the receipt."""
        live = session.live
        fault("commit.buffered")
        if self.subjects.sealed is not None:
            yield from self.subjects.ready(live.workspace_id, _data_key_of(live.state))
        try:
            if self.hooks.is_used:
                batch = yield from self._passed_by_hooks(self.hooks, live, batch)
            draft, commit, header = self._prepare(session, batch, creation, opening)
        except (Conflict, ValidationFailed):
            # A retry meets its own first try in the state: a step that is recorded, a revision that is taken.
            landed = (yield from self.receipt(live.execution_id, session.commit_id)) if session.may_have_landed else None
            if landed is None:
                raise
            return _first_receipt(landed, batch)
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
                landed = Receipt.found(live.execution_id, session.commit_id, outcome.header, outcome.body, outcome.opened)
                # Two sealed bodies are never the same; what is in them is compared.
                is_same = outcome.body == commit.body or outcome.opened == encode_mutations(draft.mutations)
                return landed if is_same else _first_receipt(landed, batch)
            self._settle(live, draft, commit)
            if draft.status is not None and draft.status in FINAL and self.endings.is_watched(live.execution_id):
                self.endings.tell(live.execution_id, Completion(draft.status, draft.get("result", ONLY)))
        except Conflict:
            raise  # nothing landed, and the cached state is unchanged
        except BaseException:
            # Only the store knows whether it landed. The cached state may be behind it now, or half-applied.
            self._live.forget(live.execution_id)
            raise
        fault("commit.applied")
        if self.hooks.is_used:
            _tell_hooks(self.hooks, live, draft, commit)
        opened = encode_mutations(draft.mutations) if self.subjects.sealed is not None and is_sealed(commit.body) else None
        return Receipt.of(header, commit.digest, commit.body, opened)

    def _passed_by_hooks(self, hooks: Hooks, live: CachedExecution, batch: Sequence[Planned]) -> Operation[Sequence[Planned]]:
        """Return a batch as the hooks before changes of scoped state leave it. Raise ``ChangeCancelled`` if one refuses."""
        writes = [each.op for each in batch if isinstance(each, WriteState)]
        if not writes or not hooks.has("before_change"):
            return batch
        ops = iter((yield from read_slowly(lambda: hooks.before(writes, live.execution_id))))
        return [WriteState(next(ops)) if isinstance(each, WriteState) else each for each in batch]

    def _settle(self, live: CachedExecution, draft: Draft, commit: Commit) -> None:
        """Apply a stored commit to the cached state."""
        if commit.kind is CommitKind.RUN:
            return  # created and ended at once: no cache has this state, and nothing follows it
        with live.lock:
            if live.state.revision == commit.revision - 1:
                settle(draft, commit)
        if draft.status is not None and draft.status in FINAL:
            self._live.retire(live.execution_id)

    def _prepare(
        self,
        session: OpenTransaction,
        batch: Sequence[Planned],
        creation: Creation | None,
        opening: Opening | None,
        migrating: MigrateState | None = None,
    ) -> tuple[Draft, Commit, ReceiptHeader]:
        """Plan a batch; return the draft, the commit and the receipt's header. Raise every fault of the batch.

        The state migration that is due comes first, unless another is given.
        """
        live, terms = session.live, session.terms
        with live.lock:
            fault("commit.validating")
            if live.state.revision != session.revision:
                raise _moved_on(session)
            migrating = migrating or due_migration(live.state)
            draft = plan(live.state, batch, self.limits, opening, is_counted=terms.is_counted, migrating=migrating)
            sealed, seal, data_key = self.subjects.sealed, None, None
            if sealed is not None:
                data_key = _data_key_in(draft.get("identity", ONLY))
                seal = sealed.commit_seal(live.workspace_id, live.execution_id, data_key)
            if live.state.revision != session.revision:  # a function of the batch has itself committed
                raise _moved_on(session)
            commit, header = build_commit(
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
                seal=seal,
            )
        if creation is not None and data_key is not None:
            listed = self.subjects.listed(live.workspace_id, data_key, f"run/{live.execution_id}")
            commit = msgspec.structs.replace(commit, ops=(*commit.ops, listed))
        if self._end_messages is not None and draft.status is not None and draft.status in FINAL:
            ended_ms = to_ms(header.committed_at)
            ops = self._end_messages.messages(live.workspace_id, live.execution_id, commit.revision, draft.status, ended_ms)
            if ops:
                commit = msgspec.structs.replace(commit, ops=(*commit.ops, *ops))
        return draft, commit, header

    def newest(self, execution_id: str) -> Operation[CachedExecution]:
        """Return the newest state of an execution: the cached one, caught up with the store."""
        check_id(execution_id, "execution_id", self.limits.key_bytes)
        live = self._live.get(execution_id)
        if live is not None:
            if self.subjects.sealed is not None:
                yield from self._check_not_erased(live)
            if (yield from self._catch_up(live)):
                return live
            self._live.forget(execution_id)
        loaded = yield from self._load(execution_id)
        state = rebuild(loaded)
        self._check_signature(loaded.head, state)
        return self._live.put(CachedExecution(execution_id, loaded.head.workspace_id, state))

    def unshared(self, execution_ids: Sequence[str]) -> Operation[list[UnsharedExecution | StepwellError | None]]:
        """Return the newest states of executions, past the cache; None for one that does not exist, an error for a damaged one.

        For passes over many executions, which would drop from the cache what is in use.
        """
        return (yield from read(lambda: [self._unshared(each) for each in execution_ids]))

    def _unshared(self, execution_id: str) -> UnsharedExecution | StepwellError | None:
        loaded = self._store.load(execution_id)
        if loaded is None:
            return None
        try:
            state = rebuild(loaded)
            self._check_signature(loaded.head, state)
        except (Corrupted, ValueErased) as error:
            return error
        return UnsharedExecution(loaded.head, CachedExecution(execution_id, loaded.head.workspace_id, state))

    def commit_unshared(self, changes: Sequence[UnsharedChange]) -> Operation[list[StepwellError | None]]:
        """Commit a change to each of several unshared executions; return None or the refusal for each.

        Each commit lands only under the fence of the row: not if a worker has claimed the execution since. An execution of a
        dead worker is claimed first, so that this worker's commits are refused if it is not dead; it is due again at the end.
        """
        left = [Claim(each.head.execution_id, f"change:{self._new_id()}", _CHANGE_SECONDS) for each in changes if each.head.holder]
        taken: dict[str, Lease] = {}
        for outcome in (yield from write_many(left)) if left else ():
            answers = outcome.answers if isinstance(outcome, Written) else ()
            taken.update((answer.name, answer) for answer in answers if isinstance(answer, Lease))
        outcomes = yield from self._commit_unshared(changes, taken)
        if taken:
            yield from write_many([Release(lease.name, lease.holder, lease.fence) for lease in taken.values()])
        return outcomes

    def _commit_unshared(
        self, changes: Sequence[UnsharedChange], taken: Mapping[str, Lease]
    ) -> Operation[list[StepwellError | None]]:
        commits: list[Commit] = []
        outcomes: list[StepwellError | None] = [None] * len(changes)
        places: list[int] = []
        for place, change in enumerate(changes):
            lease = taken.get(change.live.execution_id)
            fence = change.head.fence if lease is None else lease.fence
            session = OpenTransaction(change.live, CommitTerms(fence=fence), self._new_id)
            if lease is None and change.head.holder is not None:
                outcomes[place] = LeaseLost(f"a worker has taken execution {change.live.execution_id!r}", fence=fence)
                continue
            try:
                if self.subjects.sealed is not None:
                    yield from self.subjects.ready(change.live.workspace_id, _data_key_of(change.live.state))
                commits.append(self._prepare(session, change.batch, None, None, change.migrating)[1])
            except StepwellError as error:
                outcomes[place] = error
            else:
                places.append(place)
        for place, outcome in zip(places, (yield from write_many(commits)), strict=True):
            if isinstance(outcome, StepwellError):
                outcomes[place] = outcome
        return outcomes

    def _check_not_erased(self, live: CachedExecution) -> Operation[None]:
        """Raise ``ValueErased`` for a cached execution whose key was erased: memory must not outlive the key."""
        data_key = _data_key_of(live.state)
        if data_key is not None:
            try:
                yield from self.subjects.ready(live.workspace_id, data_key)
            except ValueErased:
                self._live.forget(live.execution_id)
                raise ValueErased(execution_id=live.execution_id) from None

    def forget(self, execution_id: str) -> None:
        """Remove the cached state of an execution."""
        self._live.forget(execution_id)

    def _check_signature(self, head: Head, state: State) -> None:
        """Raise ``Corrupted`` if the head's signature does not match.

        The next commit would sign a rewritten chain. Unsigned history is accepted.
        """
        if self._key is None or head.signature is None:
            return
        if head.signature != sign_head(self._key, head.execution_id, head.revision, head.digest, state.digest):
            raise Corrupted(f"execution {head.execution_id!r} is quarantined: its head's signature does not match the key")

    def _catch_up(self, live: CachedExecution) -> Operation[bool]:
        """Load what the store has beyond a cached state; return False if the state cannot be caught up."""
        execution_id = live.execution_id
        digest = yield ReadHead(self._store, execution_id)
        if digest is None:
            self._live.forget(execution_id)
            raise (yield from self.missing(execution_id))
        with live.lock:
            if live.state.receipt == digest:
                return True
            behind = live.state.revision
        loaded = yield from read(lambda: self._store.load(execution_id, since=behind))
        return loaded is not None and _catch_up(live, loaded, behind)

    def load(self, execution_id: str, at: int | None = None) -> Operation[ExecutionState]:
        """Return the state of an execution, now or at a revision.

        The state of now has its values in the version that this process uses; one of the past is as it was.
        """
        if at is not None:
            return ExecutionState((yield from self.state_at(execution_id, at)))
        live = yield from self.newest(execution_id)
        with live.lock:
            return at_current_version(live.state)

    def end_waiting(self, execution_id: str) -> Operation[bool]:
        """End an execution that waits for its queue item as CANCELLED, with the item. Return False if it does not wait."""
        for attempt in range(_MOST_CONFLICTS):
            live = yield from self.newest(execution_id)
            with live.lock:
                if not waits_for_slot(live.state):
                    break
                session, batch = OpenTransaction(live, _ENDING, self._new_id), cancelled_in_wait(live.state)
            try:
                yield from self.commit(session, batch)
            except Conflict:
                if attempt == _MOST_CONFLICTS - 1:
                    raise
            else:
                return True
        return False

    def engine_record(self, engine: str, execution_id: str) -> Operation[EngineRecord | None]:
        """Return the record of an execution that another engine is to run, or runs; None if it has none."""
        rows = yield from read(lambda: self._store.entries(records_path(engine), [execution_id]))
        return record_of(rows[execution_id]) if execution_id in rows else None

    def delete(self, execution_id: str) -> Operation[None]:
        """Delete an execution with its history. Its id is never reused."""
        head = yield from self.head(execution_id)
        if head.status == Status.PENDING:
            # An execution that cannot be read can be deleted, too; its item then finds nothing to start.
            with suppress(Corrupted):
                yield from self.end_waiting(execution_id)
        try:
            yield from write_or_raise(Deletion(execution_id))
        finally:
            self._live.forget(execution_id)


def _data_key_of(state: State) -> str | None:
    """Return the id of the data key of an execution's subject, if it has one."""
    return _data_key_in(state.sections["identity"].get(ONLY))


def _data_key_in(identity: bytes | None) -> str | None:
    # Most executions have no subject, and need not be decoded to know it.
    return decode_metadata(identity).data_key if identity is not None and b'"data_key"' in identity else None


def _tell_hooks(hooks: Hooks, live: CachedExecution, draft: Draft, commit: Commit) -> None:
    """Tell observers what a commit has changed."""
    if draft.ops:
        hooks.tell_of_changes(draft.ops, live.execution_id)
    if draft.status is None or not hooks.has("on_execution"):
        return
    is_final = draft.status in FINAL
    kinds = [*(["started"] if commit.revision == 0 else []), *(["ended"] if is_final else [])]
    data = draft.get("identity", ONLY)
    workflow_id = "" if data is None else decode_metadata(data).workflow_id
    for kind in kinds:
        event = ExecutionEvent(
            kind=kind,
            execution_id=live.execution_id,
            workspace_id=live.workspace_id,
            workflow_id=workflow_id,
            status=draft.status,
            revision=commit.revision,
            at=from_ms(commit.committed_ms),
        )
        hooks.tell("on_execution", event)


def _catch_up(live: CachedExecution, loaded: Loaded, behind: int) -> bool:
    """Apply loaded commits to a cached state; return False if they do not follow it."""
    with live.lock:
        if live.state.revision != behind:
            return live.state.receipt == loaded.head.digest
        if not loaded.commits or loaded.commits[0].revision != behind + 1:
            return False
        return fast_forward(live.state, loaded)


def _first_receipt(landed: Receipt, batch: Sequence[Planned]) -> Receipt:
    """Return the receipt of a commit that landed before. Raise ``Conflict`` if its id is now used for other changes."""
    if not is_repetition(batch, landed.readable):
        raise Conflict(
            f"commit {landed.commit_id!r} of execution {landed.execution_id!r} landed with other changes, at revision "
            f"{landed.revision}; give these changes a commit_id of their own"
        )
    return landed


def _moved_on(session: OpenTransaction) -> Conflict:
    newest = session.live.state.revision
    return Conflict(
        f"execution {session.live.execution_id!r} is at revision {newest}, and this transaction began at {session.revision}; "
        "begin again",
        expected=session.revision,
        actual=newest,
    )
