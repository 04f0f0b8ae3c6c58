"""Queue items, workspaces, tiers and lanes: what waits for capacity, who owns it, and how much each may have.

An item's life: QUEUED (waiting for its time and for capacity) -> CLAIMED (a dispatcher has it, under a lease with a fence) ->
DISPATCHED (its execution exists) -> COMPLETED, FAILED or CANCELLED. A workspace's *used* slots are its CLAIMED and DISPATCHED
items, counted from the rows whenever they are needed.

An execution that is started without waiting takes its slot by an item, too: the commit that creates it adds the item as DISPATCHED
(``NewItem.is_started``), or is refused. So every root execution of a workspace is counted, however it began, and by the same rows.

Fairness is by start tags. A workspace has a *pass*: the tag of the next item that it may start. The n-th item that a claim would
take from it has the tag ``max(pass, virtual time) + (n - 1) / weight``, where the *virtual time* is the greatest tag that any claim
has taken. A claim takes the smallest tags first, of equal ones the item that came first; afterwards the workspace's pass is its
last tag + 1 / weight. A workspace that was empty or full saves up no claims, since it continues at the virtual time.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from stepwell.errors import InvalidInput, StepwellError
from stepwell.model.ids import check_key
from stepwell.model.plain_data import PlainRecord

__all__ = [
    "ACTIVE",
    "DEFAULT_QUEUE",
    "QUOTAS",
    "SIZE_LIMITS",
    "STARTED_QUEUE",
    "STATE_LIMITS",
    "TIERS",
    "TIER_LIMITS",
    "CancelItem",
    "ClaimItems",
    "Claimed",
    "DropItems",
    "Enqueue",
    "Enqueued",
    "Item",
    "ItemMark",
    "ItemQuery",
    "ItemStatus",
    "Lane",
    "NewItem",
    "Override",
    "PutQueue",
    "PutTier",
    "PutWorkspace",
    "QueueSettings",
    "RecoverItems",
    "Redrive",
    "ReturnItem",
    "Tier",
    "Workspace",
    "limits_by_workspace",
    "tier_at",
    "workflow_and_engine",
    "workflow_for",
]

DEFAULT_QUEUE = "default"

STARTED_QUEUE = "$started"
"""The queue of executions that were started without waiting; they wait in it only when they are retried. Every worker serves it.
No user's queue has a name that begins with $."""


class ItemStatus(StrEnum):
    """The status of a queue item."""

    QUEUED = "QUEUED"
    CLAIMED = "CLAIMED"
    DISPATCHED = "DISPATCHED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


ACTIVE = frozenset((ItemStatus.CLAIMED, ItemStatus.DISPATCHED))
"""The statuses that use a slot of the workspace."""


_MARKS = frozenset(ItemStatus) - {ItemStatus.CLAIMED}


SIZE_LIMITS = ("state_bytes", "workflow_state_bytes")
"""The limits of a tier that are numbers of bytes."""

QUOTAS = ("state_keys", "workflow_state_bytes", "workflow_state_keys")
"""The limits of a tier that stores keep in one document, so that another one needs no change of the schema."""

STATE_LIMITS = ("state_bytes", *QUOTAS)
"""The limits of a tier on scoped state; see ``model.state_quota``."""


class Tier(PlainRecord, frozen=True, kw_only=True):
    """A named set of limits; None: no limit."""

    name: str
    """In small letters."""
    concurrency: int | None = None
    """How many executions of a workspace may run at once."""
    weight: float = 1.0
    """Its share of the starts when workspaces compete."""
    rate_per_second: float | None = None
    """How many executions of a workspace may start per second.

    A second's worth may start at once, so in any t seconds no more than rate * (t + 1) start. With a rate below one, single
    executions start, one interval apart.
    """
    queue_depth: int | None = None
    """How many QUEUED items a workspace may have."""
    state_bytes: int | None = None
    """How much scoped state a workspace may hold, in bytes of keys and values; see ``model.state_quota``."""
    retention_seconds: float | None = 7 * 24 * 3600.0
    """How long ended items stay."""
    child_concurrency: int | None = 100
    """How many children may run at once below one root; a parent lends its place to its first child."""
    state_keys: int | None = None
    """How many keys of scoped state a workspace may have."""
    workflow_state_bytes: int | None = None
    """How much scoped state each workflow may hold in a workspace: in its scope and those of its steps."""
    workflow_state_keys: int | None = None
    """How many keys of scoped state each workflow may have in a workspace."""

    def __post_init__(self) -> None:
        check_key(self.name, "a tier's name")
        if self.name != self.name.lower():
            raise InvalidInput(f"a tier's name is in small letters: {self.name.lower()!r}, not {self.name!r}")
        for what in ("concurrency", "queue_depth", "state_bytes", "child_concurrency", *QUOTAS):
            _at_least(getattr(self, what), what == "child_concurrency", f"{what} of tier {self.name!r}", (int,))
        _at_least(self.retention_seconds, 0, f"retention_seconds of tier {self.name!r}", (int, float))
        _check_rate(self.rate_per_second, f"tier {self.name!r}")
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0.001 <= self.weight <= 1_000_000:
            raise InvalidInput(f"weight of tier {self.name!r} is a number from 0.001 to 1,000,000, not {self.weight!r}")


