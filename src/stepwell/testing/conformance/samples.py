"""Samples: the smallest executions, units and outcomes that the tests of this suite are written with.

``Execution`` is one writer's view of one execution. It builds the commit that would come next (``commit``), so that a test can
write it late, twice or not at all; ``land`` also writes it and moves the view on.

Samples for the tests of the queue: the smallest items, workspaces and claims.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pytest

from stepwell.clock import FakeClock, to_ms
from stepwell.contract.store import Store, StoreReads
from stepwell.errors import StepwellError
from stepwell.model.commit import Acquire, Adoption, Claim, Commit, Creation, Head, Lease, Outcome, StateBatch, Unit, Written
from stepwell.model.draft import Draft
from stepwell.model.execution_state import State
from stepwell.model.ids import new_commit_id, new_id
from stepwell.model.limits import Limits
from stepwell.model.mutation import Create, Mutation, RecordStep, SetStatus, SetVariable
from stepwell.model.queue_item import (
    Claimed,
    ClaimItems,
    DropItems,
    Enqueue,
    Enqueued,
    Item,
    ItemMark,
    ItemQuery,
    NewItem,
    PutTier,
    PutWorkspace,
    RecoverItems,
    ReturnItem,
    Tier,
    Workspace,
)
from stepwell.model.receipt_chain import Verification, build_commit, fast_forward, rebuild, settle, verify
from stepwell.model.record import Metadata, StepOutput, encode_record, encode_step
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Put, StateOp, StoredEntry
from stepwell.model.snapshot import StoredSnapshot, store_snapshot
from stepwell.model.validation import plan
from stepwell.model.value import Value, canonical, decode

__all__ = [
    "HOUR",
    "NOTHING",
    "SCOPE",
    "SampleExecution",
    "acquire",
    "add",
    "added",
    "answers",
    "claim",
    "claim_items",
    "claimed_item",
    "content",
    "drop_items",
    "end",
    "everything",
    "executed",
    "fresh_id",
    "give_back",
    "ids_of",
    "landed",
    "new_item",
    "pages_of",
    "put",
    "put_workspace",
    "recover",
    "refused",
    "status",
    "statuses",
    "step",
    "stored",
    "used",
    "variable",
    "walk",
    "write",
    "write_state",
    "written_at",
]


E = TypeVar("E", bound=StepwellError)
T = TypeVar("T")
Raw = msgspec.Raw

# Leases and TTLs of this suite last hours and the clock is moved by hours: a store that lives by its server's clock, which goes on
# while a test runs, gives the same answers as one whose time stands still.
HOUR = 3_600

ENDED = ("COMPLETED", "FAILED", "CANCELLED")
"""The statuses of items that have ended."""

SCOPE = Scope.custom("conformance", "acme").path
START = datetime(2026, 1, 1, tzinfo=UTC)

_numbers = itertools.count(1)


def fresh_id(name: str = "id") -> str:
    """Return an id that is new in this process."""
    return f"{name}-{next(_numbers)}"


def write(store: Store, unit: Unit) -> Outcome:
    """Write one unit alone; its outcome."""
    outcomes = store.write([unit])
    assert len(outcomes) == 1, "a store gives one outcome for each unit"
    return outcomes[0]


def landed(outcome: Outcome) -> Written:
    """The outcome of a unit that must have been written."""
    assert isinstance(outcome, Written), f"not written: {outcome!r}"
    return outcome


def refused(outcome: Outcome, kind: type[E]) -> E:
    """The refusal, which must be of this very kind."""
    assert type(outcome) is kind, f"not refused with {kind.__name__}: {outcome!r}"
    return outcome


def answers(outcome: Outcome) -> list[Any]:
    """The answers of a unit that must have been written."""
    return list(landed(outcome).answers)


def pages_of(fetch: Callable[[Any], list[T]], start: object, cursor: Callable[[T], object]) -> list[list[T]]:
    """Every page, each fetched from where the one before ended; a store whose pages never end is stopped."""
    pages: list[list[T]] = []
    while page := fetch(cursor(pages[-1][-1]) if pages else start):
        pages.append(page)
        assert len(pages) <= 100, "the pages come to no end"
    return pages


def claim(store: Store, execution_id: str, *, holder: str = "a", seconds: float = HOUR) -> Lease:
    """The lease of an execution, which must be free."""
    [lease] = answers(write(store, Claim(execution_id, holder, seconds)))
    assert isinstance(lease, Lease)
    return lease


def acquire(store: Store, name: str = "door", *, holder: str = "a", seconds: float = HOUR) -> Lease:
    """The lease of a lock, which must be free or the holder's."""
    [lease] = answers(write(store, Acquire(name, holder, seconds)))
    assert isinstance(lease, Lease)
    return lease


