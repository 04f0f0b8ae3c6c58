"""Bulk operations of one server: an action on many runs that goes on in the background, and is followed or aborted meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from stepwell.errors import StepwellError
from stepwell.model.ids import new_id
from stepwell.web.problem import HttpProblem, kind_of

__all__ = ["BulkFailure", "BulkOperation", "BulkOperations"]

log = logging.getLogger(__name__)

_AT_ONCE = 20
_MOST_KEPT = 100
"""Operations that are remembered: of those that have ended, the oldest is forgotten first."""
_MOST_UNDER_WAY = 10


class BulkFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A run for which the action was refused."""

    execution_id: str
    code: str
    detail: str


class BulkOperation:
    """An action on these runs, and how far it is."""

    def __init__(self, workspace: str, action: str, ids: Sequence[str]) -> None:
        self.bulk_id, self.workspace, self.action, self.ids = new_id(), workspace, action, tuple(ids)
        self.done, self.failures = 0, list[BulkFailure]()
        self.is_ended = self.is_aborted = False
        self.task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Begin with no further run. Those that were begun with are finished."""
        self.is_aborted = self.is_aborted or not self.is_ended

    async def run(self, act: Callable[[str], Awaitable[None]]) -> None:
        """Carry the action out, for some runs at a time."""
        left = iter(self.ids)

        async def go_on() -> None:
            for execution_id in left:
                if self.is_aborted:
                    return
                try:
                    await act(execution_id)
                except StepwellError as error:
                    self.failures.append(BulkFailure(execution_id=execution_id, code=kind_of(error).code, detail=error.message))
                else:
                    self.done += 1

        try:
            await asyncio.gather(*(go_on() for _ in range(_AT_ONCE)))
        except Exception:
            log.exception("bulk operation %s failed", self.bulk_id)
            self.is_aborted = True
        finally:
            self.is_ended = True

    async def wait(self, seconds: float) -> None:
        """Wait for the end, for so long at most."""
        if self.task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.task), seconds)


class BulkOperations:
    """The bulk operations that this server began."""

    def __init__(self) -> None:
        self._known: dict[str, BulkOperation] = {}

    def start(self, operation: BulkOperation, act: Callable[[str], Awaitable[None]]) -> None:
        """Begin with an operation. Raise ``HttpProblem`` (503) if too many are under way."""
        under_way = [each for each in self._known.values() if not each.is_ended]
        if len(under_way) >= _MOST_UNDER_WAY:
            raise HttpProblem("busy", f"{len(under_way)} bulk operations are under way; wait for one, or abort it")
        ended = [each.bulk_id for each in self._known.values() if each.is_ended]
        for bulk_id in ended[: max(0, len(self._known) + 1 - _MOST_KEPT)]:
            del self._known[bulk_id]
        self._known[operation.bulk_id] = operation
        operation.task = asyncio.get_running_loop().create_task(operation.run(act))

    def get(self, bulk_id: str, workspace: str) -> BulkOperation | None:
        """Return an operation of a workspace; None if this server knows none."""
        found = self._known.get(bulk_id)
        return found if found is not None and found.workspace == workspace else None

    async def close(self) -> None:
        """Stop what is under way."""
        tasks = [each.task for each in self._known.values() if each.task is not None and not each.is_ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
