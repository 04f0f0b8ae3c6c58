"""T01, T28, T35, T39: a process killed at any point of a write to the queue leaves everything as it was, or everything done."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.children import Child
from tests.faults.hooks import Trace
from tests.faults.queue_case import ACTS, RETRYABLE, dump, open_store, prepare, write

from stepwell.fault_points import QUEUE_POINTS, armed
from stepwell.model.commit import Seen, Written
from stepwell.model.queue_item import ItemQuery
from stepwell.testing.conformance.samples import claim_items, used


@pytest.fixture(scope="module")
def nursery() -> Iterator[Child]:
    with Child("queue_crasher") as child:
        yield child


@pytest.fixture
def template(quick_path: Path) -> Path:
    path = quick_path / "template.db"
    store = open_store(path)
    prepare(store)
    store.close()
    return path


def picture(template: Path, act: str) -> tuple[Trace, dict[str, list[tuple[object, ...]]]]:
    """The points that an act reaches, and every row after it."""
    path, trace = template.with_name("picture.db"), Trace()
    shutil.copy(template, path)
    store = open_store(path)
    with armed(trace):
        write(store, act)
    store.close()
    return trace, dump(path)


@pytest.mark.parametrize("act", ACTS)
def test_a_killed_write_to_the_queue_is_old_or_new_and_its_retry_lands_once(act: str, template: Path, nursery: Child) -> None:
    """T01: kill -9 at every hit of every point; I1, I2, I6, and the used slots are the rows (T35)."""
    trace, new = picture(template, act)
    old = dump(template)
    assert old != new
    assert trace.hits().keys() & QUEUE_POINTS.keys(), "the act reaches no point of the queue"
    for point, hits in trace.hits().items():
        for hit in range(1, hits + 1):
            path = template.with_name(f"{point}-{hit}.db")
            shutil.copy(template, path)
            nursery.tell(json.dumps([str(path), act, point, hit]))
            assert nursery.hear() == str(-signal.SIGKILL)
            has_landed = point == "store.committed"
            store = open_store(path)
            assert dump(path) == (new if has_landed else old), (point, hit)
            lanes = store.lanes("acme")
            assert sum(lane.claimed + lane.dispatched for lane in lanes) == used(store, "acme") <= 3
            if act in RETRYABLE or not has_landed:
                [outcome] = store.write([ACTS[act](store)])
                assert isinstance(outcome, Seen if has_landed and act in ("dispatch", "finish") else Written)
                assert dump(path) == new
            store.close()


def test_the_acts_reach_every_point_of_the_queue(template: Path) -> None:
    """T01: no write without a point."""
    reached = {point for act in ACTS for point in picture(template, act)[0].points}
    assert reached >= QUEUE_POINTS.keys()


def test_items_of_a_claimer_that_was_killed_are_claimed_again_after_their_lease(template: Path, nursery: Child) -> None:
    """T28: killed after its claim had landed; nobody was told of it, and nothing is lost."""
    nursery.tell(json.dumps([str(template), "claim", "store.committed", 1]))
    assert nursery.hear() == str(-signal.SIGKILL)
    store = open_store(template)
    held = store.items(ItemQuery(workspace_id="acme", status="CLAIMED"))
    assert len(held) == 3
    assert claim_items(store) == []
    store.close()
