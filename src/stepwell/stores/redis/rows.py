"""Encode executions, commits, snapshots, state entries and the queue for Redis, and decode them.

Lists go to the scripts as MessagePack. Older servers cannot unpack its binary strings, so bytes travel as text strings: the bytes
are the same, and nothing interprets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from stepwell.errors import Corrupted
from stepwell.model.checksum import seal, unseal
from stepwell.model.commit import Head, StoredCommit
from stepwell.model.queue_item import Item, ItemMark, ItemStatus, Lane, NewItem, QueueSettings, Tier, Workspace
from stepwell.model.scoped_operations import ScopeTotals, StoredEntry
from stepwell.model.snapshot import StoredSnapshot
from stepwell.stores.queue_rows import encode_overrides, encode_quotas, tier_of, workspace_of

__all__ = [
    "commit_beginning",
    "encoded",
    "pack",
    "pack_commit",
    "pack_entry",
    "pack_mark",
    "pack_queue",
    "pack_snapshot",
    "pack_tier",
    "pack_totals",
    "pack_workspace",
    "read_commit",
    "read_commits",
    "read_entry",
    "read_found_commit",
    "read_head",
    "read_item",
    "read_lane",
    "read_pairs",
    "read_queues",
    "read_snapshot",
    "read_tiers",
    "read_totals",
    "read_workspaces",
    "request",
    "text",
]


_encode = msgspec.msgpack.Encoder().encode
_decode_commit = msgspec.msgpack.Decoder(tuple[str, bytes, bytes]).decode
_decode_snapshot = msgspec.msgpack.Decoder(tuple[bytes, bytes, str]).decode
_DAMAGED = (ValueError, KeyError, IndexError, msgspec.MsgspecError)


def pack_commit(commit_id: str, header: bytes, body: bytes) -> bytes:
    """Return a commit as one value, which begins with its id."""
    return _encode((commit_id, header, body))


def commit_beginning(commit_id: str) -> bytes:
    """Return the first bytes of the value of a commit with this id: the mark of a list of three, and the id."""
    return b"\x93" + _encode(commit_id)


def read_commit(execution_id: str, revision: int, data: object) -> StoredCommit:
    """Decode a commit; raise ``Corrupted`` for bytes that are none."""
    try:
        _, header, body = _decode_commit(_bytes(data))
    except _DAMAGED:
        raise Corrupted(f"execution {execution_id!r} is quarantined: its commit {revision} cannot be read") from None
    return StoredCommit(revision, header, body)


def read_found_commit(execution_id: str, revision: int, data: object) -> StoredCommit:
    """Decode a commit that was found by its id; an archived one has no bytes left."""
    return read_commit(execution_id, revision, data) if data else StoredCommit(revision, b"", b"")


def read_commits(execution_id: str, first: int, values: Sequence[object]) -> list[StoredCommit]:
    """Decode a page of commits that begins with the given revision."""
    return [read_commit(execution_id, revision, data) for revision, data in enumerate(values, first)]


def pack_snapshot(snapshot: StoredSnapshot) -> bytes:
    """Return a snapshot as one value; its revision is stored beside it."""
    return _encode((snapshot.data, snapshot.accumulator, snapshot.digest))


def read_snapshot(execution_id: str, found: Sequence[Any]) -> StoredSnapshot | None:
    """Decode a pair of snapshot and revision; None for an empty one."""
    if not found:
        return None
    try:
        return StoredSnapshot(int(found[1]), *_decode_snapshot(_bytes(found[0])))
    except _DAMAGED:
        raise Corrupted(f"execution {execution_id!r} is quarantined: its snapshot cannot be read") from None


def read_head(execution_id: str, flat: Sequence[bytes]) -> Head | None:
    """Decode the fields of an execution's head; None for a missing one or a tombstone."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if not fields or b"deleted" in fields:
        return None
    try:
        return _head(execution_id, fields)
    except _DAMAGED as error:
        raise Corrupted(f"execution {execution_id!r} is quarantined: its head cannot be read ({error})") from None


def _head(execution_id: str, fields: Mapping[bytes, bytes]) -> Head:
    holder, until, wake = fields.get(b"holder"), fields.get(b"until"), fields.get(b"wake")
    return Head(
        execution_id=execution_id,
        workspace_id=fields[b"workspace"].decode(),
        workflow_id=fields[b"workflow"].decode(),
        version=int(fields[b"version"]),
        status=fields[b"status"].decode(),
        revision=int(fields[b"revision"]),
        digest=fields[b"digest"].decode(),
        fence=int(fields[b"fence"]),
        holder=None if holder is None else holder.decode(),
        lease_until_ms=None if until is None else int(until),
        base_revision=int(fields[b"base"]),
        signature=fields[b"signature"] or None,
        parent_id=fields[b"parent"].decode() or None,
        created_ms=int(fields[b"created"]),
        updated_ms=int(fields[b"updated"]),
        wake_ms=None if wake is None else int(wake),
        claims=int(fields.get(b"claims", b"0")),
    )


