"""Retention: remove what the policies of tiers keep no longer, in batches, while everything is in use.

Every step can be cut short at any point, and the next round goes on:

- Removal: receipts go to the archive, then the tombstone is written, then the execution is deleted, if nothing was committed to it
  since. A tombstone counts only once its execution is gone.
- Clearing (payloads): an intent is noted; a commit replaces the values by a note, in the execution's chain; the receipts up to
  that one go to the archive; a snapshot of what is left takes their place. A round begins with the intents of a round that died.
- Rotation: older receipts go to the archive, and a snapshot takes their place.

The docs page ``design/0032-retention`` argues this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from stepwell.clock import Clock
from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import Conflict, Corrupted, InvalidInput, LockHeld, NotFound, StepwellError, ValidationFailed, ValueErased
from stepwell.fault_points import fault
from stepwell.maintenance.archive_files import ArchivedProof, write_archive
from stepwell.model.commit import Archiving, Deletion, Head, StateBatch, Written
from stepwell.model.execution_state import ONLY, State
from stepwell.model.ids import check_key
from stepwell.model.lock import scheduled_lock
from stepwell.model.mutation import RemovePayloads
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import DropItems, Item, ItemQuery, Tier, Workspace, tier_at
from stepwell.model.retention import (
    BY_REQUEST,
    EVERY_TIER,
    Due,
    Removal,
    RetentionAction,
    RetentionPolicy,
    Tombstone,
    check_has_payloads,
    decode_tombstone,
    dues_of,
    encode_removal,
    encode_tombstone,
    item_seconds,
    items_that_end,
    no_tombstone,
    removal_of,
    rule_text,
    tombstone_path,
)
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import Clear, Delete, Put, StateOp
from stepwell.model.snapshot import store_snapshot, stored_state
from stepwell.model.status import FINAL, Status
from stepwell.pipeline.operations import AsyncDriver, Operation, read, read_slowly, write_many, write_or_raise
from stepwell.pipeline.paged_reads import all_entries
from stepwell.runtime.periodic import PeriodicTask
from stepwell.state.executions import Executions
from stepwell.state.locks import LockOperations, schedule_request

__all__ = ["PlannedRemoval", "RetentionOperations", "RetentionPlan", "RetentionReport", "RetentionTask", "retain_alone"]

log = logging.getLogger(__name__)

_RULES = internal_path("retention", DEFAULT_WORKSPACE)
_POLICY, _DOING = "policy/", "doing/"
_RESTORE = internal_path("restore", DEFAULT_WORKSPACE)

_PAGE = 500
_BATCH = 100
"""Executions that are treated together: few enough that other writes do not wait long behind them."""
_FILE_BYTES = 8 * 1024 * 1024
_MOST_ITEMS_COUNTED = 100_000
_MOST_REMOVALS = 100_000

_LOCK = "retention"
_AT_MOST_SECONDS, _AT_LEAST_SECONDS = 240.0, 10.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 60.0, 3_600.0
_WORK_SHARE = 0.01
"""The share of the time that looking through executions may take."""


class RetentionReport(PlainRecord, frozen=True, kw_only=True):
    """The result of one round of removals."""

    removed: int = 0
    """Executions; a tombstone stays of each."""
    cleared: int = 0
    """Executions whose values were removed, and whose status stays."""
    rotated: int = 0
    """Receipts that a snapshot took the place of."""
    items: int = 0
    """Ended queue items."""
    problems: tuple[str, ...] = ()
    """Executions that could not be treated, and why; the next round tries them again."""
    is_complete: bool = True
    """False if the round ended before it had looked at everything; the next one goes on."""


class PlannedRemoval(PlainRecord, frozen=True, kw_only=True):
    """One execution that a policy will do something to."""

    at_ms: int
    """When, by the store's clock; in the past if the next round does it."""
    action: RetentionAction
    policy: str
    rule: str
    execution_id: str
    workspace_id: str
    workflow_id: str
    status: str


