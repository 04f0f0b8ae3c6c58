"""The queue on Redis: what its keys say, what a claim touches, and what becomes of it when the server or the process goes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from tests.faults.hooks import at
from tests.support.redis_indexes import check_indexes
from tests.support.redis_server import RedisServer, RedisSite

from stepwell.clock import FakeClock
from stepwell.errors import Corrupted, StepwellError
from stepwell.fault_points import armed
from stepwell.model.commit import Deletion, Unit, Written
from stepwell.model.queue_item import (
    TIERS,
    CancelItem,
    ClaimItems,
    Enqueue,
    ItemMark,
    ItemQuery,
    ItemStatus,
    NewItem,
    PutQueue,
    PutTier,
    QueueSettings,
    RecoverItems,
    Redrive,
    ReturnItem,
    Tier,
)
from stepwell.testing.conformance.queue_whole_runs import run_of
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    add,
    added,
    answers,
    claim_items,
    content,
    drop_items,
    end,
    ids_of,
    landed,
    new_item,
    put,
    put_workspace,
    recover,
    refused,
    statuses,
    stored,
    used,
    write,
)

# The keys.


class Walk:
    """Random writes to a queue, some of which are refused."""

    def __init__(self, site: RedisSite, seed: int) -> None:
        self.site, self.store, self.dice = site, site.store, random.Random(seed)
        for name, limits in {"a": {"concurrency": 2}, "a/b": {"queue_depth": 6}, "c d": {"retention_seconds": HOUR}}.items():
            put_workspace(self.store, name, **limits)
        self.names: list[str] = []

    def _new(self) -> NewItem:
        name = f"i{len(self.names)}" if self.dice.random() < 0.9 or not self.names else self.dice.choice(self.names)
        self.names.append(name)
        pick = self.dice.choice
        return new_item(
            name,
            pick(["a", "a/b", "c d", "default"]),
            queue=pick(["default", "b", "b/x"]),
            workflow_id=pick(["orders", "x/orders"]),
            priority=pick([-1, 0, 0, 7]),
            delay_ms=pick([0, 0, HOUR * 1000]),
            key=pick([None, None, "k", "k/1"]),
            singleton=pick([None, None, "s"]),
            debounce=pick([None, None, "d", "d/1"]),
            max_attempts=2,
        )

    def _unit(self) -> Unit:
        name = self.dice.choice(self.names or ["nobody"])
        item = self.store.item(name)
        fence = item.fence if item is not None and self.dice.random() < 0.9 else 99
        status = self.dice.choice(["DISPATCHED", "COMPLETED", "FAILED", "CANCELLED"])
        return self.dice.choice(
            [
                Enqueue(tuple(self._new() for _ in range(self.dice.randrange(1, 5)))),
                ClaimItems("d", HOUR * self.dice.choice([-1, 1, 3]), self.dice.randrange(1, 6)),
                ItemMark(name, status, self.dice.choice([None, fence])),
                ReturnItem(name, fence, self.dice.choice([None, "broken"])),
                CancelItem(name),
                Redrive(name, f"again-{len(self.names)}-{self.dice.random()}"),
                RecoverItems(self.dice.choice([1, 1_000])),
                self._commit(name, status),
            ]
        )

    def _commit(self, name: str, status: str) -> Unit:
        item = self.store.item(name)
        execution_id = item.execution_id if item is not None and self.dice.random() < 0.8 else f"x{self.dice.random()}"
        return SampleExecution(self.store, execution_id).creation(items=(self._new(), self._new()), mark=ItemMark(name, status))

    def step(self) -> None:
        if self.dice.random() < 0.1:
            self.site.clock.advance(self.dice.choice([0.4, 1.5]) * HOUR)
        else:
            self.store.write([self._unit()])


@pytest.mark.parametrize("seed", range(4))
def test_every_index_says_what_the_items_say_whatever_was_done(site: RedisSite, seed: int) -> None:
    """T35: used slots and all else that is counted come from the items themselves; nothing can drift."""
    walk = Walk(site, seed)
    for _ in range(150):
        walk.step()
        check_indexes(site)
    assert len({item.status for item in site.store.items(ItemQuery())}) >= 4


def test_every_index_says_what_the_items_say_after_runs_of_one_group(site: RedisSite) -> None:
    store, names = site.store, [f"r{number}" for number in range(500)]
    put_workspace(store, "a/b:c %")
    add(store, *(new_item(name, ("default", "a/b:c %")[index % 2], queue="q d") for index, name in enumerate(names)))
    claimed = claim_items(store, 450)
    landed(write(store, CancelItem(claimed[7].item_id)))
    runs = [run_of(store, each, "FAILED" if index % 5 == 0 else "COMPLETED") for index, each in enumerate(claimed)]
    outcomes = store.write([*runs, ClaimItems("d", HOUR, 10)])
    assert sum(isinstance(outcome, Written) for outcome in outcomes) == 450
    check_indexes(site)
    assert Counter(statuses(store).values()) == {"COMPLETED": 360 - 1, "FAILED": 90, "CANCELLED": 1, "CLAIMED": 10, "QUEUED": 40}


def test_flushed_server_takes_no_runs(site: RedisSite) -> None:
    add(site.store, *"abc")
    runs = [run_of(site.store, each) for each in claim_items(site.store)]
    site.client.flushdb()
    for outcome in site.store.write(runs):
        refused(outcome, Corrupted)
    assert site.names() == set()


def test_names_with_what_separates_names_are_apart(site: RedisSite) -> None:
    """T46: workspace `a/b` with queue `c` is not workspace `a` with queue `b/c`."""
    put_workspace(site.store, "a/b", concurrency=1)
    put_workspace(site.store, "a", concurrency=1)
    add(site.store, new_item("first", "a/b", queue="c", workflow_id="d"), new_item("second", "a", queue="b/c", workflow_id="d"))
    add(site.store, new_item("third", "a", queue="b", workflow_id="c/d"))
    assert ids_of(claim_items(site.store, queues=("b/c",))) == ["second"]
    assert [(lane.workspace_id, lane.queue, lane.ready, lane.claimed) for lane in site.store.lanes()] == [
        ("a", "b", 1, 0),
        ("a", "b/c", 0, 1),
        ("a/b", "c", 1, 0),
    ]
    assert ids_of(claim_items(site.store)) == ["first"]
    check_indexes(site)


def test_nothing_of_the_queue_ever_expires(site: RedisSite) -> None:
    """Executions may have a sliding TTL; an item that waits longer than that is still there."""
    store = site.open(execution_ttl=1)
    add(store, new_item("a", key="k", singleton="s", debounce="d", delay_ms=HOUR * 1000), "b", "c", "e")
    first, second, *_ = claim_items(store, 2)
    SampleExecution(store, first.execution_id).create(mark=ItemMark(first.item_id, "DISPATCHED", first.fence))
    end(store, second)
    names = [name for name in site.names() if name.startswith(site.keys.queue)]
    assert len(names) > 10
    assert {site.client.pttl(name) for name in names} == {-1}


def test_item_whose_execution_has_expired_keeps_no_slot(site: RedisSite) -> None:
    """T35: an execution's TTL ended, which nobody is told of; the next recovery finds it."""
    store = site.open(execution_ttl=3_600)
    put_workspace(store, "acme", concurrency=2)
    add(store, *(new_item(f"i{number}", "acme") for number in range(4)))
    for claimed in claim_items(store):
        SampleExecution(store, claimed.execution_id).create(mark=ItemMark(claimed.item_id, "DISPATCHED", claimed.fence))
    assert recover(store) == []
    site.client.unlink(*site.keys.execution("of-i0"))
    assert recover(store) == []
    assert statuses(store) == {"i0": "CANCELLED", "i1": "DISPATCHED", "i2": "QUEUED", "i3": "QUEUED"}
    assert ids_of(claim_items(store)) == ["i2"]
    check_indexes(site)


