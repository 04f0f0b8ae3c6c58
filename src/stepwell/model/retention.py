"""Retention as values and pure rules: policies, what is due under them, and the records of what was removed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

import msgspec

from stepwell.clock import from_ms
from stepwell.errors import ExecutionRemoved, InvalidInput, NotFound
from stepwell.model.commit import Head
from stepwell.model.execution_state import ONLY, State
from stepwell.model.ids import check_key
from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_item import Tier
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.status import FINAL

__all__ = [
    "BY_REQUEST",
    "EVERY_TIER",
    "Due",
    "Removal",
    "RetentionAction",
    "RetentionPolicy",
    "Tombstone",
    "check_has_payloads",
    "decode_tombstone",
    "dues_of",
    "encode_removal",
    "encode_tombstone",
    "item_seconds",
    "items_that_end",
    "no_tombstone",
    "removal_of",
    "removed_error",
    "rule_text",
    "tombstone_path",
]

EVERY_TIER = "*"
"""The name of the policy for every tier that has none of its own, and for executions of workspaces that were never put."""

ENDED_ITEMS = ("COMPLETED", "FAILED", "CANCELLED")
"""The statuses of items that have ended."""

_LONGEST_ARCHIVE = 4_096
_ROTATION_SHARE, _LEAST_ROTATION = 10, 100


class RetentionPolicy(PlainRecord, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The retention of the workspaces of a tier. Records that no field names are kept for ever."""

    tier: str
    """The name of a tier; ``*`` for every tier without a policy of its own."""
    executions: dict[str, float] = msgspec.field(default_factory=dict)
    """By the status that an execution ended with: the seconds from its end until it is removed. A tombstone stays."""
    payloads: dict[str, float] = msgspec.field(default_factory=dict)
    """By status: the seconds until its values are removed. Its status, times and ids stay in the lists."""
    items: dict[str, float] = msgspec.field(default_factory=dict)
    """By status: the seconds that ended queue items stay. A status that is not named is kept as ``Tier.retention_seconds`` says."""
    receipts: int | None = None
    """How many of the newest receipts of an execution stay in the store, behind a snapshot. A tenth more, or 100, may stay."""
    tombstones: float | None = None
    """The seconds that tombstones stay; None: for ever."""
    archive: str | None = None
    """The folder that receipts are written to before they are removed; None: they are gone."""

    def __post_init__(self) -> None:
        check_key(self.tier, "a tier's name")
        final = {str(status) for status in FINAL}
        for what, statuses in (("executions", final), ("payloads", final), ("items", set(ENDED_ITEMS))):
            spans: Mapping[str, float] = getattr(self, what)
            if unknown := sorted(set(spans) - statuses):
                raise InvalidInput(f"{what}: {unknown[0]!r} is no status that ends one; use {', '.join(sorted(statuses))}")
            for seconds in spans.values():
                _check_seconds(seconds, what)
        if self.tombstones is not None:
            _check_seconds(self.tombstones, "tombstones")
        if self.receipts is not None and (type(self.receipts) is not int or self.receipts < 1):
            raise InvalidInput(f"receipts is a whole number, 1 or more, not {self.receipts!r}")
        if self.archive is not None and not (isinstance(self.archive, str) and 0 < len(self.archive) <= _LONGEST_ARCHIVE):
            raise InvalidInput(f"archive is the path of a folder, not {self.archive!r}")


def _check_seconds(seconds: object, what: str) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 2**40:
        raise InvalidInput(f"{what} is a number of seconds from 0 on, not {seconds!r}")


class RetentionAction(StrEnum):
    """The effect of a policy on an execution."""

    REMOVE = "remove"
    """Remove it; a tombstone stays."""
    CLEAR = "clear"
    """Remove its values; its row stays."""
    ROTATE = "rotate"
    """Move its older receipts behind a snapshot."""


class Due(msgspec.Struct, frozen=True):
    """The effect of a policy on an execution, and the time from which it is due."""

    action: RetentionAction
    at_ms: int


def dues_of(head: Head, policy: RetentionPolicy, ended_ms: int | None, *, has_payloads: bool) -> list[Due]:
    """Return what the policy will do to an execution, in order of time.

    - ``ended_ms``: when it ended; None if it has not.
    - ``has_payloads``: whether its values are still there.
    """
    dues: list[Due] = []
    if ended_ms is not None and head.status in policy.executions:
        dues.append(Due(RetentionAction.REMOVE, ended_ms + round(policy.executions[head.status] * 1000)))
    if ended_ms is not None and has_payloads and head.status in policy.payloads:
        at_ms = ended_ms + round(policy.payloads[head.status] * 1000)
        # An execution that is removed at the same time or before is not cleared first.
        if not dues or at_ms < dues[0].at_ms:
            dues.append(Due(RetentionAction.CLEAR, at_ms))
    if policy.receipts is not None and is_long(head, policy.receipts):
        dues.append(Due(RetentionAction.ROTATE, head.updated_ms))
    return sorted(dues, key=lambda due: (_ORDER.index(due.action), due.at_ms))


