"""Lease renewal: extend the leases of running executions in time, and stop sessions whose lease could not be extended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from stepwell.errors import LeaseLost, StepwellError
from stepwell.model.commit import Extension, Lease, Written
from stepwell.pipeline.operations import AsyncDriver, write
from stepwell.runtime.periodic import PeriodicTask

__all__ = ["LeaseGuard", "LeaseRenewal", "Leased", "monotonic"]

log = logging.getLogger(__name__)

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
        """Whether the execution exists: one that does not exist has no lease yet."""
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
        self._guard = LeaseGuard(lease_seconds, sessions)

    async def run(self) -> None:
        """Renew leases, and stop sessions whose lease could not be renewed, until cancelled."""
        await asyncio.gather(super().run(), self._guard.run())

    async def work(self) -> float:
        """Renew the leases that were not granted or renewed since the last round."""
        every = self._lease_seconds / _RENEWALS_PER_LEASE
        # Leases that were granted or renewed lately can wait until the next round.
        old = monotonic() + self._lease_seconds - every
        due = [each for each in self._sessions.values() if each.is_created and each.kept_until <= old]
        await asyncio.gather(*map(self._renew, due))
        return every

    async def _renew(self, session: Leased) -> None:
        lease, asked = session.lease, monotonic()
        try:
            outcome = await self._driver.run(write(Extension(lease.name, lease.holder, lease.fence, self._lease_seconds)))
        except StepwellError as error:
            log.warning("the lease of execution %r could not be renewed: %s", lease.name, error)
            return
        if isinstance(outcome, LeaseLost):
            session.lose(outcome)
        elif isinstance(outcome, Written) and isinstance(outcome.answers[0], Lease):
            session.lease, session.kept_until = outcome.answers[0], asked + self._lease_seconds


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
        for session in list(self._sessions.values()):
            if monotonic() >= session.kept_until - self._margin_seconds:
                lease = session.lease
                session.lose(LeaseLost(f"the lease of {lease.name!r} could not be renewed in time", fence=lease.fence))
        return self._margin_seconds / 2
