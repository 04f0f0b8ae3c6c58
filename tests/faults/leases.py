"""Leases for the tests, until a worker takes them."""

from __future__ import annotations

from stepwell import Stepwell, StepwellError
from stepwell.model.commit import Claim, Lease, Written
from stepwell.testing.store_access import write_unit

__all__ = ["LEASE_SECONDS", "claim"]

LEASE_SECONDS = 30


def claim(well: Stepwell, execution_id: str, holder: str, seconds: float = LEASE_SECONDS) -> Lease:
    """Take the lease of an execution, or raise why not."""
    outcome = write_unit(well, Claim(execution_id, holder, seconds))
    if isinstance(outcome, StepwellError):
        raise outcome
    assert isinstance(outcome, Written)
    lease = outcome.answers[0]
    assert isinstance(lease, Lease)
    return lease
