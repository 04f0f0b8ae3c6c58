"""Tiers, workspaces and queues that two callers change at the same moment: no change of either is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.queue_urls import queue_url

from stepwell import Conflict, InvalidInput, NotFound
from stepwell.pipeline.operations import Operation, Write
from stepwell.testing.store_access import parts_of, run_operation

__all__ = ["queue_url"]


@pytest.fixture
def well(open_well: OpenWell, queue_url: str) -> Any:
    """A well in which only the test writes."""
    return open_well(queue_url, worker=False)


def meeting(first: Operation[Any], others: Callable[[], Operation[Any] | None]) -> Operation[Any]:
    """The first operation; whatever the others give is done whole when it has read and is about to write."""
    answer = None
    while True:
        try:
            effect = first.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(effect, Write) and (other := others()) is not None:
            yield from other
        answer = yield effect


def once(operation: Operation[Any]) -> Callable[[], Operation[Any] | None]:
    """Gives an operation the first time."""
    left = [operation]
    return lambda: left.pop() if left else None


def workspace(well: Any, **changes: Any) -> Operation[Any]:
    return parts_of(well).queue.workspaces.put("acme", changes.get("tier"), changes.get("is_paused"))


def tier(well: Any, **changes: Any) -> Operation[Any]:
    return parts_of(well).queue.workspaces.put_tier("gold", changes)


def queue(well: Any, **changes: Any) -> Operation[Any]:
    return parts_of(well).queue.items.change_queue("mail", **changes)


def shown(well: Any, change: Callable[..., Any]) -> Any:
    """Return the record that an operation changes, as it is now."""
    if change is workspace:
        return well.workspaces.get("acme")
    return well.queue.get("mail") if change is queue else next(each for each in well.workspaces.tiers() if each.name == "gold")


CHANGES: list[tuple[Callable[..., Operation[Any]], dict[str, Any], dict[str, Any]]] = [
    (workspace, {"tier": "scale"}, {"is_paused": True}),
    (workspace, {"is_paused": True}, {"tier": "scale"}),
    (tier, {"concurrency": 4}, {"weight": 2.5}),
    (tier, {"retention_seconds": None}, {"rate_per_second": 7}),
    (queue, {"concurrency": 4}, {"is_paused": True}),
    (queue, {"is_paused": True}, {"concurrency": 4, "rate_per_second": 0.5}),
]


@pytest.mark.parametrize("is_there", [True, False], ids=["there already", "made by both"])
@pytest.mark.parametrize(("change", "one", "other"), CHANGES)
def test_changes_of_two_at_once_are_both_there(
    well: Any, change: Callable[..., Operation[Any]], one: dict[str, Any], other: dict[str, Any], is_there: bool
):
    if is_there:
        run_operation(well, change(well))
    told = run_operation(well, meeting(change(well, **one), once(change(well, **other))))
    after = shown(well, change)
    assert {name: getattr(after, name) for name in one | other} == one | other
    assert told == after


def test_a_pause_loses_no_change_of_the_tier_and_none_loses_the_pause(well: Any):
    well.workspaces.put("acme", tier="free")
    do = parts_of(well).queue.workspaces
    assert run_operation(well, meeting(do.pause("acme", True), once(do.put("acme", "scale", None)))) == well.workspaces.get("acme")
    assert (well.workspaces.get("acme").tier, well.workspaces.get("acme").is_paused) == ("scale", True)


def test_of_two_who_change_the_same_the_last_to_write_wins(well: Any):
    run_operation(well, meeting(tier(well, concurrency=4), once(tier(well, concurrency=9, weight=3.0))))
    assert (shown(well, tier).concurrency, shown(well, tier).weight) == (4, 3.0)


@pytest.mark.parametrize(
    ("change", "late", "refusal"),
    [
        (workspace, {"tier": "no such tier"}, NotFound),
        (workspace, {"is_paused": "yes"}, InvalidInput),
        (tier, {"weight": 0}, InvalidInput),
        (queue, {"rate_per_second": 1e-307}, InvalidInput),
    ],
)
def test_a_bad_change_beside_a_good_one_writes_nothing(
    well: Any, change: Callable[..., Operation[Any]], late: dict[str, Any], refusal: type[Exception]
):
    run_operation(well, change(well))
    before = shown(well, change)
    with pytest.raises(refusal):
        run_operation(well, meeting(change(well), once(change(well, **late))))
    assert shown(well, change) == before


@pytest.mark.parametrize(
    ("change", "late", "others"),
    [
        (workspace, {"tier": "scale"}, [{"is_paused": True}, {"is_paused": False}]),
        (tier, {"rate_per_second": 7}, [{"concurrency": 1}, {"concurrency": 2}]),
        (queue, {"rate_per_second": 7}, [{"concurrency": 1}, {"concurrency": 2}]),
    ],
)
def test_change_that_always_comes_late_is_refused_at_last(
    well: Any, change: Callable[..., Operation[Any]], late: dict[str, Any], others: list[dict[str, Any]]
):
    turns = itertools.cycle(others)
    with pytest.raises(Conflict, match="nothing was written, try again"):
        run_operation(well, meeting(change(well, **late), lambda: change(well, **next(turns))))
    assert all(getattr(shown(well, change), name) != value for name, value in late.items())


def test_changes_of_many_threads_are_all_there(open_well: OpenWell, queue_url: str):
    wells: list[Any] = [open_well(queue_url, worker=False) for _ in range(1 if queue_url.startswith("memory") else 2)]
    settings = {
        "concurrency": 4,
        "weight": 2.5,
        "rate_per_second": 7.0,
        "queue_depth": 8,
        "state_bytes": 9,
        "retention_seconds": 1.0,
        "child_concurrency": 7,
    }
    with ThreadPoolExecutor(len(settings)) as pool:
        for name in ("gold", "silver", "bronze"):
            done = [
                pool.submit(wells[number % len(wells)].workspaces.put_tier, name, **{what: value})
                for number, (what, value) in enumerate(settings.items())
            ]
            for each in done:
                each.result(60)
            [after] = [each for each in wells[0].workspaces.tiers() if each.name == name]
            assert {what: getattr(after, what) for what in settings} == settings
