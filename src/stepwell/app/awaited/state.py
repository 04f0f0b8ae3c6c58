"""Scoped state, cached reads, and transactions on executions and on state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from stepwell.duration import Span
from stepwell.model.commit import LockGuard
from stepwell.model.limits import Limits
from stepwell.model.receipt import Receipt
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Entry, StateChange
from stepwell.model.value import Value, decode
from stepwell.pipeline.notifications import STATE, Notifications
from stepwell.pipeline.operations import AsyncDriver
from stepwell.state.executions import CommitTerms, Executions
from stepwell.state.locks import HeldLock, guards_of
from stepwell.state.read_cache import ReadCache
from stepwell.state.scoped_state import ScopeOperations, StateOperations, as_scope, child_scope
from stepwell.state.transaction import StateTransactionOperations, TransactionOperations
from stepwell.state.transaction_buffer import HasScope, scope_of

__all__ = ["AsyncCachedState", "AsyncScopedState", "AsyncState", "AsyncStateTransaction", "AsyncTransaction"]

T = TypeVar("T")
Ttl = Span | None


class AsyncScopedState:
    """State in one scope."""

    def __init__(self, shared: StateOperations, scope: Scope, driver: AsyncDriver, policy: str = "last") -> None:
        self._shared, self._driver, self.scope = shared, driver, scope
        self._do = ScopeOperations(shared, scope, policy)

    def __repr__(self) -> str:
        return f"<AsyncScopedState {self.scope.path!r}>"

    def with_policy(self, policy: str) -> AsyncScopedState:
        """The same scope with another answer to conflicts: ``set`` wins (``last``), is refused with ``Conflict`` if somebody has
        written since this object read the key (``reject``), or merges (``add``, ``max``, ``min``, ``union``)."""
        return AsyncScopedState(self._shared, self.scope, self._driver, policy)

    def cached(self, max_age: Span = 5) -> AsyncCachedState:
        """The same scope for reading, from memory while it is known to be fresh, and never older than ``max_age`` seconds."""
        return AsyncCachedState(self, self._shared.pulse, max_age)

    async def get(self, key: str, default: Value = None) -> Value:
        """The value of a key, or ``default`` if it is not there."""
        return await self._driver.run(self._do.get(key, default))

    async def get_as(self, key: str, kind: type[T]) -> T | None:
        """The value of a key as an instance of ``kind`` (a dataclass, a msgspec or pydantic class), or None."""
        return await self._driver.run(self._do.get_as(key, kind))

    async def set(self, key: str, value: Value, ttl: Ttl = None, sliding: bool = False) -> int:
        """Set a key, for ``ttl`` seconds if given; with ``sliding``, each use starts them anew. The key's new revision."""
        return await self._driver.run(self._do.set(key, value, ttl, sliding))

    async def delete(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return await self._driver.run(self._do.delete(key))

    async def exists(self, key: str) -> bool:
        """Whether the key is there."""
        return await self._driver.run(self._do.exists(key))

    async def keys(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> list[str]:
        """The keys in order, with a prefix; a page of them with ``limit`` and, for the next page, ``after`` the last one."""
        return await self._driver.run(self._do.keys(prefix, after, limit))

    async def all(self, prefix: str = "") -> dict[str, Value]:
        """Every key with its value, in order."""
        return await self._driver.run(self._do.all(prefix))

    async def clear(self) -> int:
        """Remove every key; how many there were."""
        return await self._driver.run(self._do.clear())

    async def get_many(self, keys: Sequence[str]) -> dict[str, Value]:
        """The values of those of the keys that are there."""
        return await self._driver.run(self._do.get_many(keys))

    async def set_many(self, values: Mapping[str, Value], ttl: Ttl = None, sliding: bool = False) -> None:
        """Set several keys, all or none."""
        return await self._driver.run(self._do.set_many(values, ttl, sliding))

    async def delete_many(self, keys: Sequence[str]) -> int:
        """Remove several keys; how many were there."""
        return await self._driver.run(self._do.delete_many(keys))

    async def increment(self, key: str, by: float = 1) -> int | float:
        """Add to a number, which starts at 0; the sum."""
        return await self._driver.run(self._do.increment(key, by))

    async def merge(self, key: str, value: Value, how: str) -> Value:
        """Put a value together with what the key holds: ``add``, ``max``, ``min`` or ``union``. The outcome."""
        return await self._driver.run(self._do.merge(key, value, how))

    async def set_if_absent(self, key: str, value: Value, ttl: Ttl = None, sliding: bool = False) -> bool:
        """Set a key that is not there; whether it was set."""
        return await self._driver.run(self._do.set_if_absent(key, value, ttl, sliding))

    async def entry(self, key: str) -> Entry | None:
        """The value with its revision and end, or None."""
        return await self._driver.run(self._do.entry(key))

    async def compare_and_set(self, key: str, value: Value, *, revision: int, ttl: Ttl = None) -> int:
        """Set a key only if it is at ``revision`` (0: not there), else ``Conflict``. The key's new revision."""
        return await self._driver.run(self._do.compare_and_set(key, value, revision, ttl))

    async def copy(self, key: str, to: str, scope: Scope | HasScope | None = None) -> bool:
        """Copy a key to another name or scope, with its TTL; whether it was there."""
        return await self._driver.run(self._do.copy(key, to, as_scope(scope), move=False))

    async def move(self, key: str, to: str, scope: Scope | HasScope | None = None) -> bool:
        """Move a key to another name or scope, with its TTL; whether it was there."""
        return await self._driver.run(self._do.copy(key, to, as_scope(scope), move=True))

    async def revision(self) -> int:
        """The revision of the newest change in this scope."""
        return await self._driver.run(self._do.revision())

    async def watch(self, since: int | None = None, *, idle_seconds: Span | None = None) -> AsyncIterator[StateChange]:
        """Changes as they happen, after a revision (default: from now); ends after ``idle_seconds`` without one."""
        with self._shared.pulse.listen(STATE) as listening:
            seen = await self.revision() if since is None else since
            while found := await self._driver.run(self._do.next_changes(seen, listening, idle_seconds)):
                for change in found:
                    seen = change.revision
                    yield change

    def workflow(self, name: str) -> AsyncScopedState:
        """The state of a workflow of this workspace."""
        return AsyncScopedState(self._shared, child_scope(self.scope, "workflow", name), self._driver)

    def custom(self, name: str) -> AsyncScopedState:
        """State of this workspace under a name of your own."""
        return AsyncScopedState(self._shared, child_scope(self.scope, "custom", name), self._driver)

    def conversation(self, name: str) -> AsyncScopedState:
        """The state of a conversation of this workspace."""
        return AsyncScopedState(self._shared, child_scope(self.scope, "conversation", name), self._driver)

    def step(self, name: str) -> AsyncScopedState:
        """The state of a step of this workflow."""
        return AsyncScopedState(self._shared, child_scope(self.scope, "step", name), self._driver)


class AsyncState:
    """The door to scoped state: pick a scope, then use it."""

    def __init__(self, operations: StateOperations, driver: AsyncDriver) -> None:
        self._operations, self._driver = operations, driver

    def __repr__(self) -> str:
        return "<AsyncState>"

    @property
    def globals(self) -> AsyncScopedState:
        """State shared by everything in the store."""
        return self.at(Scope.globals())

    def workspace(self, workspace_id: str) -> AsyncScopedState:
        """State of one workspace; its workflows', conversations' and custom scopes are below it."""
        return self.at(Scope.of_workspace(workspace_id))

    def workflow(self, workflow_id: str) -> AsyncScopedState:
        """State of a workflow of the default workspace."""
        return self.at(Scope.of_workflow(workflow_id))

    def conversation(self, conversation_id: str) -> AsyncScopedState:
        """State of a conversation of the default workspace."""
        return self.at(Scope.of_conversation(conversation_id))

    def custom(self, namespace: str) -> AsyncScopedState:
        """State of the default workspace under a name of your own."""
        return self.at(Scope.custom(namespace))

    def at(self, scope: Scope) -> AsyncScopedState:
        """State at any scope."""
        return AsyncScopedState(self._operations, scope_of(scope), self._driver)

    def transaction(self, *, lock: HeldLock | None = None) -> AsyncStateTransaction:
        """Writes to many keys and scopes that land together; under a ``lock``, only if it is still held."""
        return AsyncStateTransaction(self._operations, self._driver, guards_of(lock))

    async def scopes(self, workspace_id: str | None = None) -> list[Scope]:
        """All scopes that hold anything, of one workspace or of all."""
        return await self._driver.run(self._operations.scopes(workspace_id))

    async def sweep(self) -> int:
        """Give back the space of expired keys now; how many there were. It also happens by itself."""
        return await self._driver.run(self._operations.sweep())


class AsyncCachedState(ReadCache):
    """One scope, read from memory where that is fresh."""

    def __init__(self, state: AsyncScopedState, pulse: Notifications, max_age: Span) -> None:
        super().__init__(pulse, max_age)
        self._state = state

    async def get(self, key: str, default: Value = None) -> Value:
        """The value of a key, or ``default`` if it is not there; at most ``max_age`` seconds old."""
        found = self._find(key)
        if found is not None:
            return default if found[2] is None else decode(found[2])
        asked = self._ask()
        entry = await self._state.entry(key)
        self._keep(key, asked, entry)
        return default if entry is None else entry.value


class AsyncTransaction(TransactionOperations):
    """An atomic batch of changes to one execution. ``async with`` commits on leaving, or rolls back on an exception."""

    def __init__(self, executions: Executions, execution_id: str, terms: CommitTerms, limits: Limits, driver: AsyncDriver) -> None:
        super().__init__(executions, execution_id, terms, limits)
        self._driver = driver

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


class AsyncStateTransaction(StateTransactionOperations):
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
