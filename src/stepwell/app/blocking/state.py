# Generated from app/awaited/state.py by `make blocking`. Do not edit: change that module and generate again.
"""Scoped state, cached reads, and transactions on executions and on state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

from stepwell.duration import Span
from stepwell.model.commit import LockGuard
from stepwell.model.ids import Id, id_text
from stepwell.model.limits import Limits
from stepwell.model.receipt import Receipt
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import Entry, StateChange
from stepwell.model.value import Value, decode
from stepwell.pipeline.notifications import STATE
from stepwell.pipeline.operations import Driver
from stepwell.state.executions import CommitTerms, Executions
from stepwell.state.locks import HeldLock, guards_of
from stepwell.state.read_cache import ReadCache
from stepwell.state.scoped_state import ScopeOperations, StateOperations, as_scope, child_scope
from stepwell.state.transaction import StateTransactionOperations, TransactionOperations
from stepwell.state.transaction_buffer import HasScope, scope_of

__all__ = ["CachedState", "ScopedState", "State", "StateTransaction", "Transaction"]

T = TypeVar("T")
D = TypeVar("D")
Ttl = Span | None


class ScopedState:
    """The keys and values of one scope.

    A key is a non-empty text of at most 512 bytes. Every write may raise ``LimitExceeded`` for the limits of a scope or the
    ``state_bytes`` of the workspace's tier.

    Example:

        acme = well.state.workspace("acme")
        acme.set("plan", {"seats": 5}, ttl="24h")
        print(acme.get("plan"))
    """

    def __init__(self, shared: StateOperations, scope: Scope, driver: Driver, policy: str = "last") -> None:
        self._shared, self._driver, self.scope = shared, driver, scope
        self._do = ScopeOperations(shared, scope, policy)

    def __repr__(self) -> str:
        return f"<ScopedState {self.scope.path!r}>"

    def with_policy(self, policy: str) -> ScopedState:
        """Return the same scope with another rule for ``set`` when another writer was first.

        - ``policy``: ``last`` overwrites. ``reject`` raises ``Conflict`` unless this object has read or written the newest
          value. ``add``, ``max``, ``min`` and ``union`` merge.
        """
        return ScopedState(self._shared, self.scope, self._driver, policy)

    def cached(self, max_age: Span = 5) -> CachedState:
        """Return a reader of this scope that answers from memory while the value is known to be fresh.

        - ``max_age``: a value is never older than this. A key with a TTL is answered no longer than it lives.
        """
        return CachedState(self._shared, self._do, self._driver, max_age)

    @overload
    def get(self, key: str, default: Value = None) -> Value: ...
    @overload
    def get(self, key: str, default: None = None, *, type: type[T]) -> T | None: ...
    @overload
    def get(self, key: str, default: D, *, type: type[T]) -> T | D: ...
    def get(self, key: str, default: Any = None, *, type: Any = None) -> Any:
        """Return the value of a key, or ``default`` if the key is absent. A read restarts a sliding TTL.

        - ``key``: the key.
        - ``default``: what to return for an absent key.
        - ``type``: return the value as an instance of this dataclass, msgspec, attrs or pydantic class; ``default`` is returned
          as it is.

        Raise ``InvalidInput`` if the value does not fit the class.

        Example:

            plan = well.state.workspace("acme").get("plan", type=Plan)
        """
        return self._driver.run(self._do.get(key, default, type))

    def set(self, key: str, value: Value, ttl: Ttl = None, sliding: bool = False) -> int:
        """Set a key, and return its new revision.

        - ``key``: the key.
        - ``value``: None, a bool, number or text, or a list or dict of these.
        - ``ttl``: after this time the key is gone; None keeps it for ever.
        - ``sliding``: every use starts the ``ttl`` anew.

        Raise ``Conflict`` if another writer was first (policy ``reject``), ``InvalidInput`` for a ``ttl`` (merging policies).
        """
        return self._driver.run(self._do.set(key, value, ttl, sliding))

    def delete(self, key: str, *, revision: int | None = None) -> bool:
        """Delete a key; return whether it existed.

        - ``key``: the key.
        - ``revision``: delete it only at this revision, else raise ``Conflict``; None: at any.
        """
        return self._driver.run(self._do.delete(key, revision))

    def hold_data_of(self, subject: Id) -> None:
        """Say whose data this scope holds, such as ``"user:42"``, for ``well.find`` and ``well.erase``.

        What it has already is encrypted anew, under the key of the subject. The well needs ``encryption``.

        - ``subject``: the person or thing.

        Raise ``Conflict`` if it holds the data of another subject, and ``InvalidInput`` in a well without keys.
        """
        return self._driver.run(self._shared.subjects.bind(self.scope, id_text(subject)))

    def exists(self, key: str) -> bool:
        """Return whether a key exists. This does not restart a sliding TTL.

        - ``key``: the key.
        """
        return self._driver.run(self._do.exists(key))

    def keys(self, prefix: str = "", *, after: str | None = None, limit: int | None = None) -> list[str]:
        """Return the keys of the scope, sorted by code point.

        - ``prefix``: only keys that begin with this.
        - ``after``: the last key of the page before; None for the first page.
        - ``limit``: the size of a page; None for all keys.
        """
        return self._driver.run(self._do.keys(prefix, after, limit))

    def all(self, prefix: str = "") -> dict[str, Value]:
        """Return every key with its value, sorted by key.

        - ``prefix``: only keys that begin with this.
        """
        return self._driver.run(self._do.all(prefix))

    def clear(self) -> int:
        """Delete every key of the scope; return how many there were, without expired ones."""
        return self._driver.run(self._do.clear())

    def get_many(self, keys: Sequence[str]) -> dict[str, Value]:
        """Return the values of several keys at one moment; absent keys are left out.

        - ``keys``: the keys.
        """
        return self._driver.run(self._do.get_many(keys))

    def set_many(self, values: Mapping[str, Value], ttl: Ttl = None, sliding: bool = False) -> None:
        """Set several keys, all or none.

        - ``values``: the new values by key.
        - ``ttl``: after this time the key is gone; None keeps it for ever.
        - ``sliding``: every use starts the ``ttl`` anew.
        """
        return self._driver.run(self._do.set_many(values, ttl, sliding))

    def delete_many(self, keys: Sequence[str]) -> int:
        """Delete several keys in one write; return how many existed.

        - ``keys``: the keys.
        """
        return self._driver.run(self._do.delete_many(keys))

    def increment(self, key: str, by: float = 1) -> int | float:
        """Add to a number atomically, and return the sum. An absent key counts as 0. The TTL stays.

        - ``key``: the key.
        - ``by``: what to add; a negative number subtracts.

        Raise ``InvalidInput`` if the value is not a number, or the sum does not fit 64 bits.
        """
        return self._driver.run(self._do.increment(key, by))

    def merge(self, key: str, value: Value, how: str) -> Value:
        """Merge a value into the value of a key, and return the result.

        - ``key``: the key.
        - ``value``: the value to merge into it.
        - ``how``: ``add``, ``max`` or ``min`` of numbers, or ``union`` of lists.

        Raise ``InvalidInput`` if the two cannot be merged.
        """
        return self._driver.run(self._do.merge(key, value, how))

    def set_if_absent(self, key: str, value: Value, ttl: Ttl = None, sliding: bool = False) -> bool:
        """Set a key unless it exists; return whether it was set.

        - ``key``: the key.
        - ``value``: the value to set.
        - ``ttl``: after this time the key is gone; None keeps it for ever.
        - ``sliding``: every use starts the ``ttl`` anew.
        """
        return self._driver.run(self._do.set_if_absent(key, value, ttl, sliding))

    def entry(self, key: str) -> Entry | None:
        """Return a key's ``Entry``, its value with its revision and expiry, or None if the key is absent.

        - ``key``: the key.
        """
        return self._driver.run(self._do.entry(key))

    def compare_and_set(self, key: str, value: Value, *, revision: int, ttl: Ttl = None) -> int:
        """Set a key that is at a revision, and return its new revision.

        - ``key``: the key.
        - ``value``: the new value.
        - ``revision``: the revision that ``entry`` or ``set`` gave; 0 if the key must be absent.
        - ``ttl``: after this time the key is gone; None keeps it for ever.

        Raise ``Conflict`` if the key is at another revision; nothing was written.

        Example:

            found = state.entry("stock")
            state.compare_and_set("stock", found.value - 1, revision=found.revision)
        """
        return self._driver.run(self._do.compare_and_set(key, value, revision, ttl))

    def copy(self, key: str, to: str, scope: Scope | HasScope | None = None) -> bool:
        """Copy a key with its TTL, and return whether it existed.

        - ``key``: the key.
        - ``to``: the name of the copy.
        - ``scope``: the scope of the copy, a ``Scope`` or a part of ``well.state``; None for this one.
        """
        return self._driver.run(self._do.copy(key, to, as_scope(scope), move=False))

    def move(self, key: str, to: str, scope: Scope | HasScope | None = None) -> bool:
        """Move a key with its TTL, and return whether it existed.

        - ``key``: the key.
        - ``to``: its new name.
        - ``scope``: its new scope, a ``Scope`` or a part of ``well.state``; None for this one.
        """
        return self._driver.run(self._do.copy(key, to, as_scope(scope), move=True))

    def revision(self) -> int:
        """Return the revision of the newest change in this scope."""
        return self._driver.run(self._do.revision())

    def watch(self, since: int | None = None, *, idle_seconds: Span | None = None) -> Iterator[StateChange]:
        """Yield changes in this scope as they happen.

        - ``since``: start after this revision; None for changes from now on.
        - ``idle_seconds``: end after this time without a change; None never ends.

        Example:

            for change in state.watch():
                print(change.key, change.value)
        """
        with self._shared.notifications.listen(STATE) as listening:
            seen = self.revision() if since is None else since
            while found := self._driver.run(self._do.next_changes(seen, listening, idle_seconds)):
                for change in found:
                    seen = change.revision
                    yield change

    def workflow(self, name: Id) -> ScopedState:
        """Return the state of a workflow of this workspace.

        - ``name``: the workflow's name.

        Raise ``InvalidInput`` unless this is a workspace.
        """
        return ScopedState(self._shared, child_scope(self.scope, "workflow", id_text(name)), self._driver)

    def custom(self, name: Id) -> ScopedState:
        """Return state of this workspace under a name of your own.

        - ``name``: the name.

        Raise ``InvalidInput`` unless this is a workspace.
        """
        return ScopedState(self._shared, child_scope(self.scope, "custom", id_text(name)), self._driver)

    def conversation(self, name: Id) -> ScopedState:
        """Return the state of a conversation of this workspace.

        - ``name``: the conversation's id.

        Raise ``InvalidInput`` unless this is a workspace.
        """
        return ScopedState(self._shared, child_scope(self.scope, "conversation", id_text(name)), self._driver)

    def step(self, name: Id) -> ScopedState:
        """Return the state of a step of this workflow.

        - ``name``: the step's name.

        Raise ``InvalidInput`` unless this is a workflow.
        """
        return ScopedState(self._shared, child_scope(self.scope, "step", id_text(name)), self._driver)


class State:
    """The scopes of a store's state: ``well.state``. Pick a scope, then use it."""

    def __init__(self, operations: StateOperations, driver: Driver) -> None:
        self._operations, self._driver = operations, driver

    def __repr__(self) -> str:
        return "<State>"

    @property
    def globals(self) -> ScopedState:
        """Return the state of the whole store."""
        return self.at(Scope.globals())

    def workspace(self, workspace_id: Id) -> ScopedState:
        """Return the state of a workspace. The scopes of its workflows, conversations and custom names are reached through it.

        - ``workspace_id``: the workspace.
        """
        workspace_id = id_text(workspace_id)
        return self.at(Scope.of_workspace(workspace_id))

    def workflow(self, workflow_id: Id) -> ScopedState:
        """Return the state of a workflow of the workspace ``default``.

        - ``workflow_id``: the workflow's name.
        """
        workflow_id = id_text(workflow_id)
        return self.at(Scope.of_workflow(workflow_id))

    def conversation(self, conversation_id: Id) -> ScopedState:
        """Return the state of a conversation of the workspace ``default``.

        - ``conversation_id``: the conversation.
        """
        conversation_id = id_text(conversation_id)
        return self.at(Scope.of_conversation(conversation_id))

    def custom(self, namespace: Id) -> ScopedState:
        """Return state of the workspace ``default`` under a name of your own.

        - ``namespace``: the name.
        """
        namespace = id_text(namespace)
        return self.at(Scope.custom(namespace))

    def at(self, scope: Scope) -> ScopedState:
        """Return the state at any ``Scope``.

        - ``scope``: the scope.

        Raise ``InvalidInput`` for anything else.
        """
        return ScopedState(self._operations, scope_of(scope), self._driver)

    def transaction(self, *, lock: HeldLock | None = None) -> StateTransaction:
        """Return writes to many keys and scopes that land together. Leaving its block commits, or rolls back on an exception.

        - ``lock``: what acquiring a lock gave; the commit lands only if that is still held, else it raises ``LeaseLost``.

        Example:

            with well.state.transaction() as tx:
                tx.state(well.state.globals).increment("orders")
                tx.state(well.state.workspace("acme")).set("last", "order-7")
        """
        return StateTransaction(self._operations, self._driver, guards_of(lock))

    def scopes(self, workspace_id: Id | None = None) -> list[Scope]:
        """Return all scopes that hold a key.

        - ``workspace_id``: only scopes of this workspace; None for the whole store.
        """
        workspace_id = id_text(workspace_id)
        return self._driver.run(self._operations.scopes(workspace_id))

    def sweep(self) -> int:
        """Free the space of expired keys now; return how many there were. Workers do it regularly."""
        return self._driver.run(self._operations.sweep())


