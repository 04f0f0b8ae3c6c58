"""Tickets: units that wait to be written, each with the spot where its outcome is left, and how its caller is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import msgspec

from stepwell.gate import shut_gate
from stepwell.model.commit import Outcome, Unit

__all__ = ["Errand", "ThreadTicket", "Ticket", "Told"]

Told = Callable[[Callable[[], Outcome]], None]
"""Called with a function that gives the outcome, or raises what kept it from being written."""


class Ticket(msgspec.Struct, eq=False):
    """One caller's unit, and where the outcome is left for it."""

    unit: Unit
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[Outcome] | None = None
    """What the caller awaits, if it does."""
    outcome: Outcome | None = None
    error: BaseException | None = None

    def result(self) -> Outcome:
        if self.error is not None:
            raise self.error
        assert self.outcome is not None, "a ticket is read only after its group is done"  # noqa: S101
        return self.outcome

    def tell(self) -> None:
        """Tell the caller, on its loop."""
        future = self.future
        if future is None or future.done():
            return  # its caller was cancelled
        if self.error is None and self.outcome is not None:
            future.set_result(self.outcome)
            return
        # A future takes any error but this one.
        future.set_exception(self.error if not isinstance(self.error, StopIteration | None) else RuntimeError(repr(self.error)))
        future.exception()  # a caller who is cancelled now does not ask, and nobody shall complain of that


class ThreadTicket(Ticket):
    """That of a caller who blocks."""

    gate: threading.Lock = msgspec.field(default_factory=shut_gate)

    def tell(self) -> None:
        self.gate.release()


class Errand(Ticket, kw_only=True):
    """A unit that nobody waits for: whoever submitted it is called."""

    told: Told

    def tell(self) -> None:
        try:
            self.told(self.result)
        except Exception as error:  # noqa: BLE001 - the others of the group must be told all the same
            assert self.loop is not None  # noqa: S101
            self.loop.call_exception_handler({"message": "who submitted a write could not take its outcome", "exception": error})