def _at_least(value: object, least: float, what: str, kinds: tuple[type, ...]) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= 2**53:  # pyright: ignore[reportOperatorIssue]
        raise InvalidInput(f"{what} is a number from {least:g} on, or None for no limit, not {value!r}")


_LEAST_RATE = 3e-8
"""The lowest rate: one start a year. With much less, a store could not represent the time of the next start."""


def _check_rate(rate: float | None, whose: str) -> None:
    _at_least(rate, 0, f"rate_per_second of {whose}", (int, float))
    if rate is not None and 0 < rate < _LEAST_RATE:
        raise InvalidInput(f"rate_per_second of {whose} is a number from {_LEAST_RATE:g} on, or 0 for no starts, not {rate!r}")


TIERS = (
    Tier(name="free", concurrency=1, weight=1, queue_depth=1_000),
    Tier(name="startup", concurrency=3, weight=3, queue_depth=10_000),
    Tier(name="scale", concurrency=5, weight=5, queue_depth=100_000),
    Tier(name="enterprise", concurrency=10, weight=10),
    Tier(name="unlimited", child_concurrency=None),
)
"""The tiers of a new store. The workspace ``default`` has ``unlimited``."""


class Override(PlainRecord, frozen=True, kw_only=True):
    """Another value for one limit of a workspace's tier, until a time of the store's clock."""

    value: int | float | None
    """None: no limit."""
    until_ms: int
    reason: str = ""
    since_ms: int = 0


class Workspace(PlainRecord, frozen=True, kw_only=True):
    """A tenant and its tier."""

    workspace_id: str
    tier: str
    is_paused: bool = False
    """Whether its items wait even if there is capacity."""
    created_ms: int = 0
    overrides: dict[str, Override] = msgspec.field(default_factory=dict)
    """By the name of a tier's limit. An expired override has no effect, even while it is listed here."""


TIER_LIMITS = tuple(name for name in Tier.__struct_fields__ if name != "name")
"""The limits that a tier has, and a workspace may override."""


def tier_at(tier: Tier, workspace: Workspace, now_ms: int) -> Tier:
    """Return the limits of a workspace now: those of its tier, with its overrides that have not ended."""
    live = {name: each.value for name, each in workspace.overrides.items() if each.until_ms > now_ms}
    return msgspec.structs.replace(tier, **live) if live else tier


def limits_by_workspace(workspaces: Iterable[Workspace], tiers: Iterable[Tier], now_ms: int) -> dict[str, Tier]:
    """Return the limits of each workspace now."""
    by_name = {tier.name: tier for tier in tiers}
    return {each.workspace_id: tier_at(by_name[each.tier], each, now_ms) for each in workspaces}


class QueueSettings(PlainRecord, frozen=True, kw_only=True):
    """The settings of a named queue; these defaults hold for a queue that was never set up."""

    name: str
    is_paused: bool = False
    concurrency: int | None = None
    """How many of its items may be active at once, over all workspaces."""
    rate_per_second: float | None = None

    def __post_init__(self) -> None:
        _at_least(self.concurrency, 0, f"concurrency of queue {self.name!r}", (int,))
        _check_rate(self.rate_per_second, f"queue {self.name!r}")