def test_runs_of_one_group_expire_like_any_execution(site: RedisSite) -> None:
    store = site.open(execution_ttl=3_600)
    add(store, *"ab")
    for outcome in store.write([run_of(store, each) for each in claim_items(store)]):
        landed(outcome)
    keys = [key for name in "ab" for key in site.keys.execution(f"of-{name}") if site.client.exists(key)]
    assert len(keys) == 4
    assert all(0 < site.client.pttl(key) <= 3_600_000 for key in keys)


def test_dropped_items_leave_no_key_behind(site: RedisSite) -> None:
    put_workspace(site.store, "acme")
    before = site.names()
    add(site.store, *(new_item(f"i{n}", "acme", key=f"k{n}", singleton=f"s{n}", debounce="d" if n else None) for n in range(2)))
    end(site.store, *claim_items(site.store))
    site.clock.advance(2 * HOUR)
    assert drop_items(site.store, "acme", hours=1) == 2
    left = {name.removeprefix(site.keys.queue) for name in site.names() - before}
    assert left == {b":number", b":turn", b":passes"}


def test_store_made_before_there_were_queues_gets_the_tiers_when_opened(site: RedisSite) -> None:
    site.client.unlink(site.keys.queue + b":tiers", site.keys.queue + b":workspaces")
    store = site.open()
    assert store.tiers() == sorted(TIERS, key=lambda tier: tier.name)
    add(store, "a")


