"""Leases of executions in memory: who runs which, and which come due when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stepwell.clock import Clock
from stepwell.errors import StepwellError
from stepwell.fault_points import fault
from stepwell.model.commit import Claim, ClaimDue, Extension, Head, Lease, Outcome, Release, Rest, Written
from stepwell.model.execution_row import claimed, due, extended, granted, lease_on, released, rested
from stepwell.model.status import FINAL
from stepwell.stores.memory.execution import MemoryExecution
from stepwell.stores.memory.undo import UndoLog

__all__ = ["MemoryLeases"]

replace = msgspec.structs.replace


class MemoryLeases:
    """The leases of all executions of a store. Called under the store's lock."""

    def __init__(self, clock: Clock, executions: Mapping[str, MemoryExecution]) -> None:
        self._clock, self._executions = clock, executions
        self.waking: dict[str, MemoryExecution] = {}
        """Those that come due some time, so that a claim does not look at all that ever ran."""

    def write(self, unit: Claim | ClaimDue | Extension | Release, undo: UndoLog) -> Outcome:
        """Write one unit, or say why not."""
        match unit:
            case Claim():
                return self._claim(unit, undo)
            case ClaimDue():
                return self._claim_due(unit, undo)
            case Extension():
                return self._extend(unit, undo)
            case Release():
                return self._release(unit, undo)

    def _claim(self, claim: Claim, undo: UndoLog) -> Outcome:
        head = claimed(self._head(claim.execution_id), claim, self._clock.now_ms())
        return head if isinstance(head, StepwellError) else Written([self._grant(head, undo)])

    def _claim_due(self, claim: ClaimDue, undo: UndoLog) -> Outcome:
        now = self._clock.now_ms()
        heads = due([execution.head for execution in self.waking.values()], claim, now)
        leases = [self._grant(granted(head, claim, now), undo) for head in heads]
        if leases:
            fault("lease.claimed")
        return Written(leases)

    def _extend(self, unit: Extension, undo: UndoLog) -> Outcome:
        head = extended(self._head(unit.execution_id), unit, self._clock.now_ms())
        if isinstance(head, StepwellError):
            return head
        undo.set(self._executions[unit.execution_id], "head", head)
        return Written([lease_on(head)])

    def _release(self, unit: Release, undo: UndoLog) -> Outcome:
        head = released(self._head(unit.execution_id), unit, self._clock.now_ms())
        if isinstance(head, StepwellError):
            return head
        undo.set(self._executions[unit.execution_id], "head", head)
        return Written()

    def rest(self, execution: MemoryExecution, rest: Rest, undo: UndoLog) -> None:
        """Give the lease of an execution back with the time of the next look."""
        undo.set(execution, "head", rested(execution.head, rest, self._clock.now_ms(), is_nudged=execution.is_nudged))
        self.note(execution, undo)
        undo.set(execution, "is_nudged", False)
        fault("lease.rested")

    def nudge(self, execution_ids: Sequence[str], undo: UndoLog) -> None:
        """Have executions looked at: now, or as soon as their holders rest."""
        for execution_id in execution_ids:
            execution = self._executions.get(execution_id)
            if execution is not None and execution.head.status not in FINAL:
                undo.set(execution, "is_nudged", True)
                if execution.head.holder is None:
                    undo.set(execution, "head", replace(execution.head, wake_ms=self._clock.now_ms()))
                    self.note(execution, undo)
            fault("lease.nudged")

    def note(self, execution: MemoryExecution, undo: UndoLog) -> None:
        """Keep the list of those that come due up with a head that was written."""
        execution_id, is_noted = execution.head.execution_id, execution.head.execution_id in self.waking
        if execution.head.wake_ms is None and is_noted:
            undo.drop(self.waking, execution_id)
        elif execution.head.wake_ms is not None and not is_noted:
            undo.put(self.waking, execution_id, execution)

    def forget(self, execution_id: str, undo: UndoLog) -> None:
        """An execution was deleted: it never comes due."""
        if execution_id in self.waking:
            undo.drop(self.waking, execution_id)

    def _head(self, execution_id: str) -> Head | None:
        execution = self._executions.get(execution_id)
        return None if execution is None else execution.head

    def _grant(self, head: Head, undo: UndoLog) -> Lease:
        execution = self._executions[head.execution_id]
        undo.set(execution, "head", head)
        undo.set(execution, "is_nudged", False)
        return lease_on(head)