class RetentionPlan(PlainRecord, frozen=True, kw_only=True):
    """The removals that are due until a time. Nothing was removed."""

    until_ms: int
    counts: dict[str, int]
    """By action, and ``items``: how many."""
    first: tuple[PlannedRemoval, ...]
    """Those that go first, in order of time."""
    is_complete: bool = True
    """False if there are more ended items than were counted."""


class _Rules(NamedTuple):
    """The policies, as one round applies them."""

    now_ms: int
    policies: dict[str, RetentionPolicy]
    tiers: dict[str, Tier]
    workspaces: dict[str, Workspace]
    is_restoring: bool

    def of(self, workspace_id: str) -> RetentionPolicy | None:
        """Return the policy for a workspace."""
        workspace = self.workspaces.get(workspace_id)
        own = None if workspace is None else self.policies.get(workspace.tier)
        return own or self.policies.get(EVERY_TIER)

    def scans(self, now_ms: int) -> list[tuple[str, int | None]]:
        """Return the statuses to look through, each with the latest creation of an execution that may be due; None: any."""
        if any(policy.receipts is not None for policy in self.policies.values()):
            return [(str(status), None) for status in Status]
        spans: dict[str, float] = {}
        for policy in self.policies.values():
            for status, seconds in (*policy.executions.items(), *policy.payloads.items()):
                spans[status] = min(seconds, spans.get(status, seconds))
        return [(status, now_ms - round(seconds * 1000)) for status, seconds in sorted(spans.items())]

    def item_groups(self) -> dict[tuple[str, float], list[str]]:
        """Return the workspaces whose ended items are kept alike, by status and seconds."""
        spans = {
            name: item_seconds(self.of(name), tier_at(self.tiers[each.tier], each, self.now_ms))
            for name, each in self.workspaces.items()
        }
        return items_that_end(spans)


class _Candidate(NamedTuple):
    """An execution with what is due for it."""

    head: Head
    policy: RetentionPolicy
    due: Due
    ended_ms: int
    """When it ended; 0 if it has not."""


class _Counts:
    """The removals of a round so far."""

    def __init__(self) -> None:
        self.removed = self.cleared = self.rotated = self.items = 0
        self.problems: list[str] = []

    def fail(self, execution_id: str, error: Exception) -> None:
        self.problems.append(f"execution {execution_id!r}: {error}")

    def report(self, *, is_complete: bool) -> RetentionReport:
        return RetentionReport(
            removed=self.removed,
            cleared=self.cleared,
            rotated=self.rotated,
            items=self.items,
            problems=tuple(self.problems[:10]),
            is_complete=is_complete,
        )


