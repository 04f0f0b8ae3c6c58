"""The store contract: what every place that keeps executions and state must do, in domain words.

A store contains storage, never policy. Times for leases and TTL come from the store's own clock. All verbs block and may be called
from any thread; group commit and the drivers decide who waits (``pipeline``). A call that cannot be served raises
``StoreUnavailable`` or one of its kinds; expected endings are values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from stepwell.model.commit import Head, Loaded, Outcome, StoredCommit, Unit
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import Item, ItemQuery, Lane, QueueSettings, Tier, Workspace
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry
from stepwell.model.snapshot import StoredSnapshot

__all__ = [
    "Capabilities",
    "Durability",
    "ExecutionQuery",
    "ExecutionReads",
    "QueueReads",
    "ScopedStateReads",
    "Store",
    "StoreReads",
]


class Durability(PlainRecord, frozen=True):
    """The failures that an acknowledged commit survives."""

    level: str
    """``full``: power loss; ``normal``: a crash of the process, not of the machine; ``none``: nothing."""
    reason: str
    """The setting that it follows from, in words."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of a store beyond the contract's minimum."""

    is_shared: bool
    """Whether other processes can open the same store."""
    has_blocking_writes: bool
    """Whether a write may wait for a disk or a network, so that an event loop must not make it itself."""
    has_archiving: bool = True
    has_consistent_view: bool = False
    """Whether ``consistent_view`` is of one moment while others write."""


class ExecutionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for executions; everything given must match."""

    workspace_id: str | None = None
    workflow_id: str | None = None
    status: str | None = None
    after: tuple[int, str] | None = None
    """The (created_ms, execution_id) of the last one of the page before."""
    limit: int = 100

    def matches(self, head: Head) -> bool:
        """Return whether an execution matches, and comes after the page before."""
        return (
            self.workspace_id in (None, head.workspace_id)
            and self.workflow_id in (None, head.workflow_id)
            and self.status in (None, head.status)
            and (self.after is None or (head.created_ms, head.execution_id) < self.after)
        )


class ExecutionReads(Protocol):
    """Reads of executions, their commits and their snapshots."""

    def head_digests(self, execution_ids: Sequence[str]) -> list[str | None]:
        """Return the digest of each execution's newest receipt as it is now; None for one that is missing or deleted.

        Every transaction that reads begins with this, so a store should answer it in one round trip and as cheaply as it can.
        """
        ...

    def nudged(self, execution_ids: Sequence[str]) -> list[str]:
        """Return those of these executions that were nudged since they were last claimed or rested, in one question."""
        ...

    def head(self, execution_id: str) -> Head | None:
        """Return the execution's row as it is now; None if there is none or it was deleted."""
        ...

    def load(self, execution_id: str, at: int | None = None, since: int | None = None) -> Loaded | None:
        """Return the head, the newest snapshot not after ``at`` and the commits from there up to ``at``, in one consistent view.

        With ``since``, no snapshot and only the commits after that revision. A missing execution gives None; ``at`` outside the
        retained history gives commits that do not reach it, which the caller finds.
        """
        ...

    def history(self, execution_id: str, after: int, limit: int) -> list[StoredCommit]:
        """Return up to ``limit`` commits with a revision greater than ``after``, in order."""
        ...

    def base(self, execution_id: str) -> StoredSnapshot | None:
        """Return the snapshot that the retained chain starts from, at ``base_revision``; None if it starts with the creation."""
        ...

    def commit_of(self, execution_id: str, commit_id: str) -> StoredCommit | None:
        """Return the commit with this id; None if it did not land.

        Of an archived commit whose id a user chose, the revision is known, and header and body are empty.
        """
        ...

    def find(self, query: ExecutionQuery) -> list[Head]:
        """Return executions in order of creation, newest first."""
        ...


class ScopedStateReads(Protocol):
    """Reads of scoped state."""

    def entries(self, scope: str, keys: Sequence[str]) -> dict[str, StoredEntry]:
        """Return the live entries of these keys; deleted and expired ones are absent."""
        ...

    def scan(self, scope: str, *, prefix: str = "", after: str | None = None, limit: int = 1_000) -> list[tuple[str, StoredEntry]]:
        """Return a page of live entries in order of the keys' UTF-8 bytes, after a key, with a prefix."""
        ...

    def changes(self, scope: str, after: int) -> list[tuple[str, StoredEntry]]:
        """Return the entries with a revision greater than ``after``, tombstones among them, in order of revision."""
        ...

    def totals(self, scope: str) -> ScopeTotals:
        """Return the scope's revision, number of keys and bytes."""
        ...

    def scopes(self, workspace_id: str | None = None) -> Iterator[str]:
        """Return the paths of all scopes that hold anything, of one workspace or of all."""
        ...