def test_tier_that_was_changed_stays_changed_when_the_store_is_opened_again(site: RedisSite) -> None:
    landed(write(site.store, PutTier(Tier(name="free", concurrency=9))))
    assert Tier(name="free", concurrency=9) in site.open().tiers()


def test_flushed_server_is_noticed_by_every_unit_of_the_queue(site: RedisSite) -> None:
    """T17."""
    add(site.store, "a")
    [claimed] = claim_items(site.store)
    units: list[Unit] = [
        *(Enqueue((new_item(),)), ClaimItems("d", HOUR, 1), ItemMark("a", "COMPLETED", claimed.fence), RecoverItems()),
        *(ReturnItem("a", claimed.fence), CancelItem("a"), Redrive("a", "again"), PutTier(Tier(name="own"))),
        *(
            PutQueue(QueueSettings(name="mail")),
            SampleExecution(site.store, "of-a").creation(mark=ItemMark("a", "DISPATCHED", claimed.fence)),
        ),
    ]
    site.client.delete(*site.names())
    for unit in units:
        refused(write(site.store, unit), Corrupted)
    assert site.names() == set()


# Many items.


def commands(site: RedisSite) -> int:
    """How many commands the server has run so far, those inside scripts among them."""
    stats = site.client.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name not in ("cmdstat_info", "cmdstat_evalsha"))


def test_a_claim_beside_a_hundred_thousand_items_touches_no_more_than_beside_a_few(site: RedisSite) -> None:
    """T36: counted in commands, of which none reads more than a page."""
    store = site.store
    put_workspace(store, "noisy", concurrency=5)
    for number in range(20):
        put_workspace(store, f"quiet-{number}")
    costs: list[int] = []
    for many in (50, 100_000):
        items = [new_item(workspace="noisy", priority=9) for _ in range(many)]
        for first in range(0, many, 5_000):
            added(store, *items[first : first + 5_000])
        noisy = claim_items(store, 5, workflows=("orders",))
        add(store, *(new_item(workspace=f"quiet-{number}") for number in range(20)))
        before = commands(site)
        taken = claim_items(store, 20)
        costs.append(commands(site) - before)
        assert {claimed.workspace_id for claimed in taken} == {f"quiet-{number}" for number in range(20)}
        end(store, *noisy, *taken)
    assert costs[1] <= costs[0] <= 12 * 20