class RetentionOperations:
    """Operations on the policies of one store, and the rounds that apply them."""

    def __init__(self, store: Store, executions: Executions, clock: Clock) -> None:
        self._store, self._executions, self._clock = store, executions, clock
        self._removals: dict[str, Removal | None] = {}
        """What was found about chains that are only a snapshot, by their newest receipts: each pass looks at them again."""
        self._position: tuple[int, tuple[int, str] | None] | None = None
        """Where the last round stopped: the number of its scan, and the last execution that it looked at."""

    # Policies.

    def put(self, policy: RetentionPolicy) -> Operation[RetentionPolicy]:
        """Set the policy of a tier; it holds for what was stored before, too."""
        if policy.tier != EVERY_TIER:
            tiers = yield from read(self._store.tiers)
            if policy.tier not in {each.name for each in tiers}:
                raise NotFound(
                    f"there is no tier {policy.tier!r}; there are {', '.join(each.name for each in tiers)}, and '*' for all"
                )
        row = msgspec.Raw(msgspec.json.encode(policy, order="deterministic"))
        yield from write_or_raise(StateBatch((Put(_RULES, _POLICY + policy.tier, row),)))
        return policy

    def remove(self, tier: str) -> Operation[bool]:
        """Remove the policy of a tier: nothing more goes by it."""
        outcome = yield from write_or_raise(StateBatch((Delete(_RULES, _POLICY + check_key(tier, "a tier's name")),)))
        return bool(isinstance(outcome, Written) and outcome.answers and outcome.answers[0])

    def policies(self) -> Operation[list[RetentionPolicy]]:
        """Return all policies by tier."""
        rules = yield from read(self._rules)
        return [rules.policies[name] for name in sorted(rules.policies)]

    def _rules(self) -> _Rules:
        store = self._store
        policies = [_policy(entry.data or b"") for _, entry in all_entries(store, _RULES, prefix=_POLICY)]
        return _Rules(
            store.now_ms(),
            {each.tier: each for each in policies},
            {each.name: each for each in store.tiers()},
            {each.workspace_id: each for each in store.workspaces()},
            store.totals(_RESTORE).keys > 0,
        )

    # Tombstones.

    def tombstone(self, execution_id: str) -> Operation[Tombstone]:
        """Return the tombstone of an execution that was removed. Raise ``NotFound`` if it has none."""
        found = yield from read(lambda: self._store.entries(tombstone_path(execution_id), (execution_id,)))
        head = yield from read(lambda: self._store.head(execution_id))
        if execution_id not in found or head is not None:
            raise no_tombstone(execution_id)
        return decode_tombstone(found[execution_id].data or b"")

    def tombstones(self, workspace_id: str | None, after: str | None, limit: int) -> Operation[list[Tombstone]]:
        """Return a page of tombstones, in an order of their own that does not change."""
        if workspace_id is not None:
            check_key(workspace_id, "a workspace id")
        if type(limit) is not int or not 1 <= limit <= 10_000:
            raise InvalidInput(f"limit is a whole number from 1 to 10,000, not {limit!r}")
        return (yield from read(lambda: self._page_of_tombstones(workspace_id, after, limit)))

    def _page_of_tombstones(self, workspace_id: str | None, after: str | None, limit: int) -> list[Tombstone]:
        start = None if after is None else tombstone_path(after)
        paths = [path for path in self._store.scopes(DEFAULT_WORKSPACE) if path.startswith("tombstone/")]
        found: list[Tombstone] = []
        for path in paths:
            if start is None or path >= start:
                for tombstone in self._tombstones_in(path, after if path == start else None):
                    if workspace_id in (None, tombstone.workspace_id):
                        found.append(tombstone)
                    if len(found) == limit:
                        return found
        return found

    def _tombstones_in(self, path: str, after: str | None) -> Iterator[Tombstone]:
        while rows := self._store.scan(path, after=after):
            there = self._store.head_digests([key for key, _ in rows])
            for (_, entry), digest in zip(rows, there, strict=True):
                if digest is None:  # else a round died before it deleted the execution, and the next one does
                    yield decode_tombstone(entry.data or b"")
            after = rows[-1][0]

    # The plan.

    def plan(self, within_seconds: float, limit: int) -> Operation[RetentionPlan]:
        """Return what will go within a time, without removing anything."""
        if type(limit) is not int or not 0 <= limit <= 100_000:
            raise InvalidInput(f"limit is a whole number from 0 to 100,000, not {limit!r}")
        return (yield from read(lambda: self._plan(within_seconds, limit)))

    def _plan(self, within_seconds: float, limit: int) -> RetentionPlan:
        rules = self._rules()
        until_ms = rules.now_ms + round(within_seconds * 1000)
        counts: dict[str, int] = {str(action): 0 for action in RetentionAction}

        def planned() -> Iterator[PlannedRemoval]:
            for page in self._all_pages(rules, until_ms):
                for each in self._candidates(rules, page, until_ms, every=True):
                    counts[each.due.action] += 1
                    yield _planned(each)

        first = nsmallest(limit, planned(), key=lambda each: (each.at_ms, each.execution_id)) if limit else list(planned())[:0]
        counts["items"], is_complete = self._items_until(rules, until_ms)
        return RetentionPlan(until_ms=until_ms, counts=counts, first=tuple(first), is_complete=is_complete)

    def _all_pages(self, rules: _Rules, until_ms: int) -> Iterator[list[Head]]:
        for status, before_ms in rules.scans(until_ms):
            after = None if before_ms is None else (before_ms + 1, "")
            while page := self._store.find(ExecutionQuery(status=status, after=after, limit=_PAGE)):
                yield page
                after = _place(page[-1])

    def _items_until(self, rules: _Rules, until_ms: int) -> tuple[int, bool]:
        spans = {(status, name): seconds for (status, seconds), names in rules.item_groups().items() for name in names}
        count = seen = 0
        for status in sorted({status for status, _ in spans}):
            for item in self._items(status):
                seen += 1
                if seen > _MOST_ITEMS_COUNTED:
                    return count, False
                seconds = spans.get((status, item.workspace_id))
                count += seconds is not None and (item.finished_ms or 0) + round(seconds * 1000) <= until_ms
        return count, True

    def _items(self, status: str) -> Iterator[Item]:
        before: int | None = None
        while page := self._store.items(ItemQuery(status=status, before=before, limit=_PAGE)):
            yield from page
            before = page[-1].number

    # A round.

    def sweep(self, seconds: float, is_stopping: Callable[[], bool] = lambda: False) -> Operation[RetentionReport]:
        """Remove what is due, for about so many seconds. A round that was not complete is continued by the next.

        ``is_stopping``: whether the round is to end at once, as the worker that does it ends.
        """
        ends, counts = monotonic() + seconds, _Counts()

        def is_over() -> bool:
            return is_stopping() or monotonic() >= ends

        rules = yield from read(self._rules)
        if rules.is_restoring:  # the restore still compares what it has written with the backup
            return counts.report(is_complete=True)
        yield from self._resume(counts)
        is_complete = yield from self._drop_items(rules, is_over, counts)
        if rules.policies:
            is_complete = (yield from self._look_through(rules, is_over, counts)) and is_complete
        return counts.report(is_complete=is_complete)

    def _drop_items(self, rules: _Rules, is_over: Callable[[], bool], counts: _Counts) -> Operation[bool]:
        for (status, seconds), names in rules.item_groups().items():
            unit = DropItems(tuple(sorted(names)), (status,), seconds)
            while True:
                outcome = yield from write_or_raise(unit)
                answers = outcome.answers if isinstance(outcome, Written) else ()
                dropped = sum(each for each in answers if isinstance(each, int))
                counts.items += dropped
                if dropped:
                    fault("retention.items_dropped")
                if dropped < unit.limit:
                    break
                if is_over():
                    return False
        return True

    def _look_through(self, rules: _Rules, is_over: Callable[[], bool], counts: _Counts) -> Operation[bool]:
        scans = rules.scans(rules.now_ms)
        number, after = self._position or (0, None)
        while number < len(scans):
            status, before_ms = scans[number]
            if after is None and before_ms is not None:
                after = (before_ms + 1, "")
            query = ExecutionQuery(status=status, after=after, limit=_PAGE)
            page = yield from read(lambda query=query: self._store.find(query))
            due = yield from read(lambda page=page: list(self._candidates(rules, page, rules.now_ms)))
            for start in range(0, len(due), _BATCH):
                yield from self._treat(due[start : start + _BATCH], rules.now_ms, counts)
                if is_over() and start + _BATCH < len(due):
                    return False  # the next round begins with this page again
            if len(page) < _PAGE:
                number, after = number + 1, None
            else:
                after = _place(page[-1])
            self._position = (number, after)
            if is_over() and number < len(scans):
                return False
        self._position = None
        return True

    def _candidates(self, rules: _Rules, page: Iterable[Head], until_ms: int, *, every: bool = False) -> Iterator[_Candidate]:
        """Return the executions of a page for which something is due by a time: what comes first, or everything."""
        for head in page:
            policy = rules.of(head.workspace_id)
            if policy is None:
                continue
            is_final = head.status in FINAL
            removal = self._removal(head) if is_final else None
            ended_ms = head.updated_ms if removal is None else removal.ended_ms
            dues = dues_of(head, policy, ended_ms if is_final else None, has_payloads=removal is None)
            due = [each for each in dues if each.at_ms <= until_ms]
            if not every or (due and due[0].action is RetentionAction.REMOVE and due[0].at_ms <= rules.now_ms):
                due = due[:1]  # what is removed now is neither cleared nor rotated
            for each in due:
                if each.action is RetentionAction.ROTATE or not self._is_awaited(head):
                    yield _Candidate(head, policy, each, ended_ms if is_final else 0)

    def _removal(self, head: Head) -> Removal | None:
        """Return the note of an execution whose payloads were removed: such a chain is only a snapshot."""
        if head.base_revision != head.revision:
            return None
        if head.digest in self._removals:
            return self._removals[head.digest]
        try:
            base = self._store.base(head.execution_id)
            removal = None if base is None else removal_of(stored_state(base).sections["result"].get(ONLY))
        except StepwellError:  # damaged: what is wrong is said where it is treated
            return None
        if len(self._removals) >= _MOST_REMOVALS:
            self._removals.clear()
        self._removals[head.digest] = removal
        return removal

    def _is_awaited(self, head: Head) -> bool:
        """Return whether a parent that has not ended may still ask for the result of this execution."""
        if head.parent_id is None:
            return False
        parent = self._store.head(head.parent_id)
        return parent is not None and parent.status not in FINAL

    def _treat(self, batch: Sequence[_Candidate], now_ms: int, counts: _Counts) -> Operation[None]:
        by_action: dict[RetentionAction, list[_Candidate]] = {}
        for each in batch:
            by_action.setdefault(each.due.action, []).append(each)
        yield from self._remove(by_action.get(RetentionAction.REMOVE, []), now_ms, counts)
        yield from self._clear(by_action.get(RetentionAction.CLEAR, []), now_ms, counts)
        yield from self._rotate(by_action.get(RetentionAction.ROTATE, []), counts)

    # Removal.

    def _remove(self, batch: list[_Candidate], now_ms: int, counts: _Counts) -> Operation[None]:
        if not batch:
            return
        files = yield from self._archive([(each.head, each.head.revision, each.policy) for each in batch], counts)
        ready = [each for each in batch if each.head.execution_id in files]
        tombs = {each.head.execution_id: _tombstone(each, now_ms, files[each.head.execution_id]) for each in ready}
        ops: list[StateOp] = [
            Put(
                tombstone_path(name),
                name,
                msgspec.Raw(encode_tombstone(tombstone)),
                ttl_ms=None if each.policy.tombstones is None else round(each.policy.tombstones * 1000) or 1,
            )
            for each, (name, tombstone) in zip(ready, tombs.items(), strict=True)
        ]
        if not ops:
            return
        yield from write_or_raise(StateBatch((*ops, *(yield from self._leftovers(tombs)))))
        fault("retention.tombstones_written")
        outcomes = yield from write_many([Deletion(each.head.execution_id, each.head.digest) for each in ready])
        fault("retention.removed")
        spared: list[StateOp] = []
        for each, outcome in zip(ready, outcomes, strict=True):
            name = each.head.execution_id
            self._executions.forget(name)
            if isinstance(outcome, Conflict):  # it was retried meanwhile
                spared.append(Delete(tombstone_path(name), name))
            elif isinstance(outcome, Written):
                counts.removed += 1
            elif isinstance(outcome, StepwellError) and not isinstance(outcome, NotFound):
                counts.fail(name, outcome)
        if spared:
            yield from write_or_raise(StateBatch(tuple(spared)))

    def _leftovers(self, ids: Iterable[str]) -> Operation[list[StateOp]]:
        """Return the operations that drop messages to executions that have ended, and other records of their own."""
        return (yield from read(lambda: self._leftovers_now(list(ids))))

    def _leftovers_now(self, ids: Sequence[str]) -> list[StateOp]:
        heads = (self._store.head(each) for each in ids)
        paths = [
            internal_path(kind, head.workspace_id, head.execution_id)
            for head in heads
            if head is not None
            for kind in ("inbox", "late_result", "child_places", "engine_payload")
        ]
        return [Clear(path) for path in paths if self._store.totals(path).keys]

    # Payloads.

    def remove_payloads(self, execution_id: str) -> Operation[None]:
        """Remove the values of one execution now, as a policy would; its status, times and ids stay in the lists."""
        head = yield from self._executions.head(execution_id)
        if head.status not in FINAL:
            raise Conflict(f"execution {execution_id!r} is {head.status}; its values can be removed once it has ended")
        if (yield from read(lambda: self._is_awaited(head))):
            raise Conflict(f"the parent of execution {execution_id!r} may still ask for its result; wait for its end")
        check_has_payloads((yield from self._executions.newest(execution_id)).state)
        rules = yield from read(self._rules)
        own = rules.of(head.workspace_id)
        policy = RetentionPolicy(tier=BY_REQUEST, payloads={head.status: 0.0}, archive=None if own is None else own.archive)
        counts = _Counts()
        candidate = _Candidate(head, policy, Due(RetentionAction.CLEAR, rules.now_ms), head.updated_ms)
        yield from self._clear([candidate], rules.now_ms, counts)
        if counts.problems:
            raise Conflict(f"the values of {counts.problems[0]}")

    def _clear(self, batch: list[_Candidate], now_ms: int, counts: _Counts) -> Operation[None]:
        if not batch:
            return
        intents = ((each.head.execution_id, msgspec.json.encode(each.policy, order="deterministic")) for each in batch)
        yield from write_or_raise(StateBatch(tuple(Put(_RULES, _DOING + name, msgspec.Raw(policy)) for name, policy in intents)))
        fault("retention.intents_noted")
        for each in batch:
            try:
                yield from self._clear_one(each, now_ms)
                fault("retention.values_removed")
            except ValueErased:
                pass  # its values are gone with their key
            except (Conflict, NotFound, Corrupted, ValidationFailed) as error:
                counts.fail(each.head.execution_id, error)
        yield from self._finish([(each.head.execution_id, each.policy) for each in batch], counts)

    def _clear_one(self, each: _Candidate, now_ms: int) -> Operation[None]:
        session = yield from self._executions.begin(each.head.execution_id)
        if session.revision != each.head.revision:
            raise Conflict(f"execution {each.head.execution_id!r} has changed since; the next round looks again")
        rule = rule_text("payloads", each.head.status, each.policy.payloads[each.head.status])
        note = Removal(removed_ms=now_ms, ended_ms=each.ended_ms, policy=each.policy.tier, rule=rule)
        wrapped = msgspec.Raw(encode_removal({"removed": note}))
        yield from self._executions.commit(session, [RemovePayloads(wrapped)])

    def _finish(self, batch: Sequence[tuple[str, RetentionPolicy]], counts: _Counts) -> Operation[None]:
        """Archive the receipts of executions whose values were removed, leave a snapshot, and drop the intents."""
        ready: list[tuple[Head, State, RetentionPolicy]] = []
        left = {name for name, _ in batch}
        for name, policy in batch:
            try:
                head = yield from self._executions.head(name)
                state = yield from self._executions.state_at(name, head.revision)
            except NotFound:
                continue
            except Corrupted as error:
                counts.fail(name, error)
                continue
            if removal_of(state.sections["result"].get(ONLY)) is not None:
                ready.append((head, state, policy))
        left -= {head.execution_id for head, *_ in ready}
        wanted = [(head, head.revision, policy) for head, _, policy in ready if head.base_revision < head.revision]
        files = yield from self._archive(wanted, counts)
        left |= {head.execution_id for head, *_ in ready if head.base_revision == head.revision}
        units = [Archiving(head.execution_id, store_snapshot(state)) for head, state, _ in ready if head.execution_id in files]
        for unit, outcome in zip(units, (yield from write_many(units)) if units else (), strict=True):
            self._executions.forget(unit.execution_id)
            if isinstance(outcome, StepwellError):
                counts.fail(unit.execution_id, outcome)
            else:
                counts.cleared += 1
                left.add(unit.execution_id)
        fault("retention.receipts_dropped")
        leftovers = yield from self._leftovers([unit.execution_id for unit in units])
        # The intents of those whose receipts could not be archived stay, for the next round.
        yield from write_or_raise(StateBatch((*leftovers, *(Delete(_RULES, _DOING + name) for name in sorted(left)))))

    def _resume(self, counts: _Counts) -> Operation[None]:
        """Finish what a round had begun that died."""
        after: str | None = None
        while True:
            begun = yield from self._begun(after)
            if not begun:
                return
            yield from self._finish(begun, counts)
            after = _DOING + begun[-1][0]

    def _begun(self, after: str | None) -> Operation[list[tuple[str, RetentionPolicy]]]:
        rows = yield from read(lambda: self._store.scan(_RULES, prefix=_DOING, after=after, limit=_BATCH))
        return [(key.removeprefix(_DOING), _policy(entry.data or b"")) for key, entry in rows]

    # Rotation.

    def _rotate(self, batch: list[_Candidate], counts: _Counts) -> Operation[None]:
        ready: list[tuple[Head, int, RetentionPolicy]] = []
        states: dict[str, State] = {}
        for each in batch:
            head, through = each.head, each.head.revision - (each.policy.receipts or 0)
            try:
                states[head.execution_id] = yield from self._executions.state_at(head.execution_id, through)
                ready.append((head, through, each.policy))
            except ValueErased:
                pass  # no snapshot can be made of it; its receipts stay, as what they hold is unreadable
            except (NotFound, Corrupted) as error:
                counts.fail(head.execution_id, error)
        files = yield from self._archive(ready, counts)
        done = [(head, through) for head, through, _ in ready if head.execution_id in files]
        units = [Archiving(head.execution_id, store_snapshot(states[head.execution_id])) for head, _ in done]
        outcomes = (yield from write_many(units)) if units else []
        for (head, through), outcome in zip(done, outcomes, strict=True):
            if isinstance(outcome, StepwellError):
                counts.fail(head.execution_id, outcome)
            else:
                counts.rotated += through - head.base_revision
        fault("retention.receipts_dropped")

    # Archiving.

    def _archive(self, wanted: Sequence[tuple[Head, int, RetentionPolicy]], counts: _Counts) -> Operation[dict[str, str | None]]:
        """Write the receipts of executions up to a revision into archive files.

        Return the file of each execution; None for one whose policy keeps no archive. One whose receipts cannot be read is left
        out.
        """
        return (yield from read_slowly(lambda: self._archive_now(wanted, counts)))

    def _archive_now(self, wanted: Sequence[tuple[Head, int, RetentionPolicy]], counts: _Counts) -> dict[str, str | None]:
        files: dict[str, str | None] = {}
        groups: dict[tuple[str, str], list[tuple[Head, int]]] = {}
        for head, through, policy in wanted:
            if policy.archive is None or through <= head.base_revision:
                files[head.execution_id] = None
            else:
                groups.setdefault((policy.archive, head.workspace_id), []).append((head, through))
        for (folder, workspace), those in groups.items():
            proofs: list[ArchivedProof] = []
            for head, through in those:
                try:
                    proofs.append(self._proof(head, through))
                except Corrupted as error:
                    counts.fail(head.execution_id, error)
                if sum(len(each.proof) for each in proofs) >= _FILE_BYTES:
                    files |= self._write_file(folder, workspace, proofs)
                    proofs = []
            files |= self._write_file(folder, workspace, proofs)
        return files

    def _proof(self, head: Head, through: int) -> ArchivedProof:
        return ArchivedProof(
            execution_id=head.execution_id,
            workspace_id=head.workspace_id,
            workflow_id=head.workflow_id,
            status=head.status,
            first=head.base_revision + 1,
            last=through,
            proof=self._executions.proof(head, through).decode(),
        )

    def _write_file(self, folder: str, workspace: str, proofs: Sequence[ArchivedProof]) -> dict[str, str | None]:
        if not proofs:
            return {}
        name = write_archive(Path(folder), workspace, proofs, self._clock.now())
        fault("retention.archive_written")
        return {each.execution_id: name for each in proofs}


