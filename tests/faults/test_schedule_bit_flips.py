"""T11 for schedules: one that was damaged at rest hides no other, is named, and can be put again or deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.faults.test_state_bit_flips import place

from stepwell import Corrupted, FakeClock, Stepwell, workflow
from stepwell.model.queue_item import ItemQuery
from stepwell.queue.scheduler import fire_due
from stepwell.testing.store_access import parts_of, run_operation, store_under

__all__ = ["place"]

Place = tuple[str, Callable[[str], None]]
NAMES = ["a", "bad", "c", "worse", "z"]


@workflow(name="schedule_flips.report")
async def report(number: int) -> int:
    return number


def put_all(well: Stepwell, flip: Callable[[str], None]) -> None:
    """Five schedules, two of them damaged, the second among good ones and the fourth alone before the last."""
    for number, name in enumerate(NAMES):
        well.schedules.put(name, report, number, every=60, catch_up="last")
    flip("bad")
    flip("worse")


def fire(well: Stepwell) -> float | None:
    return run_operation(well, fire_due(parts_of(well).queue.schedules))


def test_damaged_schedules_hide_no_other(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    url, flip = place
    with Stepwell(url, worker=False) as well:
        put_all(well, flip)
        assert [each.name for each in well.schedules.list()] == ["a", "c", "z"]
        for name in ("bad", "worse"):
            assert f"schedule {name!r} does not match its checksum, and is not listed" in caplog.text
            for ask in (well.schedules.get, well.schedules.pause, well.schedules.next, well.schedules.run_now):
                with pytest.raises(Corrupted, match=f"schedule {name!r} does not match its checksum; put it again, or delete it"):
                    ask(name)


def test_damaged_schedules_hold_up_no_other_and_are_named_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    url, flip = place
    clock = FakeClock()
    with Stepwell(url, worker=False, clock=clock) as well:
        put_all(well, flip)
        for _ in range(3):
            clock.advance(60)
            assert fire(well) is not None
        fired = [item.key or "" for item in store_under(well).items(ItemQuery())]
        assert sorted(key.split(":")[1] for key in fired) == ["a"] * 3 + ["c"] * 3 + ["z"] * 3
        told = [record.getMessage() for record in caplog.records]
        assert told == [
            f"schedule {name!r} does not match its checksum, and is not fired; put it again, or delete it"
            for name in ("bad", "worse")
        ]


def test_a_damaged_schedule_can_be_put_again_or_deleted(place: Place) -> None:
    url, flip = place
    clock = FakeClock()
    with Stepwell(url, worker=False, clock=clock) as well:
        put_all(well, flip)
        fire(well)
        well.schedules.put("bad", report, 8, every=60, catch_up="last")
        assert well.schedules.delete("worse")
        assert [each.name for each in well.schedules.list()] == ["a", "bad", "c", "z"]
        clock.advance(60)
        fire(well)
        assert len(store_under(well).items(ItemQuery())) == 4


def test_a_schedule_that_is_damaged_again_is_named_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    url, flip = place
    with Stepwell(url, worker=False) as well:
        for number in range(2):
            well.schedules.put("bad", report, number, every=60)
            fire(well)
            flip("bad")
            fire(well)
            fire(well)
        assert len(caplog.records) == 2
