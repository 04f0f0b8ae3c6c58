"""From the reply of one of the queue's scripts to the outcome of its unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.errors import NotFound, StepwellError
from stepwell.model.commit import Commit, Written
from stepwell.model.queue_item import CancelItem, Claimed, ClaimItems, Enqueue, Enqueued, NewItem, RecoverItems, Redrive, ReturnItem
from stepwell.model.queue_lifecycle import full, unknown_workspace
from stepwell.model.refusals import (
    asked_otherwise,
    claim_lost,
    item_alive,
    item_driven,
    item_dropped,
    no_item,
    put_outrun,
    singleton_alive,
)
from stepwell.stores.redis.queue_rows import read_item

__all__ = ["queue_refusal", "queue_written"]


def queue_written(unit: Any, rest: Sequence[Any]) -> Written:
    """What a unit came to that its script has written."""
    match unit:
        case Enqueue():
            return Written(_added(unit.items, rest))
        case ClaimItems():
            return Written([_claimed(row, rest[0]) for row in rest[1:]])
        case ReturnItem() | CancelItem() | Redrive():
            return Written([read_item(rest[0])])
        case RecoverItems():
            *ids, dropped = rest
            return Written([*(item_id.decode() for item_id in ids), dropped])
        case _:
            return Written()


def _added(items: Sequence[NewItem], rest: Sequence[Any]) -> list[Enqueued | StepwellError]:
    """One answer for each request: those that the script says nothing of are new items."""
    answers: list[Enqueued | StepwellError] = [Enqueued(new.item_id, new.execution_id, "PENDING", True) for new in items]
    for which, word, *said in rest:
        index = int(which) - 1
        answers[index] = _there(said) if word == b"there" else _refused(items[index], word, said)
    return answers


def _there(said: Sequence[bytes]) -> Enqueued:
    item_id, execution_id, status = (each.decode() for each in said)
    return Enqueued(item_id, execution_id, status, False)


def _refused(new: NewItem, word: bytes, said: Sequence[bytes]) -> StepwellError:
    match word:
        case b"workspace":
            return unknown_workspace(new.workspace_id)
        case b"full":
            return full(new.workspace_id)
        case _:
            return asked_otherwise(said[0].decode())


def _claimed(row: Sequence[Any], until_ms: int) -> Claimed:
    item_id, workspace, workflow, version, execution, data, fence, attempts, queue, enqueued, *_ = row
    return Claimed(
        item_id.decode(),
        workspace.decode(),
        workflow.decode(),
        int(version),
        execution.decode(),
        data,
        int(fence or 0) + 1,
        int(attempts or 0) + 1,
        until_ms,
        queue.decode(),
        int(enqueued),
    )


def queue_refusal(word: object, rest: Sequence[Any], unit: Any) -> StepwellError | None:
    """Why a unit was refused; None for a word that is not the queue's."""
    match word:
        case b"item" if isinstance(unit, Commit):
            return _refused(unit.items[int(rest[0]) - 1], rest[1], rest[2:])
        case b"claim":
            mark = _named(unit)
            return claim_lost(mark.item_id, mark.fence)
        case b"nobody":
            return no_item(unit.item_id)
        case b"dropped":
            return item_dropped(_named(unit).item_id)
        case b"driven":
            return item_driven(_named(unit).item_id, rest[0].decode())
        case b"alive":
            return item_alive(_named(unit).item_id, rest[0].decode())
        case b"single":
            return singleton_alive(rest[0].decode())
        case b"outrun":
            return put_outrun(unit)
        case b"tier":
            names = ", ".join(sorted(name.decode() for name in rest))
            return NotFound(f"there is no tier {unit.workspace.tier!r}; there are {names}")
        case _:
            return None


def _named(unit: Any) -> Any:
    """What names the item of a unit: the mark that rides with a commit, or the unit."""
    return unit.mark if isinstance(unit, Commit) else unit