_policy = msgspec.json.Decoder(RetentionPolicy).decode


def _place(head: Head) -> tuple[int, str]:
    return head.created_ms, head.execution_id


def _planned(each: _Candidate) -> PlannedRemoval:
    head, policy = each.head, each.policy
    return PlannedRemoval(
        at_ms=each.due.at_ms,
        action=each.due.action,
        policy=policy.tier,
        rule=_rule_of(each),
        execution_id=head.execution_id,
        workspace_id=head.workspace_id,
        workflow_id=head.workflow_id,
        status=head.status,
    )


def _rule_of(each: _Candidate) -> str:
    match each.due.action:
        case RetentionAction.REMOVE:
            return rule_text("executions", each.head.status, each.policy.executions[each.head.status])
        case RetentionAction.CLEAR:
            return rule_text("payloads", each.head.status, each.policy.payloads[each.head.status])
        case RetentionAction.ROTATE:
            return f"receipts={each.policy.receipts}"


def _tombstone(each: _Candidate, now_ms: int, archive: str | None) -> Tombstone:
    head = each.head
    return Tombstone(
        execution_id=head.execution_id,
        workspace_id=head.workspace_id,
        workflow_id=head.workflow_id,
        version=head.version,
        status=head.status,
        created_ms=head.created_ms,
        ended_ms=each.ended_ms,
        revision=head.revision,
        digest=head.digest,
        removed_ms=now_ms,
        policy=each.policy.tier,
        rule=_rule_of(each),
        archive=archive,
    )


