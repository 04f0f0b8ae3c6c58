"""T01 for everything else that is written: a group that fails is taken back whole, and nobody sees a part of it meanwhile."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import apsw
import msgspec
import pytest
from tests.faults.hooks import Boom, Trace, at
from tests.faults.leases import claim

from stepwell import CommitUnknown, FakeClock, Scope, Stepwell, StepwellError
from stepwell.fault_points import armed
from stepwell.model.commit import (
    Acquire,
    Adoption,
    Archiving,
    Claim,
    ClaimDue,
    Commit,
    Creation,
    Deletion,
    Extension,
    Lease,
    Release,
    Renew,
    StateBatch,
    Sweep,
    Unit,
    Unlock,
    Written,
)
from stepwell.model.queue_item import (
    CancelItem,
    Claimed,
    ClaimItems,
    DropItems,
    Enqueue,
    ItemMark,
    NewItem,
    PutQueue,
    PutTier,
    PutWorkspace,
    QueueSettings,
    RecoverItems,
    Redrive,
    ReturnItem,
    Tier,
    Workspace,
)
from stepwell.model.scoped_operations import Clear, Copy, Increment, Put
from stepwell.model.snapshot import read_snapshot, store_snapshot
from stepwell.stores.memory import MemoryStore
from stepwell.stores.memory.queue import MemoryQueue
from stepwell.testing.store_access import parts_of, store_under, write_unit

_SHELF, _OTHER = Scope.globals().path, Scope.custom("other").path


class Site:
    """A well with a bit of everything in it, and units of every kind that change it."""

    def __init__(self, url: str, path: Path) -> None:
        self.clock, self._path = FakeClock(), path
        self.well = Stepwell(url, clock=self.clock)
        self.store = store_under(self.well)
        for execution_id in ("run", "leased", "abroad"):
            self.well.create(execution_id)
            with self.well.transaction(execution_id) as tx:
                tx.set_variable("x", 1)
        self.abroad = self.well.snapshot("abroad")
        self.well.state.globals.set_many({"a": 1, "b": 2, "passing": 3})
        self.well.state.globals.set("short", 4, ttl=1)
        self.lease = claim(self.well, "leased", "me")
        self.lock = self._answer(Acquire("lock", "me", 100))
        self._answer(Acquire("old lock", "me", 0.5))
        self.well.state.globals.delete("passing")
        self._queue_up()
        self.clock.advance(10)

    def _queue_up(self) -> None:
        """Items in every state that a unit of the queue begins with."""
        group = parts_of(self.well).group
        group.write(Enqueue(tuple(_item(name) for name in ("claimed", "given", "expired", "failed", "unwanted", "waiting"))))
        claims = {"claimed": 100, "given": 100, "expired": 5, "failed": 100}
        self.fences = {name: self._claimed(seconds) for name, seconds in claims.items()}
        group.write(ItemMark("failed", "FAILED", self.fences["failed"]))

    def _claimed(self, seconds: float) -> int:
        outcome = write_unit(self.well, ClaimItems("me", seconds, 1))
        assert isinstance(outcome, Written)
        [item] = outcome.answers
        assert isinstance(item, Claimed)
        return item.fence

    def _answer(self, unit: Unit) -> Lease:
        outcome = write_unit(self.well, unit)
        assert isinstance(outcome, Written)
        lease = outcome.answers[0]
        assert isinstance(lease, Lease)
        return lease

    def units(self) -> dict[str, Unit]:
        """Each unit lands if nothing fails, and changes something."""
        _, state = read_snapshot(self.abroad)
        foreign = msgspec.structs.replace(state.identity, execution_id="adopted")
        now = msgspec.Raw(b"7")
        return {
            "put": StateBatch((Put(_SHELF, "a", now), Increment(_OTHER, "n"), Copy(_SHELF, "b", _OTHER, "moved", move=True))),
            "clear": StateBatch((Clear(_SHELF), Put(_SHELF, "a", now))),
            "delete": Deletion("run"),
            "archive": Archiving("abroad", store_snapshot(state)),
            "adopt": Adoption(
                execution_id=foreign.execution_id,
                workspace_id=foreign.workspace_id,
                creation=Creation(foreign.workflow_id, foreign.version),
                status="PENDING",
                digest=state.receipt,
                snapshot=store_snapshot(state),
                signature=None,
                adopted_ms=self.clock.now_ms(),
            ),
            "claim": Claim("run", "me", 30),
            "extend": Extension("leased", "me", self.lease.fence, 100),
            "release": Release("leased", "me", self.lease.fence),
            "acquire": Acquire("new lock", "me", 30),
            "renew": Renew("lock", "me", self.lock.fence, 300),
            "unlock": Unlock("lock", "me", self.lock.fence),
            "unlock later": Unlock("lock", "me", self.lock.fence, at_least_seconds=50),
            "sweep": Sweep(1_000),
            "enqueue": Enqueue((_item("new"), _item("named", key="k", singleton="s", debounce="d"))),
            "claim items": ClaimItems("me", 100, 1),
            "mark": ItemMark("claimed", "DISPATCHED", self.fences["claimed"]),
            "return": ReturnItem("given", self.fences["given"], "no luck"),
            "cancel item": CancelItem("waiting"),
            "redrive": Redrive("failed", "again"),
            "recover": RecoverItems(),
            "drop items": DropItems(("default",), ("CANCELLED",), 0),
            "put tier": PutTier(Tier(name="own", concurrency=2)),
            "put workspace": PutWorkspace(Workspace(workspace_id="acme", tier="scale")),
            "put queue": PutQueue(QueueSettings(name="mail", is_paused=True)),
        }

    def dump(self) -> object:
        """Every row there is."""
        if not isinstance(self.store, MemoryStore):
            connection = apsw.Connection(str(self._path))
            tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
            return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}
        rows = {name: _dump(value) for name, value in vars(self.store).items() if name not in ("_clock", "_lock", "_open_lock")}
        executions = {
            name: {part: copy.copy(getattr(each, part)) for part in each.__slots__}
            for name, each in rows["_executions"].pop("rows").items()
        }
        rows["_executions"]["leases"] = list(rows["_executions"]["leases"].waking)
        rows["_queue"] = _queue_dump(self.store._queue)
        return executions, copy.deepcopy(rows)


def _item(name: str, **fields: str) -> NewItem:
    ids = {"item_id": name, "workspace_id": "default", "workflow_id": "w", "execution_id": f"of-{name}"}
    return NewItem(**ids, version=1, input=b"{}", **fields)


def _dump(part: object) -> dict[str, Any]:
    """The rows of a part of the memory store."""
    return {name: value for name, value in vars(part).items() if name not in ("_clock", "_limits", "_tier_of")}


def _queue_dump(queue: MemoryQueue) -> object:
    """Every row and every index of the queue. An index may keep empty places, and an item whose time has come its old one."""
    rows = {name: value for name, value in vars(queue).items() if name not in ("_clock", "_writers", "rows")}
    items = dict(vars(queue.rows))
    waiting = {number for _, number in items.pop("_delayed")} | {
        each.number for line in items.pop("_ready").values() for each in line
    }
    return rows, waiting, {name: {key: value for key, value in index.items() if value != set()} for name, index in items.items()}


@pytest.fixture(params=["memory", "sqlite"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    path = tmp_path / "well.db"
    site = Site("memory://" if request.param == "memory" else f"sqlite:///{path}", path)
    yield site
    site.well.close()


def fail() -> None:
    raise Boom


def test_every_kind_of_unit_is_tried_here(site: Site) -> None:
    """T01: a new kind of unit cannot be forgotten; commits have tests of their own, and dispatch is tried with the worker's."""
    assert {type(unit) for unit in site.units().values()} | {Commit, ClaimDue} == set(get_args(Unit))


