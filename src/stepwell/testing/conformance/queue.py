"""The queue: tiers, workspaces and named queues, admission of items, and repeated requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from stepwell.clock import FakeClock
from stepwell.contract.store import Store
from stepwell.errors import Conflict, NotFound
from stepwell.model.queue_item import (
    TIERS,
    Enqueued,
    Item,
    ItemMark,
    ItemQuery,
    ItemStatus,
    PutQueue,
    PutTier,
    PutWorkspace,
    QueueSettings,
    Redrive,
    ReturnItem,
    Tier,
    Workspace,
)
from stepwell.testing.conformance.samples import (
    HOUR,
    add,
    added,
    answers,
    claim_items,
    drop_items,
    end,
    fresh_id,
    ids_of,
    landed,
    new_item,
    pages_of,
    put_workspace,
    recover,
    refused,
    statuses,
    stored,
    write,
)

STRANGE = ["a", "A", " ", "a%", "a_", "a'b", '"', "\n", "a:b", "é", "ж", "日", "{x}", "[1]", "null", "1"]
"""Names that an unbound parameter, a pattern or a lossy encoding would mix up."""


# Tiers, workspaces and queues.


def test_new_store_has_the_tiers_and_the_default_workspace(store: Store) -> None:
    assert store.tiers() == sorted(TIERS, key=lambda tier: tier.name)
    assert [(workspace.workspace_id, workspace.tier) for workspace in store.workspaces()] == [("default", "unlimited")]
    assert store.queues() == []


def test_tier_is_put_whole_and_changed_whole(store: Store) -> None:
    tier = Tier(
        name="own",
        concurrency=0,
        weight=0.5,
        rate_per_second=0.25,
        queue_depth=7,
        state_bytes=9,
        retention_seconds=None,
        child_concurrency=3,
    )
    landed(write(store, PutTier(tier)))
    assert [each for each in store.tiers() if each.name == "own"] == [tier]
    landed(write(store, PutTier(Tier(name="own"))))
    assert [each for each in store.tiers() if each.name == "own"] == [Tier(name="own")]
    assert len(store.tiers()) == len(TIERS) + 1


def test_workspace_keeps_when_it_was_made(store: Store, clock: FakeClock) -> None:
    earliest = store.now_ms()
    landed(write(store, PutWorkspace(Workspace(workspace_id="acme", tier="free"))))
    [acme] = [each for each in store.workspaces() if each.workspace_id == "acme"]
    assert earliest <= acme.created_ms <= store.now_ms()
    clock.advance(HOUR)
    landed(write(store, PutWorkspace(Workspace(workspace_id="acme", tier="scale", is_paused=True))))
    assert [each for each in store.workspaces() if each.workspace_id == "acme"] == [replace(acme, tier="scale", is_paused=True)]


def test_workspaces_are_listed_by_id_whatever_they_are_called(store: Store) -> None:
    for name in STRANGE:
        landed(write(store, PutWorkspace(Workspace(workspace_id=name, tier="free"))))
    names = [workspace.workspace_id for workspace in store.workspaces()]
    assert sorted(names) == sorted([*STRANGE, "default"])


def test_workspace_of_an_unknown_tier_is_refused(store: Store) -> None:
    refused(write(store, PutWorkspace(Workspace(workspace_id="acme", tier="Free"))), NotFound)
    assert [workspace.workspace_id for workspace in store.workspaces()] == ["default"]


def test_queue_is_set_up_and_changed(store: Store) -> None:
    mail = QueueSettings(name="mail", is_paused=True, concurrency=3, rate_per_second=0.5)
    landed(write(store, PutQueue(mail)))
    landed(write(store, PutQueue(QueueSettings(name="bulk"))))
    assert store.queues() == [QueueSettings(name="bulk"), mail]
    landed(write(store, PutQueue(QueueSettings(name="mail"))))
    assert store.queues() == [QueueSettings(name="bulk"), QueueSettings(name="mail")]


# Enqueueing.


def test_item_is_stored_as_it_was_asked_for(store: Store) -> None:
    put_workspace(store, "acme")
    new = new_item(
        "i", "acme", queue="mail", priority=-5, key="k", singleton="s", debounce="d", max_attempts=7, input=b'{"\xc3\xa9":0}'
    )
    earliest = store.now_ms()
    assert added(store, new) == [Enqueued("i", "of-i", "QUEUED", True)]
    item = stored(store, "i")
    assert earliest <= item.enqueued_ms <= store.now_ms()
    assert item == Item(
        item_id="i",
        number=item.number,
        workspace_id="acme",
        workflow_id="orders",
        version=3,
        execution_id="of-i",
        input=b'{"\xc3\xa9":0}',
        queue="mail",
        status=ItemStatus.QUEUED,
        priority=-5,
        enqueued_ms=item.enqueued_ms,
        run_at_ms=item.enqueued_ms,
        key="k",
        body_digest="d1",
        singleton="s",
        debounce="d",
        max_attempts=7,
    )
    assert type(item.status) is ItemStatus
    assert store.item("I") is None


def test_items_are_numbered_in_the_order_in_which_they_came(store: Store) -> None:
    names = [f"i{number}" for number in range(30)]
    add(store, *names[:20])
    for name in names[20:]:
        add(store, name)
    numbers = [stored(store, name).number for name in names]
    assert numbers == sorted(set(numbers))


def test_thousands_of_items_are_one_unit(store: Store) -> None:
    names = [f"i{number}" for number in range(3_000)]
    add(store, *names)
    assert list(statuses(store)) == names


def test_unknown_workspace_is_refused_and_stops_no_other(store: Store) -> None:
    first, second, third = added(store, new_item("a"), new_item("b", "nobody"), new_item("c"))
    assert (first.item_id, third.item_id) == ("a", "c")
    refused(second, NotFound)
    assert list(statuses(store)) == ["a", "c"]


def test_same_item_again_is_the_item_that_is_there(store: Store) -> None:
    """T39: the first reply was lost, and the caller asks again."""
    plain, keyed = new_item("plain"), new_item("keyed", key="k")
    add(store, plain, keyed)
    assert added(store, plain, keyed, new_item("third")) == [
        Enqueued("plain", "of-plain", "QUEUED", False),
        Enqueued("keyed", "of-keyed", "QUEUED", False),
        Enqueued("third", "of-third", "QUEUED", True),
    ]
    assert added(store, plain) == [Enqueued("plain", "of-plain", "QUEUED", False)]
    refused(added(store, replace(plain, body_digest="d2"))[0], Conflict)
    assert list(statuses(store)) == ["plain", "keyed", "third"]


def test_same_item_twice_in_one_unit_is_one(store: Store) -> None:
    plain, keyed = new_item("plain"), new_item("keyed", key="k")
    got = added(store, plain, plain, keyed, new_item("other", key="k"))
    assert [(answer.item_id, answer.is_new) for answer in got] == [
        ("plain", True),
        ("plain", False),
        ("keyed", True),
        ("keyed", False),
    ]
    assert [answer.is_new for answer in added(store, *(new_item("twice") for _ in range(2)))] == [True, False]


@pytest.mark.parametrize("fate", ["QUEUED", "CLAIMED", "COMPLETED", "FAILED", "CANCELLED"])
def test_key_stands_for_its_item_whatever_became_of_it(store: Store, fate: str) -> None:
    """T39: one item, and another body is a conflict."""
    add(store, new_item("a", key="k"))
    if fate != "QUEUED":
        [claimed] = claim_items(store)
        if fate != "CLAIMED":
            end(store, claimed, status=fate)
    assert added(store, new_item("b", key="k")) == [Enqueued("a", "of-a", fate, False)]
    refused(added(store, new_item("c", key="k", body_digest="d2"))[0], Conflict)
    assert statuses(store) == {"a": fate}


def test_keys_are_apart_by_workspace_and_by_every_character(store: Store) -> None:
    put_workspace(store, "acme")
    add(store, *(new_item(workspace=workspace, key=key) for workspace in ("acme", "default") for key in STRANGE))
    assert len(statuses(store)) == 2 * len(STRANGE)


def test_key_is_free_again_when_its_item_is_gone(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme")
    add(store, new_item("a", "acme", key="k"))
    end(store, *claim_items(store))
    clock.advance(2 * HOUR)
    assert drop_items(store, "acme", hours=1) == 1
    add(store, new_item("b", "acme", key="k", body_digest="d2"))


def test_singleton_stands_for_its_item_until_that_has_ended(store: Store) -> None:
    add(store, new_item("a", singleton="s"))
    assert added(store, new_item("b", singleton="s", body_digest="d2")) == [Enqueued("a", "of-a", "QUEUED", False)]
    [claimed] = claim_items(store)
    assert added(store, new_item("b", singleton="s")) == [Enqueued("a", "of-a", "CLAIMED", False)]
    landed(write(store, ItemMark("a", "DISPATCHED", claimed.fence)))
    assert added(store, new_item("b", singleton="s")) == [Enqueued("a", "of-a", "DISPATCHED", False)]
    end(store, claimed)
    add(store, new_item("b", singleton="s"))
    put_workspace(store, "acme")
    add(store, new_item("c", "acme", singleton="s"), new_item("d", singleton="S"))


def test_debounced_item_gets_the_latest_input_and_time(store: Store, clock: FakeClock) -> None:
    add(store, new_item("a", debounce="d", delay_ms=HOUR * 1000, input=b"1"))
    clock.advance(0.5 * HOUR)
    later = new_item("b", debounce="d", delay_ms=HOUR * 1000, input=b"2", workflow_id="refunds", version=4)
    assert added(store, later) == [Enqueued("a", "of-a", "QUEUED", False)]
    clock.advance(0.8 * HOUR)
    assert claim_items(store) == []
    clock.advance(0.3 * HOUR)
    [claimed] = claim_items(store)
    assert (claimed.item_id, claimed.input, claimed.workflow_id, claimed.version) == ("a", b"2", "refunds", 4)
    add(store, new_item("c", debounce="d"))
    put_workspace(store, "acme")
    add(store, new_item("e", "acme", debounce="d"))
    assert sorted(ids_of(claim_items(store))) == ["c", "e"]


def test_debounced_item_may_come_earlier(store: Store) -> None:
    add(store, new_item("a", debounce="d", delay_ms=HOUR * 1000))
    added(store, new_item("b", debounce="d"))
    assert ids_of(claim_items(store)) == ["a"]


def test_item_waits_for_its_time(store: Store, clock: FakeClock) -> None:
    at = store.now_ms() + 2 * HOUR * 1000
    add(
        store,
        new_item("later", run_at_ms=at, delay_ms=1),
        new_item("delayed", delay_ms=HOUR * 1000),
        new_item("past", run_at_ms=5),
        "now",
    )
    assert ids_of(claim_items(store)) == ["past", "now"]
    clock.advance(1.5 * HOUR)
    assert ids_of(claim_items(store)) == ["delayed"]
    clock.advance(HOUR)
    assert ids_of(claim_items(store)) == ["later"]
    assert stored(store, "later").run_at_ms == at


def test_item_whose_time_has_come_takes_its_place_in_line(store: Store, clock: FakeClock) -> None:
    add(store, new_item("first", delay_ms=HOUR * 1000), "second")
    clock.advance(2 * HOUR)
    add(store, "third")
    assert ids_of(claim_items(store)) == ["first", "second", "third"]


# Reading.


def test_items_are_found_by_what_they_are_and_page_by_page(store: Store) -> None:
    put_workspace(store, "acme")
    for number in range(12):
        workspace, queue, workflow = ("acme", "default")[number % 2], ("mail", "bulk")[number % 3 == 0], ("w", "W")[number % 4 == 0]
        add(store, new_item(f"i{number}", workspace, queue=queue, workflow_id=workflow))
    claim_items(store, 4, queues=("mail",))
    everything = store.items(ItemQuery())
    assert ids_of(everything) == [f"i{number}" for number in reversed(range(12))]
    filters: tuple[dict[str, Any], ...] = (
        {"workspace_id": "acme"},
        {"queue": "bulk"},
        {"workflow_id": "W"},
        {"status": "CLAIMED"},
        {"workspace_id": "acme", "queue": "mail", "workflow_id": "w", "status": "QUEUED"},
        {"workspace_id": "ac%"},
    )
    for fields in filters:
        wanted = [item for item in everything if all(getattr(item, name) == value for name, value in fields.items())]
        assert store.items(ItemQuery(**fields)) == wanted
        pages = pages_of(_pages(store, fields), None, lambda item: item.number)
        assert [item for page in pages for item in page] == wanted


def _pages(store: Store, fields: dict[str, Any]) -> Callable[[int | None], list[Item]]:
    return lambda before: store.items(ItemQuery(**fields, before=before, limit=2))


def test_lanes_say_what_waits_and_runs(store: Store, clock: FakeClock) -> None:
    put_workspace(store, "acme")
    start = store.now_ms()
    add(
        store,
        new_item("a", "acme"),
        new_item("b", "acme"),
        new_item("c", "acme"),
        new_item("m", "acme", queue="mail", delay_ms=HOUR * 1000),
    )
    clock.advance(0.5 * HOUR)
    [first, second] = claim_items(store, 2)
    landed(write(store, ItemMark(first.item_id, "DISPATCHED", first.fence)))
    add(store, "other")
    [acme, mail] = store.lanes("acme")
    assert (acme.workspace_id, acme.queue, mail.queue) == ("acme", "default", "mail")
    assert (acme.ready, acme.delayed, acme.claimed, acme.dispatched) == (1, 0, 1, 1)
    assert (mail.ready, mail.delayed, mail.oldest_ready_ms, mail.waits_ms) == (0, 1, None, ())
    assert acme.oldest_ready_ms is not None
    assert start <= acme.oldest_ready_ms < start + 0.4 * HOUR * 1000
    assert len(acme.waits_ms) == 2
    assert all(0.5 * HOUR * 1000 <= wait < 0.9 * HOUR * 1000 for wait in acme.waits_ms)
    assert [(lane.workspace_id, lane.queue) for lane in store.lanes()] == [
        ("acme", "default"),
        ("acme", "mail"),
        ("default", "default"),
    ]
    clock.advance(HOUR)
    end(store, first, second)
    lanes = {lane.queue: lane for lane in store.lanes("acme")}
    assert (lanes["default"].claimed, lanes["default"].dispatched, lanes["mail"].ready, lanes["mail"].delayed) == (0, 0, 1, 0)


@pytest.mark.parametrize("way", ["returned", "failed", "expired", "driven again"])
def test_a_lane_counts_the_wait_of_an_items_last_claim_alone(store: Store, clock: FakeClock, way: str) -> None:
    add(store, "a", "b")
    clock.advance(0.5 * HOUR)
    [claimed, other] = claim_items(store, seconds=2 * HOUR)
    landed(write(store, ItemMark(other.item_id, "DISPATCHED", other.fence)))
    clock.advance(3 * HOUR)
    if way == "expired":
        assert recover(store) == ["a"]
    elif way == "driven again":
        end(store, claimed, status="FAILED")
        answers(write(store, Redrive("a", "again")))
    else:
        answers(write(store, ReturnItem("a", claimed.fence, "broken" if way == "failed" else None)))
    assert [round(wait / HOUR / 1000, 1) for wait in store.lanes()[0].waits_ms] == [0.5]
    clock.advance(HOUR)
    assert ids_of(claim_items(store)) == ["a"]
    assert [round(wait / HOUR / 1000, 1) for wait in store.lanes()[0].waits_ms] == [0.5, 1.0]


def test_missing_item_is_none(store: Store) -> None:
    assert store.item("nobody") is None
    assert store.items(ItemQuery()) == []
    assert store.lanes() == []
    assert answers(write(store, ItemMark(fresh_id(), "COMPLETED"))) == []


def test_next_ready_says_when_the_first_delayed_item_comes(store: Store, clock: FakeClock) -> None:
    start = store.now_ms()
    assert store.next_ready_ms() is None
    add(store, "now")
    assert (store.next_ready_ms() or 0) <= store.now_ms()
    assert len(claim_items(store)) == 1
    assert store.next_ready_ms() is None
    add(store, new_item("later", delay_ms=2 * HOUR * 1000), new_item("soon", delay_ms=HOUR * 1000))
    soon = stored(store, "soon").run_at_ms
    assert store.next_ready_ms() == soon >= start + HOUR * 1000
    clock.advance(1.5 * HOUR)
    claim_items(store)
    assert store.next_ready_ms() == stored(store, "later").run_at_ms


def test_whether_items_are_ready_is_known_without_a_claim(store: Store, clock: FakeClock) -> None:
    put_workspace(store, concurrency=0)
    assert not store.has_ready()
    add(store, new_item("later", delay_ms=HOUR * 1000))
    assert not store.has_ready()
    clock.advance(1.5 * HOUR)
    assert claim_items(store, workflows=("others",)) == []
    assert store.has_ready()  # that claim has shown it
    assert len(claim_items(store)) == 1
    assert not store.has_ready()
    add(store, new_item("full", "acme"))
    assert claim_items(store) == []
    assert store.has_ready()