def retain_alone(
    retention: RetentionOperations, locks: LockOperations, is_stopping: Callable[[], bool] = lambda: False
) -> Operation[RetentionReport | None]:
    """Do one round; return None if another process is at it or has just been."""
    request = schedule_request(scheduled_lock(_LOCK), _LOCK, _AT_MOST_SECONDS, _AT_LEAST_SECONDS)
    try:
        held = yield from locks.acquire(request)
    except LockHeld:
        return None
    try:
        return (yield from retention.sweep(_AT_LEAST_SECONDS, is_stopping))
    finally:
        yield from locks.release(held, _AT_LEAST_SECONDS)


class RetentionTask(PeriodicTask):
    """Apply the policies on a worker's event loop. One worker of a store does it at a time."""

    name = "retention"

    def __init__(self, retention: RetentionOperations, locks: LockOperations, driver: AsyncDriver) -> None:
        super().__init__()
        self._retention, self._locks, self._driver = retention, locks, driver
        self._problems: tuple[str, ...] = ()
        self._spent = 0.0

    async def work(self) -> float:
        """Do a round, unless another process does or just did; return the seconds until the next one."""
        began = monotonic()
        report = await self._driver.run(retain_alone(self._retention, self._locks, lambda: self.is_stopping))
        if report is None:
            return _SHORTEST_PAUSE
        if report.problems and report.problems != self._problems:
            log.warning("retention left %d executions for the next round, the first: %s", len(report.problems), report.problems[0])
        self._problems = report.problems
        self._spent += monotonic() - began
        if not report.is_complete:
            return 1.0
        pause, self._spent = self._spent / _WORK_SHARE, 0.0
        return min(max(pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)
