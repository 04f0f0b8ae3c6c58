"""How long a recovery goes on: by what its units answer, and by the time that it was given."""

from __future__ import annotations

from typing import Any

from stepwell import FakeClock, Stepwell
from stepwell.model.commit import Written
from stepwell.model.queue_item import RecoverItems
from stepwell.pipeline.operations import Write
from stepwell.queue.operations import QueueOperations
from stepwell.queue.recovery import recover_alone
from stepwell.testing.store_access import parts_of, run_operation

MOST = RecoverItems().limit
IDS = [f"i{number}" for number in range(MOST)]
NOTHING: Any = None


def recovered(answers: list[list[Any]], **fields: Any) -> tuple[list[str], int]:
    """Return the result of a recovery whose units get these answers, and the number of unused answers."""
    operation = QueueOperations(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING).recover(**fields)
    left, effect = list(answers), next(operation)
    while True:
        assert effect == Write(RecoverItems())
        try:
            effect = operation.send(Written(left.pop(0)))
        except StopIteration as end:
            return end.value, len(left)


def test_recovery_goes_on_while_it_returns_as_much_as_a_unit_may() -> None:
    found, left = recovered([IDS, IDS, ["last"], []])
    assert found == [*IDS, *IDS, "last"]
    assert left == 1


def test_recovery_leaves_the_rest_when_its_time_is_over() -> None:
    assert recovered([IDS, []], seconds=0) == (IDS, 1)


def test_lock_stays_held_after_a_sweep_so_that_not_every_worker_sweeps() -> None:
    clock = FakeClock()
    with Stepwell("memory://", clock=clock, worker=False) as well:
        parts = parts_of(well)

        def sweep() -> list[str] | None:
            return run_operation(well, recover_alone(parts.queue.items, parts.locks, claim_seconds=30))

        assert sweep() == []
        assert sweep() is None
        clock.advance(9)
        assert sweep() is None
        clock.advance(2)
        assert sweep() == []