class NewItem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A checked request for an execution, ready to be stored."""

    item_id: str
    workspace_id: str
    workflow_id: str
    version: int
    execution_id: str
    """Fixed here, so that there is one execution, no matter how often and by which worker the item is dispatched."""
    input: bytes
    """The trigger with its input, as the first commit records it (``model.record.encode_trigger``)."""
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    """Higher first."""
    delay_ms: int = 0
    """A delay by the store's clock from the moment when the item lands; ``run_at_ms`` takes precedence."""
    run_at_ms: int | None = None
    key: str | None = None
    """Idempotency key, unique in the workspace while the item exists. The same key with the same body returns the existing
    item."""
    body_digest: str = ""
    """Digest of workflow, input and options, which are the body of a request."""
    singleton: str | None = None
    """Singleton name: while an item of the workspace with this name is QUEUED, CLAIMED or DISPATCHED, that item is the
    answer."""
    debounce: str | None = None
    """Debounce name: a QUEUED item of the workspace with this name gets this workflow, input and time; no second item is
    made."""
    max_attempts: int = 3
    is_started: bool = False
    """Whether the commit that carries it creates its execution now: the item is DISPATCHED from the start. Refused with
    ``LimitExceeded`` (limit ``concurrency``) while the workspace is paused or has no free slot; the depth does not matter."""


