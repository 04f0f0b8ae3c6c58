"""Copies of executions: snapshots and restores, forks, archives, and the differences between two states."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, Corrupted, InvalidInput, InvalidSnapshot
from stepwell.model.commit import Adoption, Archiving, Creation, Head
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY, Change, ExecutionState, State, difference
from stepwell.model.external_engines import HOLD_SECONDS, first_record, recorded
from stepwell.model.ids import NewId, check_id, check_variable
from stepwell.model.mutation import Restore, SetTrigger, SetVariable
from stepwell.model.queue_lifecycle import slot_item
from stepwell.model.receipt import Receipt, sign_head
from stepwell.model.record import Metadata, encode_record, governed_input
from stepwell.model.retention import check_has_payloads
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.snapshot import Snapshot, read_snapshot, store_snapshot, write_snapshot
from stepwell.model.value import Value, canonical
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.state.executions import Executions, is_driven_by_engine

__all__ = ["Copies", "ForkEdits"]


class ForkEdits(NamedTuple):
    """What is changed in the state that a fork begins with."""

    trigger: Callable[[bytes | None], bytes] | None = None
    """Returns the trigger to store in place of the original's; None to keep that."""
    variables: Mapping[str, Value] = {}
    """The variables to set."""


NO_EDITS = ForkEdits()