def put(key: str, value: Value = 1, *, scope: str = SCOPE, ttl: float | None = None, **fields: Any) -> Put:
    """An operation that sets a key; ``ttl`` in seconds."""
    return Put(scope, key, Raw(canonical(value)), ttl_ms=None if ttl is None else round(ttl * 1000), **fields)


def write_state(store: Store, *ops: StateOp) -> list[Any]:
    """Write operations that must land, as one batch; their answers."""
    return answers(write(store, StateBatch(ops)))


def content(store: StoreReads, scope: str = SCOPE) -> dict[str, Value]:
    """Everything alive in a scope."""
    return {key: decode(_data(entry)) for key, entry in store.scan(scope)}


def _data(entry: StoredEntry) -> bytes:
    assert entry.data is not None, "what is alive has a value"
    return entry.data


def variable(name: str = "n", value: Value = 1) -> SetVariable:
    """A mutation that sets a variable."""
    return SetVariable(name, Raw(canonical(value)))


def step(name: str, output: Value = None) -> RecordStep:
    """A mutation that records a step's output."""
    return RecordStep(name, Raw(encode_step(executed(name, output))))


def executed(name: str, output: Value = None) -> StepOutput:
    """A step's output as a user hands it in."""
    return StepOutput(name, name, "COMPLETED", output, START, 5)


def status(name: str) -> SetStatus:
    """A mutation that changes the execution's status."""
    return SetStatus(name)