def ranks_read(site: RedisSite, limit: int) -> list[tuple[int, int]]:
    """The ranks of sorted sets that a claim has the server read, as a monitor sees them."""
    with site.client.monitor() as monitor:
        assert len(claim_items(site.store, limit)) == limit
        site.client.echo("over")
        read: list[tuple[int, int]] = []
        while (words := monitor.next_command()["command"].split()) != ["ECHO", "over"]:
            if words[0] == "ZRANGE":
                read.append((int(words[2]), int(words[3])))
        return read


def test_claim_reads_a_few_pages_of_a_long_lane(site: RedisSite) -> None:
    """T36: not all of it, though its workspace may start as many."""
    add(site.store, *(new_item() for _ in range(1_000)))
    for limit in (10, 1):
        read = ranks_read(site, limit)
        assert read
        assert all(0 <= first <= last < 3 * limit for first, last in read)


def test_claim_looks_at_a_workspace_only_when_its_turn_comes(site: RedisSite) -> None:
    """A claim of one item among many workspaces reads the lines of those that come first, not of all."""
    for number in range(30):
        put_workspace(site.store, f"w{number}", concurrency=10)
        add(site.store, *(new_item(workspace=f"w{number}") for _ in range(3)))
    claim_items(site.store, 29)
    before = commands(site)
    assert len(claim_items(site.store, 1)) == 1
    assert commands(site) - before < 30


def test_workspace_whose_queue_became_full_takes_its_turn_with_its_next_item(site: RedisSite) -> None:
    """Of equal tags the item that came first is taken; a first item that may no longer be taken lends its place to no other."""
    landed(write(site.store, PutQueue(QueueSettings(name="mail", concurrency=1))))
    for name in ("a", "b", "c"):
        put_workspace(site.store, name)
    add(site.store, new_item("a-mail", "a", queue="mail"), new_item("b-mail", "b", queue="mail", priority=1))
    add(site.store, new_item("c", "c"), new_item("b-other", "b"))
    assert ids_of(claim_items(site.store, 2)) == ["a-mail", "c"]
    assert ids_of(claim_items(site.store)) == ["b-other"]


def test_thousands_of_answers_come_back(site: RedisSite) -> None:
    """More than Lua can unpack at once."""
    items = [new_item(f"i{number}", key=f"k{number}") for number in range(9_000)]
    assert all(answer.is_new for answer in added(site.store, *items))
    assert not any(answer.is_new for answer in added(site.store, *items))
    assert len(claim_items(site.store, 9_000)) == 9_000
    assert used(site.store, "default") == 9_000


def test_enqueues_of_one_group_share_a_script_and_each_has_its_own_answers(site: RedisSite) -> None:
    put_workspace(site.store, "small", queue_depth=1)
    units = [Enqueue(tuple(new_item(f"i{number}-{n}", key=f"k{number}") for n in range(number % 3))) for number in range(700)]
    units[5] = Enqueue((new_item("a", "small"), new_item("b", "small"), new_item("c", "nobody")))
    site.client.config_resetstat()
    outcomes = site.store.write(units)
    assert site.client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert [len(answers(outcome)) for outcome in outcomes] == [len(unit.items) for unit in units]
    assert [getattr(answer, "item_id", None) for answer in answers(outcomes[5])] == ["a", None, None]
    assert [(answer.item_id, answer.is_new) for answer in answers(outcomes[8])] == [("i8-0", True), ("i8-0", False)]


def test_large_enqueues_of_one_group_stay_whole(site: RedisSite) -> None:
    units = [Enqueue(tuple(new_item() for _ in range(600))) for _ in range(3)]
    outcomes = site.store.write([*units, Enqueue(())])
    assert [len(answers(outcome)) for outcome in outcomes] == [600, 600, 600, 0]
    assert len(statuses(site.store)) == 1_800