def pack_entry(scope: str, key: str, entry: StoredEntry) -> bytes:
    """Return the row of a state entry: revision, end, TTL, ``s``liding or ``f``ixed, and the sealed data unless a tombstone."""
    ends = b"-" if entry.expires_ms is None else b"%d" % entry.expires_ms
    ttl = b"-" if entry.ttl_ms is None else b"%d" % entry.ttl_ms
    label = b"%d %b %b %b" % (entry.revision, ends, ttl, b"s" if entry.sliding else b"f")
    data = seal(scope, key, entry)
    return label if data is None else label + b" " + data


def read_entry(scope: str, key: str, data: object) -> StoredEntry | None:
    """Decode the row of a state entry, sound or damaged; None for a missing one."""
    if data is None:
        return None
    try:
        revision, ends, ttl, kind, *rest = _bytes(data).split(b" ", 4)
        row = StoredEntry(
            rest[0] if rest else None,
            int(revision),
            None if ends == b"-" else int(ends),
            None if ttl == b"-" else int(ttl),
            kind == b"s",
        )
    except _DAMAGED:
        return StoredEntry(b"", 0, is_sound=False)
    return unseal(scope, key, row)


def read_pairs(scope: str, flat: Sequence[bytes]) -> list[tuple[str, StoredEntry]]:
    """Decode a list of key, row, key, row."""
    names = [key.decode() for key in flat[::2]]
    pairs = ((key, read_entry(scope, key, row)) for key, row in zip(names, flat[1::2], strict=True))
    return [(key, entry.checked(scope, key)) for key, entry in pairs if entry is not None]


def pack_totals(edition: int, totals: ScopeTotals) -> bytes:
    """Return a scope's totals as one value. The edition counts every write, also one that only restarts a sliding TTL."""
    return b"%d %d %d %d" % (edition, totals.revision, totals.keys, totals.bytes)


def read_totals(scope: str, data: object) -> tuple[int, ScopeTotals]:
    """Decode the edition and totals of a scope; zeros for a missing one."""
    if data is None:
        return 0, ScopeTotals()
    try:
        edition, revision, keys, size = (int(part) for part in _bytes(data).split(b" "))
    except _DAMAGED:
        raise Corrupted(f"the totals of scope {scope!r} cannot be read; restore them from a backup") from None
    return edition, ScopeTotals(revision, keys, size)