class SampleExecution:
    """One writer's view of an execution: builds the commit that comes next, and follows those that it landed."""

    def __init__(
        self,
        store: Store,
        execution_id: str = "order-7",
        *,
        workspace: str = "acme",
        workflow: str = "orders",
        created_at: datetime = START,
    ) -> None:
        self.store, self.id = store, execution_id
        self.workspace, self.workflow, self.created_at = workspace, workflow, created_at
        self.state = State()

    @property
    def head(self) -> Head:
        """The store's row, which must be there."""
        head = self.store.head(self.id)
        assert head is not None, f"execution {self.id!r} is gone"
        return head

    def creation(self, *mutations: Mutation, **fields: Any) -> Commit:
        """The commit that creates the execution, not written yet; ``fields`` replace some of its own, such as ``ops``."""
        return self._build(self._birth(mutations), fields)[1]

    def create(self, *mutations: Mutation, **fields: Any) -> SampleExecution:
        """Write the creation; the execution exists from here on."""
        draft, commit = self._build(self._birth(mutations), fields)
        self._land(draft, commit)
        return self

    def commit(self, *mutations: Mutation, **fields: Any) -> Commit:
        """The commit that comes next, not written yet; ``fields`` replace some of its own, such as ``fence``."""
        return self._build(self._change(mutations), fields)[1]

    def land(self, *mutations: Mutation, **fields: Any) -> Commit:
        """Write the commit that comes next, which must be accepted, and move this view on."""
        draft, commit = self._build(self._change(mutations), fields)
        return self._land(draft, commit)

    def foresee(self, *mutations: Mutation, **fields: Any) -> Commit:
        """The commit that comes next, not written yet, with this view moved on as if it had landed."""
        draft, commit = self._build(self._birth(mutations) if self.state.revision < 0 else self._change(mutations), fields)
        settle(draft, commit)
        return commit

    def grow(self, commits: int) -> SampleExecution:
        """Land that many commits."""
        for _ in range(commits):
            self.land()
        return self

    def snapshot(self) -> StoredSnapshot:
        """The state of this view as a store keeps it."""
        return store_snapshot(self.state)

    def follow(self) -> State:
        """Take over the newest state of the store, checked link by link."""
        loaded = self.store.load(self.id)
        assert loaded is not None, f"execution {self.id!r} is gone"
        self.state = rebuild(loaded)
        return self.state

    def catch_up(self) -> State:
        """Take over what the store has beyond this view."""
        loaded = self.store.load(self.id, since=self.state.revision)
        assert loaded is not None, f"execution {self.id!r} is gone"
        assert fast_forward(self.state, loaded), "the store's commits do not follow from what it said before"
        return self.state

    def adoption(self, **fields: Any) -> Adoption:
        """The snapshot of this view, to be taken in by a store."""
        adoption = Adoption(
            execution_id=self.id,
            workspace_id=self.workspace,
            creation=Creation(self.workflow, 3),
            status="PENDING",
            digest=self.state.receipt,
            snapshot=self.snapshot(),
            signature=None,
            adopted_ms=to_ms(self.created_at),
        )
        return msgspec.structs.replace(adoption, **fields)

    def _birth(self, mutations: Sequence[Mutation]) -> Sequence[Mutation]:
        who = Metadata(self.id, self.workspace, self.workflow, 3, self.created_at)
        return [Create(Raw(encode_record(who)), Raw(b"{}")), *mutations]

    def _change(self, mutations: Sequence[Mutation]) -> Sequence[Mutation]:
        return mutations or [variable("n", self.state.revision + 1)]

    def _build(self, mutations: Sequence[Mutation], fields: dict[str, Any]) -> tuple[Draft, Commit]:
        draft = plan(self.state, mutations, Limits())
        commit, _ = build_commit(
            draft,
            execution_id=self.id,
            workspace_id=self.workspace,
            # The id is inside the receipt, so it has to be known before the commit is built.
            commit_id=fields.get("commit_id") or new_commit_id(self.state.revision + 1, new_id()),
            committed_at=self.created_at + timedelta(seconds=self.state.revision + 1),
            creation=Creation(self.workflow, 3) if isinstance(mutations[0], Create) else None,
            is_named="commit_id" in fields,
        )
        return draft, msgspec.structs.replace(commit, **fields)

    def _land(self, draft: Draft, commit: Commit) -> Commit:
        landed(write(self.store, commit))
        settle(draft, commit)
        return commit


NOTHING: tuple[object, ...] = (None, None, [], None)
"""The result of ``everything`` for an execution that does not exist."""


def everything(store: StoreReads, execution_id: str) -> tuple[object, ...]:
    """All that a store says about one execution."""
    loaded, rows = store.load(execution_id), store.history(execution_id, -1, 1_000)
    view = None if loaded is None else (loaded.head, loaded.snapshot, list(loaded.commits))
    return store.head(execution_id), view, rows, store.base(execution_id)


def walk(store: Store, execution_id: str) -> Verification:
    """Walk the whole chain that a store holds, every digest checked."""
    head = store.head(execution_id)
    assert head is not None, f"execution {execution_id!r} is gone"
    rows = store.history(execution_id, head.base_revision, 1_000_000)
    return verify(head, store.base(execution_id), rows)


def new_item(name: str | None = None, workspace: str = "default", **fields: Any) -> NewItem:
    """A request for an execution; ``fields`` replace some of its own."""
    item_id = name or fresh_id("item")
    own: dict[str, Any] = {
        "item_id": item_id,
        "workspace_id": workspace,
        "workflow_id": "orders",
        "version": 3,
        "execution_id": f"of-{item_id}",
        "input": b'{"a":1}',
        "body_digest": "d1",
    }
    return NewItem(**{**own, **fields})