class Copies:
    """Copies executions: to bytes, to other executions, and to proof files."""

    def __init__(self, executions: Executions, store: Store, clock: Clock, new_id: NewId, signing_key: bytes | None) -> None:
        self._executions, self._store, self._clock, self._key = executions, store, clock, signing_key
        self._new_id = new_id

    def snapshot(self, execution_id: str) -> Operation[bytes]:
        """Return the execution's present state as bytes for ``restore``.

        A snapshot is kept for emergencies, so its digest is computed from all entries first.
        """
        live = yield from self._executions.newest(execution_id)
        with live.lock:
            if live.state.add_up() != live.state.accumulator:
                raise Corrupted(f"execution {execution_id!r} is quarantined: its entries do not add up to its digest; verify it")
            return write_snapshot(live.state)

    def restore(self, execution_id: str, data: bytes) -> Operation[ExecutionState]:
        """Restore an execution to a snapshot's state by a new commit. An execution that is not in this store is adopted."""
        check_id(execution_id, "execution_id", self._executions.limits.key_bytes)
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
            yield from self._check_of_this_history(head, snapshot)
            session = yield from self._executions.begin(execution_id)
            entries = _raw_entries(state)
            yield from self._executions.commit(session, [Restore(execution_id, snapshot.revision, entries)])
        return (yield from self._executions.load(execution_id))

    def _adopt(self, state: State) -> Operation[None]:
        who = state.identity
        yield from self._executions.subjects.adopted(who)
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

    def _check_of_this_history(self, head: Head, snapshot: Snapshot) -> Operation[None]:
        revision = snapshot.revision
        if revision < head.base_revision:
            return  # its receipts were archived: nothing is left to compare it with
        named = None if revision > head.revision else (yield from self._named_at(head.execution_id, revision))
        if named != (snapshot.receipt, snapshot.state):
            raise InvalidSnapshot("the snapshot is not of this execution's history: its receipt is not in the chain")

    def _named_at(self, execution_id: str, revision: int) -> Operation[tuple[str, str]]:
        """Return the digests of the receipt and of the state at a revision."""
        rows = yield from read(lambda: self._store.history(execution_id, revision - 1, 1))
        if rows and rows[0].revision == revision:
            receipt = Receipt.read(rows[0].header, rows[0].body, rows[0].opened)
            return receipt.digest, receipt.after
        # The chain starts there: the receipt is archived, but the base snapshot has its digest.
        state = yield from self._executions.state_at(execution_id, revision)
        return state.receipt, state.digest

    def fork(self, execution_id: str, new_id: str, at: int | None, edits: ForkEdits = NO_EDITS) -> Operation[Receipt]:
        """Start a new execution from the state of another, now or at a revision, with what is edited. The other stays as it is."""
        check_id(new_id, "the new execution's id", self._executions.limits.key_bytes)
        head = yield from self._executions.head(execution_id)
        state = yield from self._executions.state_at(execution_id, head.revision if at is None else at)
        check_has_payloads(state)
        identity = _forked(state.identity, new_id, self._clock)
        entries = _raw_entries(state)
        entries.pop("result", None)
        entries["status"] = {ONLY: msgspec.Raw(b'"PENDING"')}
        entries["identity"] = {ONLY: msgspec.Raw(encode_record(identity))}
        trigger, changes = state.sections["trigger"].get(ONLY), self._changes(edits.variables)
        if edits.trigger is not None:  # a mutation of its own, so that the receipt says what was edited
            trigger = edits.trigger(trigger)
            entries.pop("trigger", None)
            changes.append(SetTrigger(msgspec.Raw(trigger)))
        try:
            # A run with a workflow and its input continues by itself; an execution that was driven by hand still is.
            is_runnable = is_driven_by_engine(identity) and trigger is not None
            if is_runnable and identity.workspace_id != DEFAULT_WORKSPACE:  # it takes a slot, like one that is started
                identity = msgspec.structs.replace(identity, item_id=self._new_id())
                entries["identity"] = {ONLY: msgspec.Raw(encode_record(identity))}
            creation = Creation(
                identity.workflow_id,
                identity.version,
                identity.parent_id,
                holder=identity.engine if is_runnable else None,
                lease_seconds=HOLD_SECONDS if is_runnable and identity.engine is not None else 0,
                is_runnable=is_runnable,
                slot=None if identity.item_id is None else slot_item(identity, _item_input(identity, trigger or b"")),
            )
            batch: list[Planned] = [Restore(execution_id, state.revision, entries), *changes]
            if creation.holder is not None:
                batch.append(recorded(creation.holder, new_id, first_record(identity)))
            return (yield from self._executions.begin_history(identity, batch, creation))
        except AlreadyExists:
            raise AlreadyExists(f"execution {new_id!r} exists already; choose another id for the fork") from None

    def _changes(self, variables: Mapping[str, Value]) -> list[Planned]:
        limits = self._executions.limits
        for name in variables:
            check_variable(name, limits.key_bytes)
        values = {name: canonical(value, limits, what=f"variable {name!r}") for name, value in variables.items()}
        return [SetVariable(name, msgspec.Raw(data)) for name, data in values.items()]

    def diff(self, execution_id: str, a: int, b: int) -> Operation[list[Change]]:
        """Return the differences between two revisions."""
        before = yield from self._executions.state_at(execution_id, a)
        after = yield from self._executions.state_at(execution_id, b)
        return difference(ExecutionState(before), ExecutionState(after))

    def archive(self, execution_id: str, to: Path, through: int | None) -> Operation[int]:
        """Move the receipts up to a revision into a proof file, and leave a snapshot. The chain verifies from there on."""
        head = yield from self._executions.head(execution_id)
        upto = head.revision if through is None else through
        state = yield from self._executions.state_at(execution_id, upto)
        if upto == head.base_revision:
            return 0  # already archived up to here: there is nothing to prove
        if to.exists():
            raise InvalidInput(f"{str(to)!r} exists already; name a new file")
        yield from read(lambda: _write_file(to, self._executions.proof(head, upto)))
        yield from write_or_raise(Archiving(execution_id, store_snapshot(state)))
        return upto - head.base_revision


def _forked(identity: Metadata, new_id: str, clock: Clock) -> Metadata:
    """Return the identity of a fork: the original's, but without a parent or a queue item, and with its whole time left."""
    started_at, deadline_ms = clock.now(), identity.deadline_ms
    if deadline_ms is not None:
        deadline_ms += round((started_at - identity.started_at).total_seconds() * 1000)
    return msgspec.structs.replace(
        identity,
        execution_id=new_id,
        parent_id=identity.execution_id,
        is_child=False,
        root_id=None,
        item_id=None,
        started_at=started_at,
        deadline_ms=deadline_ms,
    )


def _item_input(identity: Metadata, trigger: bytes) -> bytes:
    return governed_input(trigger, None, identity.subject, identity.data_key, identity.secrets or ())


def _raw_entries(state: State) -> dict[str, dict[str, msgspec.Raw]]:
    return {section: {key: msgspec.Raw(data) for key, data in rows.items()} for section, rows in state.sections.items() if rows}


def _write_file(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InvalidInput(f"the proof cannot be written to {str(path)!r}: {error.strerror}; nothing was archived") from error
