"""Lease renewal: extend the leases of running executions in time, and stop sessions whose lease could not be extended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Protocol

from stepwell.errors import LeaseLost, StepwellError
from stepwell.model.commit import Extension, Lease, Outcome, Written
from stepwell.pipeline.operations import AsyncDriver, Operation, write
from stepwell.runtime.loop_watchdog import LoopWatchdog
from stepwell.runtime.periodic import PeriodicTask

__all__ = ["LeaseGuard", "LeaseRenewal", "Leased", "monotonic"]

_RENEWALS_PER_LEASE = 3
_MARGINS_PER_LEASE = 10


def monotonic() -> float:
    """Return the running loop's time: ``time.monotonic``, or the time of a test's loop."""
    return asyncio.get_running_loop().time()


class Leased(Protocol):
    """A session that runs under a lease."""

    lease: Lease
    kept_until: float
    """The time until which the lease is surely held, by ``time.monotonic``."""

    @property
    def is_created(self) -> bool:
        """True if the execution exists: one that does not exist has no lease yet."""
        ...

    def lose(self, error: LeaseLost) -> None:
        """Stop at once."""
        ...


class LeaseRenewal(PeriodicTask):
    """Extends the leases of sessions.

    All times are this process's own, counted from the moment before a lease was asked for, so that they are never later than the
    store's, whatever its clock says.
    """

    name = "the renewal of leases"

    def __init__(self, driver: AsyncDriver, lease_seconds: float, sessions: Mapping[str, Leased]) -> None:
        super().__init__()
        self._driver, self._lease_seconds, self._sessions = driver, lease_seconds, sessions
        self._every = lease_seconds / _RENEWALS_PER_LEASE
        self._guard = LeaseGuard(lease_seconds, sessions)
        self._watchdog = LoopWatchdog(lease_seconds, sessions, self._renew_all_in_thread)

    async def run(self) -> None:
        """Renew leases, and stop sessions whose lease could not be renewed, until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._watchdog.start()
        try:
            await asyncio.gather(super().run(), self._guard.run())
        finally:
            self._watchdog.stop()

    async def work(self) -> float:
        """Renew the leases that were not granted or renewed since the last round."""
        errors = await asyncio.gather(*map(self._renew, self._due(monotonic())))
        for error in filter(None, errors):
            raise error  # logged once for all leases, until a round succeeds; the next one comes soon
        return self._every

    def _due(self, now: float) -> list[Leased]:
        """Return the sessions to renew now. Leases that were granted or renewed lately can wait until the next round."""
        # A copy of the sessions: the watchdog calls this from its thread while sessions begin and end on the loop.
        old = now + self._lease_seconds - self._every
        return [each for each in list(self._sessions.values()) if each.is_created and each.kept_until <= old]

    def _extension(self, session: Leased) -> Operation[Outcome]:
        lease = session.lease
        return write(Extension(lease.name, lease.holder, lease.fence, self._lease_seconds))

    async def _renew(self, session: Leased) -> StepwellError | None:
        """Renew one lease; return why it could not be renewed, so that the other leases still are."""
        # Taken before the request, so that this process never believes in a lease for longer than the store does.
        asked = monotonic()
        try:
            outcome = await self._driver.run(self._extension(session))
        except StepwellError as error:
            return error
        self._renewed(session, outcome, asked)
        return None

    def _renewed(self, session: Leased, outcome: Outcome, asked: float) -> None:
        if isinstance(outcome, LeaseLost):
            session.lose(outcome)
        elif isinstance(outcome, Written) and isinstance(outcome.answers[0], Lease) and session.kept_until > -inf:
            # A session that was lost meanwhile (-inf) stays lost, and a late reply shortens no lease that a later request extended.
            session.lease, session.kept_until = outcome.answers[0], max(asked + self._lease_seconds, session.kept_until)

    def _renew_all_in_thread(self) -> None:
        """Renew leases while the loop is blocked. The session of a lost lease is stopped later, by the loop."""
        for session in self._due(time.monotonic()):
            asked = time.monotonic()
            try:
                outcome = self._driver.run_blocking(self._extension(session))
            except Exception as error:  # noqa: BLE001 - the watchdog goes on, and a store that was closed ends with its worker
                self._note_failure(error)
                return
            if isinstance(outcome, LeaseLost) and self._loop is not None:
                with suppress(RuntimeError):  # the loop was closed
                    self._loop.call_soon_threadsafe(session.lose, outcome)
            else:
                self._renewed(session, outcome, asked)


class LeaseGuard(PeriodicTask):
    """Stop sessions whose lease ends soon and was not renewed: another worker may take over then.

    It is a task of its own, since a renewal may wait for an unavailable store.
    """

    name = "the guard of leases"

    def __init__(self, lease_seconds: float, sessions: Mapping[str, Leased]) -> None:
        super().__init__()
        self._margin_seconds, self._sessions = lease_seconds / _MARGINS_PER_LEASE, sessions

    async def work(self) -> float:
        """Stop the sessions whose lease ends within the margin; return the seconds until the next check."""
        # Stopping takes a moment, so it begins before the lease ends.
        for session in list(self._sessions.values()):
            if monotonic() >= session.kept_until - self._margin_seconds:
                lease = session.lease
                session.lose(LeaseLost(f"the lease of {lease.name!r} could not be renewed in time", fence=lease.fence))
        return self._margin_seconds / 2