def test_a_unit_that_fails_before_commit_leaves_every_row_as_it_was(site: Site) -> None:
    """T01: an error at each point that a unit reaches before COMMIT; then the same unit lands."""
    for name, unit in site.units().items():
        trace, before = Trace(), site.dump()

        def trace_and_fail(point: str, trace: Trace = trace) -> None:
            trace(point)
            if point == "store.before_commit":
                fail()

        with armed(trace_and_fail), pytest.raises(Boom):
            write_unit(site.well, unit)
        assert site.dump() == before, name
        for point, hits in trace.hits().items():
            for hit in range(1, hits + 1):
                with armed(at(point, hit, fail)), pytest.raises(Boom):
                    write_unit(site.well, unit)
                assert site.dump() == before, (name, point, hit)


def test_every_unit_lands_once_nothing_fails_and_is_unknown_if_its_reply_is_lost(site: Site) -> None:
    """T01: what the test before takes back is really a change; and after COMMIT it stays, whatever happens."""
    for name, unit in site.units().items():
        if name in ("unlock", "archive", "delete"):
            continue  # these take away what others in the list need
        before = site.dump()
        with armed(at("store.committed", 1, fail)), pytest.raises(CommitUnknown):
            write_unit(site.well, unit)
        assert site.dump() != before, name


def test_a_group_of_which_one_fails_is_taken_back_whole(site: Site) -> None:
    """T01: all units of a group are one transaction."""
    units, before = list(site.units().values()), site.dump()
    with armed(at("store.before_commit", 1, fail)), pytest.raises(Boom):
        site.store.write(units)
    assert site.dump() == before


def test_a_refused_unit_does_not_stop_its_group(site: Site) -> None:
    """T01: a refusal is an answer, not a failure."""
    outcomes = site.store.write([Claim("nobody", "me", 1), Claim("run", "me", 30), Deletion("nobody"), Acquire("new", "me", 1)])
    assert [isinstance(outcome, StepwellError) for outcome in outcomes] == [True, False, True, False]


@pytest.mark.parametrize("point", ["store.entry_written", "store.scope_written", "store.before_commit"])
def test_nobody_sees_a_part_of_a_transaction_that_is_under_way(site: Site, point: str) -> None:
    """I1 for readers: whoever reads in the middle of a write gets all of it or nothing, also if it is taken back later."""
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.append(site.well.state.globals.get_many(["a", "b"])))

    def look() -> None:
        reader.start()
        reader.join(0.2)  # a reader may have to wait for the writer; one that does not must see the old values
        fail()

    with armed(at(point, 1, look)), pytest.raises(Boom):
        site.well.state.globals.set_many({"a": "new", "b": "new"})
    reader.join()
    assert seen == [{"a": 1, "b": 2}]


def test_a_creation_that_fails_can_be_made_again(site: Site) -> None:
    """T01: the id of an execution that was not created is not used up."""
    for point in ("store.commit_written", "store.before_commit"):
        with armed(at(point, 1, fail)), pytest.raises(Boom):
            site.well.create("late")
    assert site.well.create("late").revision == 0
    assert site.well.verify("late").ok
