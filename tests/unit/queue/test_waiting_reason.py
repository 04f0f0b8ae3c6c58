"""Why an item waits, from what is around it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from stepwell.model.queue_item import Item, ItemStatus, QueueSettings, Tier, Workspace
from stepwell.queue.diagnosis import ItemContext, Starts, reason_of
from stepwell.queue.worker_presence import WorkerPresence

NOW = 1_000_000


def item(**fields: Any) -> Item:
    plain = Item(
        item_id="i",
        number=1,
        workspace_id="acme",
        workflow_id="echo",
        version=2,
        execution_id="e",
        input=b"1",
        queue="mail",
        status=ItemStatus.QUEUED,
        priority=0,
        enqueued_ms=NOW,
        run_at_ms=NOW,
    )
    return msgspec.structs.replace(plain, **fields)


def around(rate: float | None = None, queue_rate: float | None = None, **fields: Any) -> ItemContext:
    plain = ItemContext(
        workspace=Workspace(workspace_id="acme", tier="t"),
        tier=Tier(name="t", rate_per_second=rate),
        queue=QueueSettings(name="mail", rate_per_second=queue_rate),
        lanes=(),
        holders=(),
        workers=(),
        now_ms=NOW,
    )
    return msgspec.structs.replace(plain, **fields)


def worker(**versions: int) -> WorkerPresence:
    return WorkerPresence("w", "local", ("echo",), (), 10, datetime.now(UTC), versions)


def codes(asked: Item, surroundings: ItemContext) -> tuple[str, ...]:
    return reason_of(asked, surroundings).codes


def test_the_newest_version_of_all_workers_counts() -> None:
    given_back = item(fence=1, run_at_ms=NOW + 5_000)
    assert codes(given_back, around(workers=[worker(echo=1), worker(echo=1)])) == ("newer_version",)
    reason = reason_of(given_back, around(workers=[worker(echo=1), worker(echo=2)]))
    assert reason.codes == ("given_back",)
    assert "looked at again in 5.0 s" in reason.message


def test_workers_that_say_no_version_may_have_any() -> None:
    assert codes(item(), around(workers=[worker()])) == ("ready",)


def test_an_item_that_was_asked_for_later_is_delayed_whatever_version_it_needs() -> None:
    assert codes(item(run_at_ms=NOW + 5_000), around(workers=[worker(echo=1)])) == ("newer_version", "delayed")


def test_an_attempt_that_failed_is_told_with_the_next_ones_time() -> None:
    failed = item(fence=1, attempts=1, error="ValueError: 1", run_at_ms=NOW + 1_000)
    assert codes(failed, around()) == ("delayed",)


def test_a_rate_is_a_reason_when_the_latest_starts_have_used_it_up() -> None:
    assert codes(item(), around(rate=2)) == ("ready",)
    assert codes(item(), around(rate=2, starts=Starts((NOW,)))) == ("ready",)
    assert codes(item(), around(rate=2, starts=Starts((NOW, NOW)))) == ("rate",)
    assert codes(item(), around(rate=2, starts=Starts((NOW - 500, NOW - 500)))) == ("ready",)
    assert codes(item(), around(queue_rate=0.5, queue_starts=Starts((NOW - 1_990,)))) == ("rate",)
    assert codes(item(), around(queue_rate=0.5, queue_starts=Starts((NOW - 2_000,)))) == ("ready",)


def test_starts_before_those_that_are_known_are_taken_to_have_used_up_the_rate() -> None:
    steady = tuple(NOW - 500 * back for back in range(5, -1, -1))
    assert codes(item(), around(rate=2, starts=Starts(steady, is_cut=True))) == ("rate",)
    assert codes(item(), around(rate=2, starts=Starts(steady))) == ("ready",)
    assert codes(item(), around(rate=2, starts=Starts(steady, is_cut=True), now_ms=NOW + 500)) == ("ready",)


def test_a_rate_of_nothing_is_a_reason_beside_any_other() -> None:
    later = item(run_at_ms=NOW + 1_000)
    assert codes(later, around(rate=2, starts=Starts((NOW, NOW)))) == ("delayed",)
    assert codes(later, around(rate=0, queue_rate=0)) == ("delayed", "rate", "rate")
