"""Schedules: a workflow runs by cron, by an interval or once, and each tick fires once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.module_state import cleared
from tests.support.queue_urls import clocked_url, queue_url

from stepwell import Corrupted, FakeClock, InvalidInput, NotFound, workflow
from stepwell.app.blocking import Stepwell
from stepwell.model.commit import StateBatch
from stepwell.model.scoped_operations import Put
from stepwell.pipeline.operations import Read
from stepwell.queue.schedule import Timing
from stepwell.queue.scheduler import PATH, decode_schedule, encode_schedule, fire_due
from stepwell.testing.store_access import parts_of, run_operation, store_under, write_unit, write_unit_or_raise

__all__ = ["clocked_url", "queue_url"]

WAIT = 60
runs: Counter[int] = Counter()


_cleared = cleared(runs)


@workflow(name="schedules.report")
async def report(number: int) -> int:
    runs[number] += 1
    return number


@pytest.fixture
def well(open_well: OpenWell, clocked_url: str, clock: FakeClock) -> Any:
    """A well whose schedules are fired by the test, in a time that it moves."""
    well: Any = open_well(clocked_url, worker=False, clock=clock)
    well.workspaces.put("acme", tier="scale")
    return well


@pytest.fixture
def blocking_well(clocked_url: str, clock: FakeClock) -> Any:
    """The same through the blocking face, whose parts a test can drive."""
    with Stepwell(clocked_url, worker=False, clock=clock) as well:
        yield well


def fire(well: Stepwell) -> float | None:
    return run_operation(well, fire_due(parts_of(well).queue.schedules))


def ticks(well: Any) -> list[str]:
    keys = (item.key for item in store_under(well).items(_all()))
    return sorted(key.rpartition(":")[2] for key in keys)


def _all() -> Any:
    from stepwell.model.queue_item import ItemQuery

    return ItemQuery(limit=10_000)


def test_a_schedule_runs_its_workflow_again_and_again(open_well: OpenWell, queue_url: str):
    well: Any = open_well(queue_url)
    well.schedules.put("often", report, 7, every=0.2)
    while runs[7] < 3:
        pass
    well.schedules.delete("often")
    assert well.schedules.list() == []


def test_a_schedule_is_kept_found_and_dropped(well: Any, clock: FakeClock):
    made = well.schedules.put("nightly", "schedules.report", 1, cron="30 2 * * *", zone="Europe/Berlin", workspace="acme")
    assert made == well.schedules.get("nightly")
    assert (made.cron, made.zone, made.workspace_id, made.value) == ("30 2 * * *", "Europe/Berlin", "acme", 1)
    assert made.next_at == datetime(2026, 1, 1, 1, 30, tzinfo=UTC)
    assert well.schedules.next("nightly", 2) == [made.next_at, made.next_at + timedelta(days=1)]
    assert [each.name for each in well.schedules.list()] == ["nightly"]
    assert well.schedules.delete("nightly")
    assert not well.schedules.delete("nightly")
    with pytest.raises(NotFound):
        well.schedules.get("nightly")


def test_each_tick_becomes_one_item(blocking_well: Stepwell, clock: FakeClock):
    blocking_well.schedules.put("often", report, 7, every=60)
    assert fire(blocking_well) == 60
    assert ticks(blocking_well) == []
    clock.advance(60)
    assert fire(blocking_well) == 60
    assert fire(blocking_well) == 60
    assert len(ticks(blocking_well)) == 1
    schedule = blocking_well.schedules.get("often")
    assert (schedule.last_at, schedule.next_at) == (clock.now(), clock.now() + timedelta(seconds=60))


def test_a_tick_whose_firing_was_cut_short_is_fired_once(blocking_well: Stepwell, clock: FakeClock):
    """The item was stored, and the process died before the schedule was moved."""
    blocking_well.schedules.put("often", report, 7, every=60)
    clock.advance(60)
    operation = fire_due(parts_of(blocking_well).queue.schedules)
    effect = operation.send(None)
    while isinstance(effect, Read):
        effect = operation.send(effect.query())
    operation.send(write_unit(blocking_well, effect.unit))
    operation.close()
    assert len(ticks(blocking_well)) == 1
    fire(blocking_well)
    assert len(ticks(blocking_well)) == 1
    assert blocking_well.schedules.get("often").last_at == clock.now()


def test_a_one_off_fires_once_and_has_no_next(blocking_well: Stepwell, clock: FakeClock):
    blocking_well.schedules.put("once", report, 7, at=clock.now() + timedelta(seconds=5))
    clock.advance(5)
    assert fire(blocking_well) is None
    clock.advance(1_000)
    fire(blocking_well)
    assert len(ticks(blocking_well)) == 1
    assert blocking_well.schedules.get("once").next_at is None
    assert blocking_well.schedules.next("once") == []


def test_missed_ticks_are_caught_up_by_the_policy(blocking_well: Stepwell, clock: FakeClock):
    for policy in ("none", "last", "all"):
        blocking_well.schedules.put(policy, report, 1, every=3600, catch_up=policy)
    clock.advance(3 * 3600 + 600)
    fire(blocking_well)
    fired = Counter(key.split(":")[1] for key in (item.key or "" for item in store_under(blocking_well).items(_all())))
    assert fired == {"last": 1, "all": 3}


@pytest.mark.parametrize("timing", [{"every": 3600}, {"cron": "0 * * * *", "zone": "Europe/Berlin"}])
def test_a_schedule_that_is_put_again_as_it_was_keeps_the_ticks_that_are_due(
    blocking_well: Stepwell, clock: FakeClock, timing: dict[str, Any]
):
    put = partial(blocking_well.schedules.put, "hourly", report, catch_up="all", **timing)
    put(1)
    clock.advance(2 * 3600)
    fire(blocking_well)
    clock.advance(3 * 3600 + 600)
    before = blocking_well.schedules.get("hourly")
    assert put(1) == before
    assert put(2) == msgspec.structs.replace(before, value=2)
    fire(blocking_well)
    assert [item.input for item in blocking_well.queue.list()] == [2, 2, 2, 1, 1]
    assert put(2).next_at == clock.now() + timedelta(seconds=3000)


def test_a_schedule_that_is_put_with_other_times_begins_anew(blocking_well: Stepwell, clock: FakeClock):
    blocking_well.schedules.put("often", report, 1, every=60, catch_up="all")
    clock.advance(600)
    again = blocking_well.schedules.put("often", report, 1, every=120, catch_up="all")
    assert (again.next_at, again.last_at) == (clock.now() + timedelta(seconds=120), None)
    fire(blocking_well)
    assert ticks(blocking_well) == []


def test_a_one_off_that_has_fired_can_be_put_again_and_stays_over(blocking_well: Stepwell, clock: FakeClock):
    moment = clock.now() + timedelta(seconds=5)
    blocking_well.schedules.put("once", report, 7, at=moment)
    clock.advance(6)
    fire(blocking_well)
    assert blocking_well.schedules.put("once", report, 7, at=moment).next_at is None
    fire(blocking_well)
    assert len(ticks(blocking_well)) == 1
    with pytest.raises(InvalidInput, match="never comes"):
        blocking_well.schedules.put("another", report, 7, at=moment)


def test_a_schedule_that_is_put_again_stays_paused_until_it_is_resumed(well: Any):
    well.schedules.put("often", report, 7, every=60)
    well.schedules.pause("often")
    assert well.schedules.put("often", report, 8, every=60).is_paused
    assert well.schedules.put("often", report, 8, every=90).is_paused
    assert not well.schedules.resume("often").is_paused


def store(well: Stepwell, name: str, data: bytes) -> None:
    """Put a schedule as another process would that knows more than this one."""
    write_unit_or_raise(well, StateBatch((Put(PATH, name, msgspec.Raw(data)),)))


def test_a_schedule_that_cannot_be_evaluated_here_stops_no_other(
    blocking_well: Stepwell, clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    blocking_well.schedules.put("other", report, 7, every=60)
    known = decode_schedule(store_under(blocking_well).entries(PATH, ["other"])["other"].data or b"")
    on_mars = msgspec.structs.replace(known, name="mars", timing=Timing(cron="* * * * *", zone="Mars/Olympus"))
    store(blocking_well, "mars", encode_schedule(on_mars))
    store(blocking_well, "newer", b'{"of":"a later release"}')
    clock.advance(60)
    assert fire(blocking_well) == 5
    assert store_under(blocking_well).items(_all())[0].key == f"schedule:other:{clock.now_ms()}"
    told = [record.getMessage() for record in caplog.records]
    assert any("'mars'" in each and "no time zone 'Mars/Olympus'" in each for each in told)
    assert any("'newer'" in each and "missing required field" in each for each in told)


ODD: dict[str, dict[str, Any]] = {
    "a name that is another's": {"name": "z"},
    "no interval": {"timing": {"every_ms": 0}},
    "a time that no datetime has": {"next_ms": 10**18},
    "a time before time": {"next_ms": -1},
    "a priority that no item has": {"priority": 10**15},
    "attempts that no item has": {"max_attempts": 0},
    "a queue that no item has": {"queue": "a\0b"},
    "a workspace without a name": {"workspace_id": ""},
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_a_row_that_nobody_could_have_put_stops_no_other_schedule(queue_url: str, change: dict[str, Any]):
    """A damaged row was read, and broke off the firing of all that come after it."""
    with Stepwell(queue_url, worker=False) as well:
        well.schedules.put("z", report, 7, every=60, catch_up="last")
        known = msgspec.json.decode(store_under(well).entries(PATH, ["z"])["z"].data or b"")
        due = {"next_ms": known["since_ms"], "since_ms": known["since_ms"] - 60_000}
        for name, row in {"z": {**known, **due}, "odd": {**known, **due, "name": "odd", **change}}.items():
            write_unit_or_raise(well, StateBatch((Put(PATH, name, msgspec.Raw(msgspec.json.encode(row))),)))
        fire(well)
        assert len(store_under(well).items(_all())) == 1
        assert [each.name for each in well.schedules.list()] == ["z"]
        with pytest.raises(Corrupted, match="schedule 'odd' cannot be read here"):
            well.schedules.get("odd")
        assert well.schedules.delete("odd")


def test_unreadable_schedule_hides_no_other_and_can_be_replaced_or_deleted(
    blocking_well: Stepwell, clock: FakeClock, caplog: pytest.LogCaptureFixture
):
    schedules = blocking_well.schedules
    schedules.put("other", report, 7, every=60)
    for name in ("new", "newer"):
        store(blocking_well, name, b'{"of":"a later release"}')
    assert [each.name for each in schedules.list()] == ["other"]
    assert "schedule 'newer' cannot be read here" in caplog.text
    for ask in (schedules.get, schedules.pause, schedules.next, schedules.run_now):
        with pytest.raises(Corrupted, match="schedule 'newer' cannot be read here"):
            ask("newer")
    assert schedules.put("new", report, 8, every=90).next_at == clock.now() + timedelta(seconds=90)
    assert schedules.delete("newer")
    assert not schedules.delete("newer")
    assert [each.name for each in schedules.list()] == ["new", "other"]


def test_a_paused_schedule_fires_nothing_until_it_is_resumed(blocking_well: Stepwell, clock: FakeClock):
    blocking_well.schedules.put("often", report, 7, every=60)
    assert blocking_well.schedules.pause("often").is_paused
    clock.advance(600)
    assert fire(blocking_well) is None
    assert blocking_well.schedules.resume("often").next_at == clock.now() + timedelta(seconds=60)
    fire(blocking_well)
    assert ticks(blocking_well) == []
    clock.advance(60)
    fire(blocking_well)
    assert len(ticks(blocking_well)) == 1


def test_what_a_paused_schedule_missed_is_caught_up_if_so_asked(blocking_well: Stepwell, clock: FakeClock):
    blocking_well.schedules.put("often", report, 7, every=60, catch_up="all")
    blocking_well.schedules.pause("often")
    clock.advance(180)
    blocking_well.schedules.resume("often")
    fire(blocking_well)
    assert len(ticks(blocking_well)) == 3


def test_run_now_is_beside_the_ticks(well: Any):
    well.schedules.put("nightly", report, 1, cron="30 2 * * *")
    first, second = well.schedules.run_now("nightly"), well.schedules.run_now("nightly")
    assert first.item_id != second.item_id
    assert first.state().input == 1


def test_backfill_fires_the_ticks_of_the_past_once(well: Any, clock: FakeClock):
    well.schedules.put("hourly", report, 1, cron="0 * * * *")
    start = clock.now() - timedelta(hours=3)
    items = well.schedules.backfill("hourly", start, clock.now())
    assert len(items) == 4
    again = well.schedules.backfill("hourly", start - timedelta(hours=1), clock.now())
    assert [item.is_new for item in again] == [True, False, False, False, False]
    with pytest.raises(InvalidInput):
        well.schedules.backfill("hourly", start.replace(tzinfo=None), clock.now())
    with pytest.raises(InvalidInput, match="9999"):
        well.schedules.backfill("hourly", start, datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))))
    with pytest.raises(InvalidInput, match="10,000"):
        well.schedules.backfill("hourly", start - timedelta(days=600), clock.now())


def test_an_interval_is_backfilled_to_before_it_began(well: Any, clock: FakeClock):
    well.schedules.put("often", report, 1, every=60)
    items = well.schedules.backfill("often", clock.now() - timedelta(seconds=180), clock.now())
    assert len(items) == 4


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, InvalidInput),
        ({"cron": "0 0 30 2 *"}, InvalidInput),
        ({"cron": "nonsense"}, InvalidInput),
        ({"cron": "* * * * *", "zone": "Nowhere"}, InvalidInput),
        ({"every": 60, "catch_up": "some"}, InvalidInput),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, InvalidInput),
        ({"every": 60, "workspace": "nowhere"}, NotFound),
        ({"every": 60, "workflow": "unknown"}, NotFound),
        ({"every": 60, "value": "text"}, InvalidInput),
        ({"every": 60, "name": ""}, InvalidInput),
    ],
)
def test_a_bad_schedule_is_refused_and_not_kept(
    open_well: OpenWell, queue_url: str, options: dict[str, Any], error: type[Exception]
):
    well: Any = open_well(queue_url, worker=False)
    with pytest.raises(error):
        well.schedules.put(**({"name": "bad", "workflow": report, "value": 1} | options))
    assert well.schedules.list() == []