# Commits.


def test_commit_on_state_that_changed_meanwhile_adds_its_items_once(site: RedisSite, clock: FakeClock) -> None:
    """T39: what was worked out on old state lands nowhere, its items neither; the second try lands whole."""
    other = site.open()
    [claimed] = [claim_items(site.store)[0] for _ in add(site.store, "a")]
    execution = SampleExecution(site.store, claimed.execution_id)
    commit = execution.creation(ops=(put("k"),), items=(new_item("b"),), mark=ItemMark("a", "DISPATCHED", claimed.fence))
    with armed(at("store.before_commit", 1, lambda: other.write([SampleExecution(other, "x").creation(ops=(put("other"),))]))):
        landed(write(site.store, commit))
    assert statuses(site.store) == {"a": "DISPATCHED", "b": "QUEUED"}
    assert set(content(site.store)) == {"k", "other"}
    check_indexes(site)


def test_item_of_a_deleted_execution_frees_its_slot(site: RedisSite) -> None:
    """T35."""
    put_workspace(site.store, "acme", concurrency=1)
    add(site.store, new_item("a", "acme"), new_item("b", "acme"))
    [claimed] = claim_items(site.store)
    SampleExecution(site.store, "of-a").create(mark=ItemMark("a", "DISPATCHED", claimed.fence))
    assert claim_items(site.store) == []
    landed(write(site.store, Deletion("of-a")))
    assert ids_of(claim_items(site.store)) == ["b"]
    check_indexes(site)


# Crashes and damage.


def test_a_queue_survives_a_crash_of_its_server(tmp_path: Path) -> None:
    """T16: what was answered is there, whole, and goes on."""
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server:
        site = RedisSite(server, server.url(), FakeClock())
        walk = Walk(site, 7)
        for _ in range(60):
            walk.step()
        add(site.store, new_item("last", "a", priority=99))
        [claimed] = claim_items(site.store, 1, queues=("default",), seconds=9 * HOUR) or [None]
        before = site.store.items(ItemQuery())
        lanes = [(lane.workspace_id, lane.queue, lane.claimed + lane.dispatched) for lane in site.store.lanes()]
        server.kill()
        server.start()
        assert site.store.items(ItemQuery()) == before
        assert [(lane.workspace_id, lane.queue, lane.claimed + lane.dispatched) for lane in site.store.lanes()] == lanes
        check_indexes(site)
        if claimed is not None:
            landed(write(site.store, ItemMark(claimed.item_id, "COMPLETED", claimed.fence)))
            assert stored(site.store, claimed.item_id).status is ItemStatus.COMPLETED
        site.close()


def test_item_whose_row_was_taken_away_holds_up_no_other(site: RedisSite) -> None:
    """T33: nothing does this but a hand; recovery, claims and lanes go on with the others."""
    add(site.store, "a", "b", "c", "d")
    claim_items(site.store, 2)
    rows = {stored(site.store, name).number for name in ("a", "c")}
    site.client.unlink(*(site.keys.queue + b":item:%016d" % number for number in rows))
    site.clock.advance(2 * HOUR)
    assert [recover(site.store, 1) for _ in range(2)] == [[], ["b"]]  # a page that is full of such items hides the next one once
    assert sum(lane.ready for lane in site.store.lanes()) == 3
    assert ids_of(claim_items(site.store)) == ["b", "d"]


def test_an_error_inside_a_script_is_told_and_the_next_write_works(site: RedisSite) -> None:
    """A key that somebody else has written to: typed, and nothing else of the unit is there."""
    site.client.set(site.keys.queue + b":ids", "not ours")
    outcome = write(site.store, Enqueue((new_item("a"),)))
    assert isinstance(outcome, StepwellError)
    site.client.unlink(site.keys.queue + b":ids")
    add(site.store, "a")
    check_indexes(site)