class QueueReads(Protocol):
    """Reads of queue items, lanes and settings."""

    def item(self, item_id: str) -> Item | None:
        """Return a queue item as it is now; None if there is none."""
        ...

    def items(self, query: ItemQuery) -> list[Item]:
        """Return queue items, newest first."""
        ...

    def lanes(self, workspace_id: str | None = None) -> list[Lane]:
        """Return the numbers of items that wait and run, by workspace and queue; empty lanes may be left out."""
        ...

    def next_ready_ms(self) -> int | None:
        """Return when the next delayed item becomes ready, by the store's clock; None if no item is delayed.

        The time is in the past if the item has not been claimed since. One look at an index.
        """
        ...

    def has_ready(self) -> bool:
        """Return whether ready items wait, with capacity or without.

        An item is ready from the start, or once a claim has found it ready. One look at an index.
        """
        ...

    def workspaces(self) -> list[Workspace]:
        """Return all workspaces by id. ``default`` is always among them."""
        ...

    def tiers(self) -> list[Tier]:
        """Return all tiers by name; those of ``model.queue_item.TIERS`` are always among them."""
        ...

    def queues(self) -> list[QueueSettings]:
        """Return the queues that were set up, by name."""
        ...


class StoreReads(ExecutionReads, ScopedStateReads, QueueReads, Protocol):
    """All reads of a store."""


class Store(StoreReads, Protocol):
    """Keeps executions with their receipts and snapshots, leases, scoped state and the queue: reads, one write, and a lifecycle."""

    def open(self) -> None:
        """Connect, and bring the schema up to what this code needs, once, under a lock. Called before any other verb.

        Raises ``StoreForeign`` for something that is not a Stepwell store, ``StoreNewer`` for one that newer code wrote, and
        ``StoreUnavailable`` for one that cannot be reached; nothing is written then.
        """
        ...

    def close(self) -> None:
        """Release every resource. A second call does nothing."""
        ...

    def capabilities(self) -> Capabilities:
        """Return the capabilities of this store."""
        ...

    def durability(self) -> Durability:
        """Return the durability of acknowledged commits."""
        ...

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write each unit whole or not at all, all of them in one transaction, and return an outcome for each.

        What holds:

        - One call at a time; group commit sees to that. Units take effect in order.
        - A refused unit never stops the others.
        - Commit: the execution exists, its head is (revision - 1, previous), and its fence is the commit's, if it has one. All is
          checked in the transaction of the write.
        - Commit with a ``creation``: the execution does not exist, not even as a tombstone.
        - State operations go through ``model.scoped_operations.resolve``.
        - Leases: one is granted with a fence higher than any before. A ``LockGuard`` holds if the lock's row still has that fence,
          expired or not.
        - Due: an execution whose creation ``is_runnable`` is due when its ``wake_ms`` has come and its lease is free. That is
          at once, if the creation names no holder; at the lease's end, if its holder dies (a claim or extension moves ``wake_ms``
          there); or at the time that a ``Rest`` names.
        - Nudges: one makes a resting execution due at once. While the lease is held, it makes the next ``Rest`` due at once,
          unless that is final. Ended executions are not nudged.
        - Deletion: the queue item of a deleted execution ends as CANCELLED. Queue units: see ``model.queue_item``.

        What is returned, for each unit:

        - ``Written``, with the answers that its class names.
        - ``Seen`` for a commit id that the execution has already; nothing is written. It is empty if a user chose the id and the
          commit was archived.
        - A refusal as a value: ``Conflict``, ``AlreadyExists``, ``NotFound``, ``LeaseLost``, ``LimitExceeded`` and others.

        What is raised:

        - ``CommitUnknown`` if the transaction may have landed and may not.
        - Any other error means that no unit was written.
        """
        ...

    def now_ms(self) -> int:
        """Return the store's time, in milliseconds since 1970."""
        ...

    def consistent_view(self) -> AbstractContextManager[StoreReads]:
        """Return a context manager of reads which all see what was stored at one moment, whatever is written meanwhile.

        It is for long reads by one thread, such as a backup. A store without ``has_consistent_view`` returns its own reads.
        """
        ...

    def check(self) -> None:
        """Check that the store can be read; raise ``StoreUnavailable`` that names the part that is down."""
        ...

    def listen(self, wake: Callable[[str], None]) -> Callable[[], None]:
        """Call ``wake`` with a topic whenever another process may have written to it; the function that is returned ends it.

        Topics are ``lock`` (one was given back), ``state`` (scoped state changed), ``due`` (an execution came due by a write) and
        ``queue`` (an item became ready, or a slot free); an empty topic means anything. Calls may come from any thread, late,
        twice, or for nothing, and after a lost connection some may be missing: callers look again by themselves from time to time.
        Writes of this process need not be reported.
        """
        ...
