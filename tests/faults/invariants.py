"""The offline checker: what must hold after any fault, seen from outside (I1 to I4 of the catalogue)."""

from __future__ import annotations

from collections.abc import Iterable

from tests.faults.acks import Ack
from tests.faults.callers import Caller

from stepwell.model.execution_state import ZERO

__all__ = ["check_acks", "check_chain"]


def check_chain(caller: Caller, execution_id: str) -> None:
    """I3: the receipts are gapless, linked, as many as commits, end in the stored state, and the state at hand is that state."""
    receipts, state = caller.receipts(execution_id), caller.load(execution_id)
    verification = caller.verify(execution_id)
    assert verification.ok, verification.problems
    assert [receipt.revision for receipt in receipts] == list(range(state.revision + 1))
    assert [receipt.previous for receipt in receipts] == [ZERO, *(receipt.digest for receipt in receipts[:-1])]
    assert len({receipt.commit_id for receipt in receipts}) == len(receipts) == verification.receipts
    assert receipts[-1].after == state.state_digest
    assert caller.load(execution_id, at=state.revision) == state, "what is at hand differs from what is stored"


def check_acks(caller: Caller, acks: Iterable[Ack]) -> None:
    """I2: every commit that somebody was told of is there, at its revision, with its digest."""
    told: dict[str, list[Ack]] = {}
    for ack in acks:
        told.setdefault(ack.execution_id, []).append(ack)
    for execution_id, own in told.items():
        stored = {(each.revision, each.commit_id, each.digest) for each in caller.receipts(execution_id)}
        lost = [ack for ack in own if (ack.revision, ack.commit_id, ack.digest) not in stored]
        assert not lost, f"acknowledged, but not stored: {lost}"