def added(store: Store, *items: NewItem) -> list[Any]:
    """Enqueue items as one unit; an answer or a refusal for each."""
    return answers(write(store, Enqueue(items)))


_MOST_TRIES = 2_000


def written_at(store: Store, clock: FakeClock, offset_ms: int, prepare: Callable[[], tuple[int, Unit]]) -> Outcome:
    """Write a unit a number of milliseconds after a moment; its outcome.

    A server's clock goes on meanwhile, so this prepares again until the store's clock showed that very millisecond before and after
    the write.

    - ``prepare``: returns the moment, by the store's clock, and the unit; called once for each try.
    """
    for _ in range(_MOST_TRIES):
        moment, unit = prepare()
        left = moment + offset_ms - store.now_ms()
        if left < 0:
            continue
        clock.advance(left / 1000)
        before = store.now_ms()
        outcome = write(store, unit)
        if before == store.now_ms() == moment + offset_ms:
            return outcome
    pytest.skip("this machine is too busy for a write within one millisecond")


def add(store: Store, *items: NewItem | str) -> list[str]:
    """Enqueue items that must be new, as one unit; their ids."""
    given = [new_item(item) if isinstance(item, str) else item for item in items]
    got = added(store, *given)
    assert [(answer.item_id, answer.is_new) for answer in got if isinstance(answer, Enqueued)] == [(n.item_id, True) for n in given]
    return [new.item_id for new in given]


def put_workspace(store: Store, name: str = "acme", *, is_paused: bool = False, **limits: Any) -> None:
    """A workspace with a tier of its own; the tier's name is the workspace's, in small letters."""
    landed(write(store, PutTier(Tier(name=name.lower(), **limits))))
    landed(write(store, PutWorkspace(Workspace(workspace_id=name, tier=name.lower(), is_paused=is_paused))))


def claim_items(store: Store, limit: int = 10, *, holder: str = "d", seconds: float = HOUR, **fields: Any) -> list[Claimed]:
    """Return the items that a claim takes."""
    return answers(write(store, ClaimItems(holder, seconds, limit, **fields)))


def claimed_item(store: Store, name: str = "a", **fields: Any) -> Claimed:
    """An item that was enqueued and claimed, with nothing else waiting."""
    add(store, new_item(name, **fields))
    [claimed] = claim_items(store)
    return claimed


def end(store: Store, *items: Claimed, status: str = "COMPLETED") -> None:
    """End items that were claimed."""
    for item in items:
        landed(write(store, ItemMark(item.item_id, status, item.fence)))


def recover(store: Store, limit: int = 1_000) -> list[str]:
    """The ids of the items that a recovery returned."""
    return answers(write(store, RecoverItems(limit)))


def drop_items(store: Store, *workspaces: str, hours: float, statuses: tuple[str, ...] = ENDED, limit: int = 1_000) -> int:
    """Drop items of workspaces that ended so many hours ago; how many there were."""
    [count] = answers(write(store, DropItems(workspaces, statuses, hours * HOUR, limit)))
    return count


def ids_of(items: list[Claimed] | list[Item]) -> list[str]:
    """The ids of items."""
    return [item.item_id for item in items]


def stored(store: Store, item_id: str) -> Item:
    """An item that must be there."""
    item = store.item(item_id)
    assert item is not None, f"item {item_id!r} is gone"
    return item


def statuses(store: Store, workspace: str | None = None) -> dict[str, str]:
    """Every item's status, the first one first."""
    items = store.items(ItemQuery(workspace_id=workspace, limit=100_000))
    return {item.item_id: item.status.value for item in reversed(items)}


def used(store: Store, workspace: str) -> int:
    """Return how many slots the rows of a workspace use."""
    return sum(status in ("CLAIMED", "DISPATCHED") for status in statuses(store, workspace).values())


def give_back(store: Store, item: Claimed, error: str | None = None, **fields: Any) -> Item:
    """Return an item; how it is afterwards."""
    [after] = answers(write(store, ReturnItem(item.item_id, item.fence, error, **fields)))
    assert after == stored(store, item.item_id)
    return after