def _bytes(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise ValueError("a value is missing")
    return data


T = TypeVar("T")

pack = msgspec.msgpack.Encoder().encode


class _TierRow(msgspec.Struct, array_like=True):
    """The limits of a tier; the last, a text, is missing in rows without any of them."""

    concurrency: int | None
    weight: float
    rate_per_second: float | None
    queue_depth: int | None
    state_bytes: int | None
    retention_seconds: float | None
    child_concurrency: int | None
    quotas: str | None = None


_decode_tier = msgspec.msgpack.Decoder(_TierRow).decode
_decode_workspace = msgspec.msgpack.Decoder(tuple[str, bool, int, str]).decode
_decode_queue = msgspec.msgpack.Decoder(tuple[bool, int | None, float | None]).decode
_DAMAGED_QUEUE_ROW = (ValueError, KeyError, msgspec.MsgspecError)


def encoded(name: str) -> str:
    """Return a name encoded as a part of a key, like ``includes/due.lua`` does."""
    return quote(name, safe="")


def request(new: NewItem) -> tuple[object, ...]:
    """Return a request as ``includes/admission.lua`` takes it."""
    return (
        *(new.item_id, new.workspace_id, new.workflow_id, new.version, new.execution_id, text(new.input), new.queue, new.priority),
        *(new.delay_ms, new.body_digest, new.max_attempts, new.run_at_ms, new.key, new.singleton, new.debounce),
        new.is_started,
    )


def text(data: bytes) -> msgspec.Raw:
    """Return bytes packed as a text string."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


def pack_mark(mark: ItemMark, error: str | None) -> tuple[object, ...]:
    """Return a mark as ``includes/item_marks.lua`` takes it."""
    return mark.item_id, mark.status, mark.fence, error


def pack_tier(tier: Tier) -> bytes:
    """Return a tier's limits as ``includes/tiers.lua`` takes them; those without a place are one text, which it decodes."""
    numbers, quotas = (tier.queue_depth, tier.state_bytes, tier.retention_seconds, tier.child_concurrency), encode_quotas(tier)
    return pack((tier.concurrency, float(tier.weight), tier.rate_per_second, *numbers, *([quotas] if quotas else ())))


def read_tiers(flat: Sequence[bytes]) -> list[Tier]:
    """Decode the hash of tiers."""
    return [tier_of((name, *msgspec.structs.astuple(row))) for name, row in _table(flat, "tier", _decode_tier, bytes.decode)]


def pack_workspace(workspace: Workspace) -> bytes:
    """Return the row of a workspace; its overrides are one text, which ``includes/tiers.lua`` decodes."""
    return pack((workspace.tier, workspace.is_paused, workspace.created_ms, encode_overrides(workspace) or ""))


def read_workspaces(flat: Sequence[bytes]) -> list[Workspace]:
    """Decode the hash of workspaces."""
    return [workspace_of((name, *row)) for name, row in _table(flat, "workspace", _decode_workspace, _decoded)]


def pack_queue(settings: QueueSettings) -> bytes:
    """Return the row of a named queue, as ``includes/fairness.lua`` takes it."""
    return pack((settings.is_paused, settings.concurrency, settings.rate_per_second))


def read_queues(flat: Sequence[bytes]) -> list[QueueSettings]:
    """Decode the hash of named queues."""
    return [
        QueueSettings(name=name, is_paused=is_paused, concurrency=concurrency, rate_per_second=rate)
        for name, (is_paused, concurrency, rate) in _table(flat, "queue", _decode_queue, _decoded)
    ]


def _table(flat: Sequence[bytes], what: str, decode: Callable[[bytes], T], name_of: Callable[[bytes], str]) -> list[tuple[str, T]]:
    """Decode the rows of a hash, sorted by name; raise ``Corrupted`` with the name of a row that cannot be read."""
    found: list[tuple[str, T]] = []
    for field, row in _pairs(flat):
        name = name_of(field)
        try:
            found.append((name, decode(row)))
        except _DAMAGED_QUEUE_ROW:
            raise Corrupted(f"{what} {name!r} cannot be read; put it again") from None
    return sorted(found, key=itemgetter(0))


def read_item(flat: Sequence[bytes]) -> Item | None:
    """Decode the fields of a queue item; None for a missing one."""
    if not flat:
        return None
    fields = dict(_pairs(flat))
    try:
        return _item(fields)
    except _DAMAGED_QUEUE_ROW as error:
        name = fields.get(b"id", b"?").decode(errors="replace")
        raise Corrupted(f"queue item {name!r} cannot be read ({error}); restore it from a backup") from None


def _item(fields: dict[bytes, bytes]) -> Item:
    def text(name: bytes) -> str | None:
        value = fields.get(name)
        return None if value is None else value.decode()

    def number(name: bytes) -> int | None:
        value = fields.get(name)
        return None if value is None else int(value)

    return Item(
        item_id=fields[b"id"].decode(),
        number=int(fields[b"number"]),
        workspace_id=fields[b"workspace"].decode(),
        workflow_id=fields[b"workflow"].decode(),
        version=int(fields[b"version"]),
        execution_id=fields[b"execution"].decode(),
        input=fields[b"input"],
        queue=fields[b"queue"].decode(),
        status=ItemStatus(fields[b"status"].decode()),
        priority=int(fields.get(b"priority", b"0")),
        enqueued_ms=int(fields[b"enqueued"]),
        run_at_ms=int(fields[b"run_at"]),
        key=text(b"key"),
        body_digest=fields[b"digest"].decode(),
        singleton=text(b"singleton"),
        debounce=text(b"debounce"),
        attempts=int(fields.get(b"attempts", b"0")),
        max_attempts=int(fields[b"most"]),
        holder=text(b"holder"),
        fence=int(fields.get(b"fence", b"0")),
        lease_until_ms=number(b"until"),
        claimed_ms=number(b"claimed"),
        dispatched_ms=number(b"dispatched"),
        finished_ms=number(b"finished"),
        error=text(b"error"),
    )


def read_lane(row: Sequence[Any]) -> Lane:
    """Decode a lane as ``count_lanes.lua`` counts it."""
    workspace, queue, ready, delayed, claimed, dispatched, oldest, waits = row
    return Lane(
        workspace_id=_decoded(workspace),
        queue=_decoded(queue),
        ready=ready,
        delayed=delayed,
        claimed=claimed,
        dispatched=dispatched,
        oldest_ready_ms=int(oldest) if oldest else None,
        waits_ms=tuple(sorted(map(int, waits))),
    )


def _decoded(name: bytes) -> str:
    return unquote(name.decode())


def _pairs(flat: Sequence[bytes]) -> zip[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
