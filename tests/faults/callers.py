"""The two faces behind one: a test that is written once runs for a caller that blocks and for one that awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from stepwell import AsyncStepwell, FakeClock, Receipt, Stepwell, Verification
from stepwell.clock import Clock
from stepwell.model.commit import Outcome, Unit
from stepwell.model.execution_state import Entries, ExecutionState
from stepwell.model.scoped_operations import ScopeTotals
from stepwell.pipeline.store_clock import StoreClock
from stepwell.state.transaction_buffer import Buffer
from stepwell.testing.store_access import parts_of, store_under, write_unit

__all__ = ["CALLERS", "Awaited", "Blocking", "Caller", "Change", "Pending", "Whole", "go_by_the_given_clock"]

Change = Callable[[Buffer], None]
Scopes = dict[str, tuple[ScopeTotals, dict[str, object]]]
_TRACE_ID = "7" * 32
"""Given, since receipts are compared between wells and processes."""


class Whole(msgspec.Struct, frozen=True):
    """Everything that can be seen of one execution and of all scoped state; two of them are equal if nothing differs."""

    revision: int
    entries: Entries
    receipts: tuple[str, ...]
    scopes: Scopes


class Pending(Protocol):
    """A transaction whose changes are buffered; ``commit`` may be tried more than once."""

    def commit(self) -> Receipt: ...


class Caller(Protocol):
    """The calls of these tests on a well, blocking or awaited."""

    name: str

    def begin(self, execution_id: str, commit_id: str | None, change: Change, *, fence: int | None = None) -> Pending: ...
    def create(self, execution_id: str, commit_id: str) -> Receipt: ...
    def whole(self, execution_id: str) -> Whole | None: ...
    def scopes(self) -> Scopes: ...
    def load(self, execution_id: str, at: int | None = None) -> ExecutionState: ...
    def receipts(self, execution_id: str) -> list[Receipt]: ...
    def verify(self, execution_id: str) -> Verification: ...
    def receipt(self, execution_id: str, commit_id: str) -> Receipt | None: ...
    def delete(self, execution_id: str) -> None: ...
    def write(self, unit: Unit) -> Outcome: ...
    def close(self) -> None: ...


def go_by_the_given_clock(set_attribute: Callable[[type, str, object], None] = setattr) -> None:
    """Do not correct the caller's clock by the store's."""
    set_attribute(StoreClock, "measure", lambda _: None)


class Blocking:
    """A caller that blocks."""

    name = "blocking"

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.well = Stepwell(url, clock=clock or FakeClock())

    def begin(self, execution_id: str, commit_id: str | None, change: Change, *, fence: int | None = None) -> Pending:
        tx = self.well.transaction(execution_id, commit_id=commit_id, fence=fence).begin()
        change(tx)
        return tx

    def create(self, execution_id: str, commit_id: str) -> Receipt:
        return self.well.create(execution_id, context={"made": True}, commit_id=commit_id, trace_id=_TRACE_ID)

    def whole(self, execution_id: str) -> Whole | None:
        if not any(each.execution_id == execution_id for each in self.well.executions.list()):
            return None
        state, receipts = self.well.load(execution_id), self.well.receipts(execution_id)
        return Whole(state.revision, state.entries(), tuple(each.digest for each in receipts), self.scopes())

    def scopes(self) -> Scopes:
        return {
            scope.path: (store_under(self.well).totals(scope.path), dict(self.well.state.at(scope).all()))
            for scope in self.well.state.scopes()
        }

    def load(self, execution_id: str, at: int | None = None) -> ExecutionState:
        return self.well.load(execution_id, at)

    def receipts(self, execution_id: str) -> list[Receipt]:
        return self.well.receipts(execution_id)

    def verify(self, execution_id: str) -> Verification:
        return self.well.verify(execution_id)

    def receipt(self, execution_id: str, commit_id: str) -> Receipt | None:
        return self.well.receipt(execution_id, commit_id)

    def delete(self, execution_id: str) -> None:
        self.well.delete(execution_id)

    def write(self, unit: Unit) -> Outcome:
        """Write a unit that no face offers yet, such as a claim."""
        return write_unit(self.well, unit)

    def close(self) -> None:
        self.well.close()


class Awaited:
    """A caller that awaits, driven from outside its loop one call at a time."""

    name = "awaited"

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.runner = asyncio.Runner()
        self.well = AsyncStepwell(url, clock=clock or FakeClock())

    def begin(self, execution_id: str, commit_id: str | None, change: Change, *, fence: int | None = None) -> Pending:
        tx = self.well.transaction(execution_id, commit_id=commit_id, fence=fence)
        self.runner.run(tx.__aenter__())
        change(tx)
        return _AwaitedPending(self.runner, tx.commit)

    def create(self, execution_id: str, commit_id: str) -> Receipt:
        made = self.well.create(execution_id, context={"made": True}, commit_id=commit_id, trace_id=_TRACE_ID)
        return self.runner.run(made)

    def whole(self, execution_id: str) -> Whole | None:
        return self.runner.run(self._whole(execution_id))

    async def _whole(self, execution_id: str) -> Whole | None:
        if not any(each.execution_id == execution_id for each in await self.well.executions.list()):
            return None
        state, receipts = await self.well.load(execution_id), await self.well.receipts(execution_id)
        return Whole(state.revision, state.entries(), tuple(each.digest for each in receipts), await self._scopes())

    def scopes(self) -> Scopes:
        return self.runner.run(self._scopes())

    async def _scopes(self) -> Scopes:
        return {
            scope.path: (store_under(self.well).totals(scope.path), dict(await self.well.state.at(scope).all()))
            for scope in await self.well.state.scopes()
        }

    def load(self, execution_id: str, at: int | None = None) -> ExecutionState:
        return self.runner.run(self.well.load(execution_id, at))

    def receipts(self, execution_id: str) -> list[Receipt]:
        return self.runner.run(self.well.receipts(execution_id))

    def verify(self, execution_id: str) -> Verification:
        return self.runner.run(self.well.verify(execution_id))

    def receipt(self, execution_id: str, commit_id: str) -> Receipt | None:
        return self.runner.run(self.well.receipt(execution_id, commit_id))

    def delete(self, execution_id: str) -> None:
        self.runner.run(self.well.delete(execution_id))

    def write(self, unit: Unit) -> Outcome:
        return self.runner.run(self._written(unit))

    async def _written(self, unit: Unit) -> Outcome:
        return await parts_of(self.well).group.write_async(unit)

    def close(self) -> None:
        self.runner.run(self.well.close())
        self.runner.close()


class _AwaitedPending:
    def __init__(self, runner: asyncio.Runner, commit: Callable[[], object]) -> None:
        self._runner, self._commit = runner, commit

    def commit(self) -> Receipt:
        return self._runner.run(self._commit())  # type: ignore[arg-type]


CALLERS: dict[str, type[Blocking] | type[Awaited]] = {"blocking": Blocking, "awaited": Awaited}