class CachedState(ReadCache):
    """One scope, read from memory while it is fresh. ``close`` stops caching."""

    def __init__(self, shared: StateOperations, operations: ScopeOperations, driver: Driver, max_age: Span) -> None:
        super().__init__(shared.notifications, max_age, shared.clock.ahead_ms)
        self._do, self._driver = operations, driver

    def get(self, key: str, default: Value = None) -> Value:
        """Return the value of a key, or ``default`` if the key is absent. It is at most ``max_age`` old.

        - ``key``: the key.
        - ``default``: what to return for an absent key.
        """
        found = self._find(key)
        if found is not None:
            return default if found[2] is None else decode(found[2])
        asked = self._ask()
        entry, lifetime = self._driver.run(self._do.entry_to_cache(key))
        self._keep(key, asked, entry, lifetime)
        return default if entry is None else entry.value


class Transaction(TransactionOperations):
    """An atomic batch of changes to one execution. ``with`` commits on leaving, or rolls back on an exception.

    Values are copied at each call, and nothing is visible to others before the commit. Use it from one thread or task.
    """

    def __init__(self, executions: Executions, execution_id: str, terms: CommitTerms, limits: Limits, driver: Driver) -> None:
        super().__init__(executions, execution_id, terms, limits)
        self._driver = driver

    def commit(self) -> Receipt:
        """Validate, store and apply all buffered changes as one commit, and return its receipt.

        Raise ``ValidationFailed`` (or a kind of it) with every fault of the batch, ``Conflict`` if another writer was first,
        ``LeaseLost`` if its lock or fence is no longer held, ``ReceiptArchived`` if a commit with its id landed earlier and
        was archived, ``InvalidInput`` if it was committed or rolled back before, and ``NotFound``. Nothing was written then. After
        ``CommitUnknown`` it may be committed again: it lands once.
        """
        return self._driver.run(self._commit())

    def begin(self) -> Transaction:
        """Fix the revision that the commit must follow, the newest now, and return the transaction.

        Entering the block does it, too. Without either, the commit follows the revision that is the newest then.

        Raise ``NotFound`` if there is no such execution.
        """
        if self._session is None:
            self._driver.run(self._begin())
        return self

    # Not by way of begin() and commit(): each coroutine in between is resumed again at every wait.

    def __enter__(self) -> Transaction:
        if self._session is None:
            self._driver.run(self._begin())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.rollback()
        elif self._is_open():
            self._driver.run(self._commit())


class StateTransaction(StateTransactionOperations):
    """Writes to many keys and scopes, all or none. ``with`` commits on leaving, or rolls back on an exception."""

    def __init__(self, operations: StateOperations, driver: Driver, guards: tuple[LockGuard, ...] = ()) -> None:
        super().__init__(operations, guards)
        self._driver = driver

    def commit(self) -> None:
        """Write all buffered changes together.

        Raise ``ValidationFailed`` with every fault, ``Conflict`` if a condition on a key does not hold, ``LeaseLost``, and
        ``InvalidInput`` if it was rolled back before; nothing was written then.
        """
        self._driver.run(self._commit())

    def __enter__(self) -> StateTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.rollback()
        elif self._is_open():
            self.commit()
