"""T11 for heartbeats of workers: a damaged row hides no other worker, and is logged once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest
from tests.faults.test_state_bit_flips import place
from tests.support.queue_urls import queue_url

from stepwell import Stepwell, workflow
from stepwell.model.commit import StateBatch
from stepwell.model.scoped_operations import Put
from stepwell.queue.worker_presence import WorkerPresence, presence
from stepwell.testing.store_access import write_unit_or_raise

__all__ = ["place", "queue_url"]


@workflow(name="presence_flips.report")
async def report(number: int) -> int:
    return number


def appear(well: Stepwell, *names: str) -> None:
    for name in names:
        word = WorkerPresence(name, "local", (report.name,), (), 10, datetime.now(UTC), {report.name: 1})
        write_unit_or_raise(well, presence(word))


def seen(well: Stepwell) -> list[str]:
    return [each.name for each in well.queue.workers()]


def test_damaged_word_of_a_worker_hides_no_other_and_is_told_once(
    place: tuple[str, Callable[[str], None]], caplog: pytest.LogCaptureFixture
) -> None:
    url, flip = place
    with Stepwell(url, worker=False) as well:
        appear(well, "a", "bad", "z")
        item = well.enqueue(report, 1)
        flip("bad")
        for _ in range(3):
            assert seen(well) == ["a", "z"]
            assert item.why().codes == ("ready",)
        told = [record.getMessage() for record in caplog.records]
        assert told == [
            "the heartbeat of worker 'bad' cannot be read and is ignored until it is renewed: it does not match its checksum"
        ]
        appear(well, "bad")
        assert seen(well) == ["a", "bad", "z"]


@pytest.mark.parametrize("told", [b"{}", b"[1]", b'{"engine":"e","workflows":[],"queues":[],"concurrency":1,"seen_ms":1e300}'])
def test_word_that_is_no_word_hides_no_other_worker(queue_url: str, told: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with Stepwell(queue_url, worker=False) as well:
        appear(well, "a", "z")
        write_unit_or_raise(well, StateBatch((Put("worker/default", "odd", msgspec.Raw(told)),)))
        assert seen(well) == seen(well) == ["a", "z"]
        assert len(caplog.records) == 1