class Item(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A queue item as it is stored."""

    item_id: str
    number: int
    """Rises with every item: first in, first out."""
    workspace_id: str
    workflow_id: str
    version: int
    execution_id: str
    input: bytes
    queue: str
    status: ItemStatus
    priority: int
    enqueued_ms: int
    run_at_ms: int
    key: str | None = None
    body_digest: str = ""
    singleton: str | None = None
    debounce: str | None = None
    attempts: int = 0
    max_attempts: int = 3
    holder: str | None = None
    fence: int = 0
    lease_until_ms: int | None = None
    claimed_ms: int | None = None
    dispatched_ms: int | None = None
    finished_ms: int | None = None
    error: str | None = None
    """The error of the last attempt."""


# Units of writing, for ``Store.write``.


class Enqueue(msgspec.Struct, frozen=True, gc=False):
    """Add items. The answers are one ``Enqueued`` or one error for each item, in order; one that is refused stops no other.

    An existing item is returned instead of a new one: found by its id (a retry after a lost reply), then by key, by singleton,
    and by debounce name. Refusals: ``NotFound`` for a workspace that was never put, ``LimitExceeded`` (limit ``queue_depth``)
    for a full one, ``Conflict`` for an id or a key that another body has.
    """

    items: tuple[NewItem, ...]


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The item of a request: a new one, or one that existed."""

    item_id: str
    execution_id: str
    status: str
    is_new: bool
    """False if it existed before, by its key, singleton or debounce name."""


class ClaimItems(msgspec.Struct, frozen=True, gc=False):
    """Take items that are ready and have capacity, fairly; the answers are ``Claimed``, in the order in which to start them.

    Under the lock of each workspace that it takes from: free slots are ``concurrency`` less the CLAIMED and DISPATCHED rows of the
    workspace, no more than its rate allows; inside a lane by priority (higher first), then number; between lanes by start tag (see
    this module). Workspaces that another claimer has locked are passed over, not waited for. Paused workspaces and queues give
    nothing. An attempt is counted with the claim.
    """

    holder: str
    seconds: float
    limit: int
    queues: tuple[str, ...] = ()
    """Empty: all."""
    workflows: tuple[str, ...] = ()
    """Empty: all; else only items of these, and others do not stand in their way."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A claimed item, with all that is needed to start it."""

    item_id: str
    workspace_id: str
    workflow_id: str
    version: int
    execution_id: str
    input: bytes
    fence: int
    attempts: int
    until_ms: int
    queue: str = DEFAULT_QUEUE
    enqueued_ms: int = 0
    input_error: StepwellError | None = None
    """Why the input cannot be opened. The claim is valid, so that one such item delays no other."""

    def given(self) -> bytes:
        """Return the input. Raise ``ValueErased``, ``Corrupted`` or ``EncryptionKeyMissing`` if it cannot be opened."""
        if self.input_error is not None:
            raise self.input_error
        return self.input


class ItemMark(msgspec.Struct, frozen=True, gc=False):
    """Move an item on: rides with the commit that makes it true (``Commit.mark``), or is a unit of its own.

    With a fence: the item is CLAIMED with that fence (or DISPATCHED already by it), else ``LeaseLost`` and nothing of the commit
    lands. Without one: an item that has not ended moves, one that has ended stays as it is, silently: the first end wins. A mark
    that rides with a commit moves only the item of that execution: an item that was driven again has another one, and what becomes
    of the old one does not matter to it.

    QUEUED sends an item that is FAILED or CANCELLED back into the queue, for the same execution, with no attempts used. It gives
    up its debounce name, since it runs with the input that it has, and has no fence, since it is not claimed. ``Conflict``, and
    nothing of the commit lands, if the item is neither, is there no more or has another execution by now, and while another item
    of its singleton name has not ended.
    """

    item_id: str
    status: str
    """DISPATCHED, COMPLETED, FAILED, CANCELLED or QUEUED."""
    fence: int | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.status not in _MARKS:
            raise InvalidInput(f"an item is marked as one of {', '.join(sorted(_MARKS))}, not {self.status!r}")
        if self.status == ItemStatus.QUEUED and self.fence is not None:
            raise InvalidInput("an item that waits again has no claim: mark it without a fence")


class ReturnItem(msgspec.Struct, frozen=True, gc=False):
    """Give a claimed item back. ``LeaseLost`` if the fence is not the present one.

    With an ``error`` the attempt is used up: QUEUED again after ``delay_ms``, or FAILED with the error if it was the last. Without
    one the attempt is given back, too, and so is the start that the claim has counted: to the rates of workspace and queue, as they
    are now (``claiming.earlier_rate_ms``). The answer is its ``Item`` afterwards.
    """

    item_id: str
    fence: int
    error: str | None = None
    delay_ms: int = 0
    is_final: bool = False
    """FAILED at once, even if attempts are left."""


class CancelItem(msgspec.Struct, frozen=True, gc=False):
    """Cancel an item that is QUEUED or CLAIMED: CANCELLED, and its claim is worth nothing any more.

    The answer is its ``Item`` afterwards: one that is DISPATCHED is unchanged, since its execution must be cancelled instead.
    ``NotFound`` if there is none.
    """

    item_id: str


class Redrive(msgspec.Struct, frozen=True, gc=False):
    """Make a FAILED or CANCELLED item QUEUED again, with no attempts used and a new execution; the answer is its ``Item``.

    ``Conflict`` for any other, and while another item of its singleton name has not ended; ``NotFound`` if there is none.
    """

    item_id: str
    execution_id: str


class RecoverItems(msgspec.Struct, frozen=True, gc=False):
    """Return items whose claim has expired: QUEUED again, or FAILED if that was their last attempt. The answer is their ids."""

    limit: int = 1_000
    """At most so many items are returned. If it was as many, there may be more."""


class DropItems(msgspec.Struct, frozen=True, gc=False):
    """Drop items of some workspaces that ended with one of these statuses, at least so long ago. The answer is how many."""

    workspaces: tuple[str, ...]
    statuses: tuple[str, ...]
    """Of COMPLETED, FAILED and CANCELLED."""
    seconds: float
    limit: int = 1_000
    """At most so many items are dropped. If it was as many, there may be more."""


class PutTier(msgspec.Struct, frozen=True, gc=False):
    """Create or change a tier, effective at once for all its workspaces.

    ``based_on``, here and in the next two, is the value from which the change was computed, None for none: ``Conflict`` if the
    stored value is another one by now. Without it, the stored value is overwritten.
    """

    tier: Tier
    based_on: Tier | msgspec.UnsetType | None = msgspec.UNSET


class PutWorkspace(msgspec.Struct, frozen=True, gc=False):
    """Create or change a workspace; its creation time stays. ``NotFound`` for an unknown tier."""

    workspace: Workspace
    based_on: Workspace | msgspec.UnsetType | None = msgspec.UNSET


class PutQueue(msgspec.Struct, frozen=True, gc=False):
    """Set up a named queue."""

    settings: QueueSettings
    based_on: QueueSettings | msgspec.UnsetType | None = msgspec.UNSET


# Reading.


class ItemQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for queue items, newest first; everything given must match."""

    workspace_id: str | None = None
    queue: str | None = None
    status: str | None = None
    workflow_id: str | None = None
    before: int | None = None
    """The number of the last item of the previous page."""
    limit: int = 100


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a workspace in one queue, counted now."""

    workspace_id: str
    queue: str
    ready: int
    """QUEUED, and its time has come."""
    delayed: int
    """QUEUED, for later."""
    claimed: int
    dispatched: int
    oldest_ready_ms: int | None = None
    """When the ready item that waits longest became ready."""
    waits_ms: tuple[int, ...] = ()
    """How long the latest started items had been ready, up to 1,000, ascending."""


def workflow_for(workflow_id: str, engine: str | None) -> str:
    """Return the name under which an item of a workflow is claimed: with another engine's name before it, only for that engine."""
    return workflow_id if engine is None else f"{engine}:{workflow_id}"


def workflow_and_engine(name: str, engine: str) -> tuple[str, str | None]:
    """Return the workflow that an item names, and the engine if it is for this one."""
    prefix = f"{engine}:"
    return (name.removeprefix(prefix), engine) if name.startswith(prefix) else (name, None)
