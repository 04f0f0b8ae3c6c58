"""Operations on items whose replies are lost, or that something else comes before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stepwell import CommitUnknown, ItemStatus, Stepwell, workflow
from stepwell.model.queue_item import ItemMark, Redrive
from stepwell.pipeline.operations import Write
from stepwell.testing.store_access import parts_of, run_operation, write_unit_or_raise


@workflow(name="operations.echo")
async def echo(value: int) -> int:
    return value


@pytest.fixture
def well() -> Any:
    with Stepwell("memory://", worker=False) as well:
        yield well


@pytest.mark.parametrize("has_landed", [True, False])
def test_an_item_whose_second_drive_has_no_answer_is_driven_once(well: Stepwell, has_landed: bool):
    item: Any = well.enqueue(echo, 1)
    item.cancel()
    operation = parts_of(well).queue.items.redrive(item.item_id)
    unit: Redrive = first_write(well, operation).unit
    if has_landed:
        write_unit_or_raise(well, unit)
    effect = operation.throw(CommitUnknown())
    answer = finished(well, operation, effect)
    assert (answer.item_id, answer.execution_id) == (item.item_id, unit.execution_id)
    assert (item.state().status, item.state().execution_id) == (ItemStatus.QUEUED, unit.execution_id)


def test_to_cancel_an_item_that_ends_just_then_is_no_error(well: Stepwell):
    item: Any = well.enqueue(echo, 1)
    well.create(item.execution_id)
    for status in ("RUNNING", "COMPLETED"):
        with well.transaction(item.execution_id) as tx:
            tx.set_status(status)
    operation = parts_of(well).queue.items.cancel(item.item_id)
    effect = first_write(well, operation)
    running = msgspec.structs.replace(
        run_operation(well, parts_of(well).queue.items.item(item.item_id)), status=ItemStatus.DISPATCHED
    )
    write_unit_or_raise(well, ItemMark(item.item_id, ItemStatus.COMPLETED))
    outcome = msgspec.structs.replace(run_operation(well, effects(effect)), answers=[running])
    assert finished(well, operation, operation.send(outcome)).status == ItemStatus.COMPLETED


def effects(effect: Any) -> Any:
    """An operation of one effect."""
    return (yield effect)


def first_write(well: Stepwell, operation: Any) -> Write:
    """The first effect of an operation that writes something."""
    effect = operation.send(None)
    while not isinstance(effect, Write):
        effect = operation.send(run_operation(well, effects(effect)))
    return effect


def finished(well: Stepwell, operation: Any, effect: Any) -> Any:
    """Return the result of the rest of an operation."""
    while True:
        answer = run_operation(well, effects(effect))
        try:
            effect = operation.send(answer)
        except StopIteration as end:
            return end.value
