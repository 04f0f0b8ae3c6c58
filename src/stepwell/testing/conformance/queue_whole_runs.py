"""Whole runs, each an execution's only commit: many in one group have the outcomes that each has alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import AlreadyExists, LeaseLost
from stepwell.model.commit import Commit, Creation, Rest, Seen
from stepwell.model.queue_item import CancelItem, Claimed, ClaimItems, ItemMark, ItemQuery, ReturnItem
from stepwell.testing.conformance.samples import (
    HOUR,
    SampleExecution,
    add,
    answers,
    claim_items,
    landed,
    new_item,
    put_workspace,
    refused,
    status,
    statuses,
    stored,
    used,
    walk,
    write,
)

_WORKER = Creation("orders", 3, holder="w", lease_seconds=HOUR, is_runnable=True)

# Each of these may be written down in a way of its own.
_KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"priority": 5},
    {"queue": "bills"},
    {"workspace": "a/b:c %"},
    {"singleton": "one"},
    {"key": "k"},
    {"input": b'"\\u0000\xc3\xbc"'},
)


def run_of(store: Store, claimed: Claimed, outcome: str = "COMPLETED", **fields: Any) -> Commit:
    """The only commit of a claimed item's execution."""
    mark = ItemMark(claimed.item_id, outcome, claimed.fence, "Broken: it broke" if outcome == "FAILED" else None)
    execution = SampleExecution(store, claimed.execution_id, workspace=claimed.workspace_id)
    steps = (status("RUNNING"), status(outcome))
    return execution.creation(*steps, **{"creation": _WORKER, "rest": Rest(is_final=True), "mark": mark, **fields})


def claimed_items(store: Store, *names: str, **fields: Any) -> list[Claimed]:
    """Items that were enqueued and claimed."""
    add(store, *(new_item(name, **fields) for name in names))
    return claim_items(store, len(names))


def test_runs_of_one_group_come_to_what_each_comes_to_alone(store: Store) -> None:
    put_workspace(store, "a/b:c %", concurrency=100)
    seen: dict[str, list[object]] = {}
    for way in ("alone", "group"):
        runs: list[Commit] = []
        for number, fields in enumerate(_KINDS):
            own = {name: f"{value} {way}" if name in ("singleton", "key") else value for name, value in fields.items()}
            [claimed] = claimed_items(store, f"{way} {number}", **own)
            if number % 2:  # one that has failed before, and says so until it ends well
                landed(write(store, ReturnItem(claimed.item_id, claimed.fence, "at first")))
                [claimed] = claim_items(store)
            runs.append(run_of(store, claimed, "FAILED" if number % 3 == 1 else "COMPLETED"))
        for outcome in store.write(runs) if way == "group" else [write(store, run) for run in runs]:
            landed(outcome)
        seen[way] = [as_seen(store, way, number) for number in range(len(_KINDS))]
    assert seen["group"] == seen["alone"]
    assert [used(store, name) for name in ("default", "a/b:c %")] == [0, 0]
    assert {(lane.claimed, lane.dispatched) for lane in store.lanes()} <= {(0, 0)}
    assert len(store.items(ItemQuery(status="FAILED", limit=100))) == sum(number % 3 == 1 for number in range(len(_KINDS))) * 2
    assert len(store.find(ExecutionQuery(status="COMPLETED", limit=100))) + len(
        store.find(ExecutionQuery(status="FAILED", limit=100))
    ) == 2 * len(_KINDS)


def as_seen(store: Store, way: str, number: int) -> object:
    """An item and its execution, without what tells two of a kind apart."""
    item = stored(store, f"{way} {number}")
    assert walk(store, item.execution_id).ok
    head = store.head(item.execution_id)
    assert head is not None
    assert len(store.history(item.execution_id, -1, 10)) == 1
    names = {"item_id": "", "execution_id": "", "number": 0, "key": None, "singleton": None}
    times = {name: None if getattr(item, name) is None else 0 for name in item.__struct_fields__ if name.endswith("_ms")}
    return replace(item, **names, **times), replace(head, execution_id="", digest=""), store.base(item.execution_id)


def test_run_that_cannot_land_stops_no_other_of_its_group(store: Store) -> None:
    """T28, T31: a lost claim, an item that was cancelled, an id that is taken or not the item's are refused to their callers."""
    items = dict(zip("abcdefgh", claimed_items(store, *"abcdefgh"), strict=True))
    SampleExecution(store, "of-c").create()
    landed(write(store, CancelItem("d")))
    runs = {name: run_of(store, claimed) for name, claimed in items.items()}
    runs["b"] = run_of(store, items["b"], mark=ItemMark("b", "COMPLETED", items["b"].fence + 1))
    runs["h"] = run_of(store, replace(items["h"], execution_id="of-nobody"))
    outcomes = dict(zip(runs, store.write(list(runs.values())), strict=True))
    for name in "aefg":
        landed(outcomes[name])
    for name, kind in (("b", LeaseLost), ("c", AlreadyExists), ("d", LeaseLost), ("h", LeaseLost)):
        refused(outcomes[name], kind)
    ended = dict.fromkeys("aefg", "COMPLETED")
    assert statuses(store) == dict.fromkeys("bch", "CLAIMED") | {"d": "CANCELLED"} | ended
    assert [store.head(f"of-{name}") for name in ("b", "d", "nobody")] == [None, None, None]


@pytest.mark.parametrize("change", [{"fence": 99}, {"execution_id": "of-nobody"}], ids=["claim", "execution"])
def test_run_that_is_not_its_items_is_the_only_one_of_its_group_to_be_refused(store: Store, change: dict[str, Any]) -> None:
    """T31: with nothing else in the way that would have the group written with more care."""
    first, middle, last = claimed_items(store, *"abc")
    bad = run_of(store, replace(middle, **change))
    outcomes = store.write([run_of(store, first), bad, run_of(store, last)])
    landed(outcomes[0])
    refused(outcomes[1], LeaseLost)
    landed(outcomes[2])
    assert statuses(store) == {"a": "COMPLETED", "b": "CLAIMED", "c": "COMPLETED"}
    assert store.head(bad.execution_id) is None


def test_run_that_landed_before_is_seen_in_its_group(store: Store) -> None:
    """T03: also if it stands there twice."""
    first, *others = [run_of(store, claimed) for claimed in claimed_items(store, *"abc")]
    landed(write(store, first))
    before = stored(store, "a")
    outcomes = store.write([first, others[0], others[0], others[1]])
    assert [type(outcome) for outcome in (outcomes[0], outcomes[2])] == [Seen, Seen]
    landed(outcomes[1])
    landed(outcomes[3])
    assert stored(store, "a") == before
    assert statuses(store) == dict.fromkeys("abc", "COMPLETED")


def test_claim_in_a_group_of_runs_finds_the_slots_of_those_before_it(store: Store) -> None:
    put_workspace(store, "small", concurrency=2)
    runs = [run_of(store, claimed) for claimed in claimed_items(store, "a", "b", workspace="small")]
    add(store, *(new_item(name, "small") for name in "cde"))
    assert claim_items(store) == []
    *ends, claim = store.write([*runs, ClaimItems("d", HOUR, 10)])
    for outcome in ends:
        landed(outcome)
    assert [item.item_id for item in answers(claim)] == ["c", "d"]
    assert used(store, "small") == 2