_ORDER = (RetentionAction.REMOVE, RetentionAction.CLEAR, RetentionAction.ROTATE)
"""The order of actions that are due together: removal makes the others needless."""

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def rule_text(what: str, status: str, seconds: float) -> str:
    """Return a rule as people write it: ``executions COMPLETED 30d``."""
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{what} {status} {seconds // size:g}{unit}"
    return f"{what} {status} {seconds:g}s"


def is_long(head: Head, kept: int) -> bool:
    """Return whether an execution has so many more receipts than are to be kept that it is worth a snapshot."""
    return head.revision - head.base_revision > kept + max(kept // _ROTATION_SHARE, _LEAST_ROTATION)


def item_seconds(policy: RetentionPolicy | None, tier: Tier) -> dict[str, float]:
    """Return how long ended items of a workspace stay, by status; those that stay for ever are left out."""
    seconds = tier.retention_seconds
    spans: dict[str, float] = {} if seconds is None else {status: float(seconds) for status in ENDED_ITEMS}
    return spans if policy is None else spans | policy.items


def items_that_end(spans: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, float], list[str]]:
    """Return the workspaces by status and span: those in one list can be dropped by one unit."""
    groups: dict[tuple[str, float], list[str]] = {}
    for workspace, by_status in spans.items():
        for status, seconds in by_status.items():
            groups.setdefault((status, seconds), []).append(workspace)
    return groups


BY_REQUEST = "by request"
"""The name in place of the tier's when a request, not a policy, removed the values of an execution."""


class Removal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The note that stands in place of the result of an execution whose payloads were removed."""

    removed_ms: int
    ended_ms: int
    policy: str
    """The tier whose policy it was."""
    rule: str
    """The rule of it, in words."""


class _Result(msgspec.Struct, frozen=True):
    removed: Removal | None = None


_decode_result = msgspec.json.Decoder(_Result).decode
encode_removal = msgspec.json.Encoder(order="deterministic").encode


def removal_of(data: bytes | None) -> Removal | None:
    """Return the note of an execution's result; None if its payloads are there."""
    if data is None or not data.startswith(b'{"removed":'):
        return None
    try:
        return _decode_result(data).removed
    except msgspec.MsgspecError:  # a result of a user that begins in the same way
        return None


def check_has_payloads(state: State) -> None:
    """Raise ``ExecutionRemoved`` if the payloads of an execution were removed."""
    removal = removal_of(state.sections["result"].get(ONLY))
    if removal is not None:
        who = state.identity
        rule = f"the retention policy of tier {removal.policy!r} ({removal.rule})"
        raise ExecutionRemoved(
            f"the values of execution {who.execution_id!r} were removed at {from_ms(removal.removed_ms):%Y-%m-%d %H:%M:%S} UTC by "
            f"{'a request' if removal.policy == BY_REQUEST else rule}; its status and times are still there",
            execution_id=who.execution_id,
            workspace_id=who.workspace_id,
            removed_ms=removal.removed_ms,
            policy=removal.policy,
            has_record=True,
        )


class Tombstone(PlainRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The remains of an execution that retention removed."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    version: int
    status: str
    created_ms: int
    ended_ms: int
    revision: int
    digest: str
    """Of its newest receipt: the end of the chain in the archive."""
    removed_ms: int
    policy: str
    """The tier whose policy it was."""
    rule: str
    """The rule of it, in words."""
    archive: str | None = None
    """The archive file with its receipts."""


decode_tombstone = msgspec.json.Decoder(Tombstone).decode
encode_tombstone = msgspec.json.Encoder(order="deterministic").encode


def tombstone_path(execution_id: str) -> str:
    """Return the scope that holds the tombstone of an execution, under its id. A scope holds a limited number of keys."""
    return internal_path("tombstone", DEFAULT_WORKSPACE, sha256(execution_id.encode()).hexdigest()[:3])


def no_tombstone(execution_id: str) -> NotFound:
    """Return the error for an execution without a tombstone."""
    return NotFound(f"retention has not removed an execution {execution_id!r}")


def removed_error(tombstone: Tombstone) -> ExecutionRemoved:
    """Return the error for an execution that retention removed."""
    where = "" if tombstone.archive is None else f"; its receipts are in {tombstone.archive}"
    return ExecutionRemoved(
        f"execution {tombstone.execution_id!r}, which ended as {tombstone.status}, was removed at "
        f"{from_ms(tombstone.removed_ms):%Y-%m-%d %H:%M:%S} UTC by the retention policy of tier {tombstone.policy!r} "
        f"({tombstone.rule}){where}",
        execution_id=tombstone.execution_id,
        workspace_id=tombstone.workspace_id,
        removed_ms=tombstone.removed_ms,
        policy=tombstone.policy,
        archive=tombstone.archive,
    )
