"""The engine contract: where the executions that the queue asks for are run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stepwell.model.queue_item import Claimed

__all__ = ["Engine", "NotNow"]


class NotNow(Exception):
    """An item cannot be started at this moment, through no fault of its own; it keeps its attempt and comes again soon."""


class Engine(Protocol):
    """Runs executions. The dispatcher claims items for it and hands them over one by one."""

    @property
    def name(self) -> str:
        """The name of the engine in logs and statistics."""
        ...

    @property
    def room(self) -> int:
        """The number of items that can be started now."""
        ...

    @property
    def concurrent_starts(self) -> int:
        """The number of starts that may be under way at once; 1 where starting is no I/O."""
        ...

    def on_room(self, call: Callable[[], None]) -> None:
        """Call this whenever there is room for more, on the loop that runs the executions."""
        ...

    async def workflows(self) -> tuple[str, ...]:
        """Return the names of the workflows that it can run; items of others are not claimed for it."""
        ...

    async def start(self, claimed: Claimed) -> None:
        """Start the execution of an item and see to it that the item is marked.

        The execution has the id that the item says, so one that was started before is found and not started twice; that is no
        error. A retried execution, which waits for its slot, continues from its record. The first thing that becomes durable of the
        execution moves the item to DISPATCHED (or to its end) under the claim's fence, and does not happen if the claim is no
        longer good. The end of the execution ends the item. Raises for an item that cannot be started; the dispatcher then gives it
        back, and goes on with the others: ``NotNow`` and ``NotFound`` (the workflow is not known here) do not use up an attempt,
        anything else does.
        """
        ...

    async def cancel(self, execution_id: str) -> None:
        """Ask an execution to end. ``NotFound`` if there is none, ``Conflict`` if it has ended."""
        ...
