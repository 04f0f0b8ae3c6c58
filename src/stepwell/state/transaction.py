"""Transactions on an execution and on scoped state, in both colours."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from stepwell.errors import Conflict, InvalidInput, ValidationFailed
from stepwell.model.commit import LockGuard
from stepwell.model.limits import Limits
from stepwell.model.receipt import Receipt
from stepwell.model.scope import Scope
from stepwell.pipeline.operations import AsyncDriver, Driver, Operation
from stepwell.state.executions import CommitTerms, Executions, OpenTransaction
from stepwell.state.scoped_state import StateOperations
from stepwell.state.transaction_buffer import Buffer, BufferedScope, HasScope

__all__ = ["AsyncStateTransaction", "AsyncTransaction", "StateTransaction", "Transaction"]

D = TypeVar("D", Driver, AsyncDriver)


class _TransactionBase(Buffer, Generic[D]):
    """What both colours share: the buffer, where the transaction stands, and how it ends."""

    def __init__(self, executions: Executions, execution_id: str, terms: CommitTerms, limits: Limits, driver: D) -> None:
        super().__init__(limits)
        self._executions, self.execution_id, self._terms, self._driver = executions, execution_id, terms, driver
        self._session: OpenTransaction | None = None
        self._is_rolled_back = False
        self.receipt: Receipt | None = None
        """The receipt, once the transaction is committed."""

    @property
    def commit_id(self) -> str | None:
        """The id of this commit: to look it up if its reply is lost."""
        return self._terms.commit_id if self._session is None else self._session.commit_id

    def __repr__(self) -> str:
        state = "rolled back" if self._is_rolled_back else "open" if self.receipt is None else "committed"
        return f"<{type(self).__name__} of {self.execution_id!r}: {len(self.batch())} changes, {state}>"

    def rollback(self) -> None:
        """Drop everything that was buffered; nothing of it was visible to anybody."""
        self._is_rolled_back = True
        self.drop()

    def _is_open(self) -> bool:
        """Whether leaving the block has something to commit."""
        # What was asked for after an explicit commit is refused there, and not dropped in silence.
        return bool(self._batch) or (self.receipt is None and not self._is_rolled_back)

    def _is_begun(self) -> bool:
        """Whether the revision that the commit must follow is fixed; it is from now on, if that takes no waiting."""
        self._session = self._session or self._executions.begin_at_hand(self.execution_id, self._terms)
        return self._session is not None

    def _begin(self) -> Operation[OpenTransaction]:
        self._session = yield from self._executions.begin(self.execution_id, self._terms)
        return self._session

    def _commit(self) -> Operation[Receipt]:
        """Commit what was buffered. What was not begun begins and commits in one: nobody can have looked in between, so the state
        at hand is good enough to try with. It is the newest if the commit is taken; if not, it is brought up to the store first."""
        if self.receipt is not None:
            raise InvalidInput("this transaction is committed; begin another one")
        batch, session, receipt, guessed = self.batch(), self._session, None, None
        # What a function of the user's is given must be the newest: it may not take the old one well.
        if session is None and not any(map(callable, batch)):
            session = self._session = self._executions.guess(self.execution_id, self._terms)
            guessed = None if session is None else session.live.state.receipt
        try:
            session = session or (yield from self._begin())
            receipt = yield from self._executions.commit(session, batch)
        except (Conflict, ValidationFailed):
            if guessed is None:
                raise
            session = yield from self._begin()
            if session.live.state.receipt == guessed:
                raise
        self.receipt = receipt or (yield from self._executions.commit(session, batch))
        self.drop()
        return self.receipt


class Transaction(_TransactionBase[Driver]):
    """An atomic batch of changes to one execution. As a context manager it commits on leaving, or rolls back on an exception."""

    def commit(self) -> Receipt:
        """Validate, store and apply everything buffered, as one; ``ValidationFailed`` names all faults and changes nothing."""
        return self._driver.run(self._commit())

    def begin(self) -> Transaction:
        """Fix the revision that the commit must follow: the newest now. Entering the block does it, too; without either, ``commit``
        follows whatever is the newest then."""
        if not self._is_begun():
            self._driver.run(self._begin())
        return self

    def __enter__(self) -> Transaction:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.rollback()
        elif self._is_open():
            self.commit()


class AsyncTransaction(_TransactionBase[AsyncDriver]):
    """An atomic batch of changes to one execution. ``async with`` commits on leaving, or rolls back on an exception."""

    async def commit(self) -> Receipt:
        """Validate, store and apply everything buffered, as one; ``ValidationFailed`` names all faults and changes nothing."""
        return await self._driver.run(self._commit())

    async def begin(self) -> AsyncTransaction:
        """Fix the revision that the commit must follow: the newest now. Entering the block does it, too; without either, ``commit``
        follows whatever is the newest then."""
        if not self._is_begun():
            await self._driver.run(self._begin())
        return self

    # A block does not go through begin and commit: every coroutine in between is passed at each awaiting.

    async def __aenter__(self) -> AsyncTransaction:
        if not self._is_begun():
            await self._driver.run(self._begin())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.rollback()
        elif self._is_open():
            await self._driver.run(self._commit())


class _StateTransactionBase:
    """Writes to many keys and scopes that land together."""

    def __init__(self, operations: StateOperations, guards: tuple[LockGuard, ...]) -> None:
        self._operations, self._guards = operations, guards
        self._buffer = Buffer(operations.limits)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._buffer.batch())} changes>"

    def state(self, scope: Scope | HasScope) -> BufferedScope:
        """A scope whose writes land with this transaction."""
        return self._buffer.state(scope)

    def rollback(self) -> None:
        """Drop everything that was buffered."""
        self._buffer.drop()

    def _commit(self) -> Operation[None]:
        yield from self._operations.commit(self._buffer, self._guards)
        self._buffer.drop()


class StateTransaction(_StateTransactionBase):
    """Writes to many keys and scopes, all or none. As a context manager it commits on leaving, or rolls back on an exception."""

    def __init__(self, operations: StateOperations, driver: Driver, guards: tuple[LockGuard, ...] = ()) -> None:
        super().__init__(operations, guards)
        self._driver = driver

    def commit(self) -> None:
        """Write everything buffered, as one."""
        self._driver.run(self._commit())

    def __enter__(self) -> StateTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.rollback() if kind is not None else self.commit()


class AsyncStateTransaction(_StateTransactionBase):
    """Writes to many keys and scopes, all or none. ``async with`` commits on leaving, or rolls back on an exception."""

    def __init__(self, operations: StateOperations, driver: AsyncDriver, guards: tuple[LockGuard, ...] = ()) -> None:
        super().__init__(operations, guards)
        self._driver = driver

    async def commit(self) -> None:
        """Write everything buffered, as one."""
        await self._driver.run(self._commit())

    async def __aenter__(self) -> AsyncStateTransaction:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.rollback()
        else:
            await self.commit()
