"""Transactions on an execution and on scoped state, as operations."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from stepwell.errors import Conflict, InvalidInput, ValidationFailed
from stepwell.model.commit import LockGuard
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY, State
from stepwell.model.limits import Limits
from stepwell.model.mutation import SetMetadata
from stepwell.model.receipt import Receipt
from stepwell.model.record import OWN_METADATA
from stepwell.model.scope import Scope
from stepwell.model.value import decode, recode
from stepwell.pipeline.operations import Operation
from stepwell.state.executions import CommitTerms, Executions, OpenTransaction, is_driven_by_engine
from stepwell.state.scoped_state import StateOperations
from stepwell.state.transaction_buffer import Buffer, BufferedScope, HasScope

__all__ = ["StateTransactionOperations", "TransactionOperations"]


class TransactionOperations(Buffer):
    """Changes to one execution: collected in a buffer, and committed by operations."""

    def __init__(self, executions: Executions, execution_id: str, terms: CommitTerms, limits: Limits) -> None:
        super().__init__(limits)
        self._executions, self.execution_id, self._terms = executions, execution_id, terms
        self._session: OpenTransaction | None = None
        self._is_rolled_back = False
        self.receipt: Receipt | None = None
        """The receipt, once the transaction is committed."""

    @property
    def commit_id(self) -> str | None:
        """Return the id of this commit, for ``well.receipt`` if the reply is lost. None until it is known."""
        return self._terms.commit_id if self._session is None else self._session.commit_id

    def __repr__(self) -> str:
        state = "committed" if self.receipt is not None else "rolled back" if self._is_rolled_back else "open"
        return f"<{type(self).__name__} of {self.execution_id!r}: {len(self.batch())} changes, {state}>"

    def rollback(self) -> None:
        """Drop all buffered changes, of which nothing was visible to others. The transaction accepts no commit after this."""
        self._is_rolled_back = True
        self.drop()

    def _is_open(self) -> bool:
        """Return whether leaving the block has something to commit."""
        # Changes made after an explicit commit or rollback are refused by another commit, and not dropped silently.
        return bool(self._batch) or (self.receipt is None and not self._is_rolled_back)

    def _begin(self) -> Operation[OpenTransaction]:
        self._session = yield from self._executions.begin(self.execution_id, self._terms)
        return self._session

    def _commit(self) -> Operation[Receipt]:
        """Commit what was buffered.

        A transaction that was not begun begins and commits in one: no caller has looked at the state in between, so the state
        at hand is good enough to try. If the commit is taken, that state was the newest. If not, it is loaded again and tried
        once more.
        """
        if self.receipt is not None:
            raise InvalidInput("this transaction is committed; begin another one")
        if self._is_rolled_back:
            raise InvalidInput("this transaction was rolled back, and nothing of it is written; begin another one")
        batch, session, receipt, guessed = self.batch(), self._session, None, None
        # A user's function (update_context) must get the newest state, since it may fail on an old one.
        if session is None and not any(map(callable, batch)):
            session = self._session = self._executions.guess(self.execution_id, self._terms)
            guessed = None if session is None else session.live.state.receipt
        try:
            session = session or (yield from self._begin())
            receipt = yield from self._commit_to(session, batch)
        except (Conflict, ValidationFailed):
            if guessed is None:
                raise
            session = yield from self._begin()
            if session.live.state.receipt == guessed:
                raise
        self.receipt = receipt or (yield from self._commit_to(session, batch))
        self.drop()
        return self.receipt

    def _commit_to(self, session: OpenTransaction, batch: Sequence[Planned]) -> Operation[Receipt]:
        identity = session.live.state.identity
        if is_driven_by_engine(identity):
            self._check_engine_driven(identity)
            batch = [_with_own(change, session.live.state) if isinstance(change, SetMetadata) else change for change in batch]
        return (yield from self._executions.commit(session, batch))


def _with_own(change: SetMetadata, state: State) -> SetMetadata:
    """Return a replacement of an execution's metadata that keeps what the engine has in it. The commit must follow the state."""
    before = decode(state.sections["metadata"].get(ONLY, b"{}"))
    own = {key: before[key] for key in OWN_METADATA if key in before}
    return SetMetadata(Raw(recode({**decode(change.value), **own}))) if own else change


class StateTransactionOperations:
    """Writes to many keys and scopes: collected in a buffer, and committed together by an operation."""

    def __init__(self, operations: StateOperations, guards: tuple[LockGuard, ...]) -> None:
        self._operations, self._guards = operations, guards
        self._buffer = Buffer(operations.limits)
        self._is_rolled_back = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._buffer.batch())} changes>"

    def state(self, scope: Scope | HasScope) -> BufferedScope:
        """Return a scope whose writes land with this transaction.

        - ``scope``: a ``Scope``, or a part of ``well.state``.

        Raise ``InvalidInput`` for anything else.
        """
        return self._buffer.state(scope)

    def rollback(self) -> None:
        """Drop all buffered changes, of which nothing was visible to others. The transaction accepts no commit after this."""
        self._is_rolled_back = True
        self._buffer.drop()

    def _is_open(self) -> bool:
        """Return whether leaving the block has something to commit."""
        return bool(self._buffer.batch()) or not self._is_rolled_back

    def _commit(self) -> Operation[None]:
        if self._is_rolled_back:
            raise InvalidInput("this transaction was rolled back, and nothing of it is written; begin another one")
        yield from self._operations.commit(self._buffer, self._guards)
        self._buffer.drop()
