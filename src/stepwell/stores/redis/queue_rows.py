"""How the queue is written down in Redis, and read back: requests, marks, items, tiers, workspaces and named queues.

Lists go to the scripts as MessagePack, which Lua unpacks there. Its older versions know no binary strings, so an input travels as
text: the bytes are the same, and nothing looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from stepwell.errors import Corrupted
from stepwell.model.queue_item import Item, ItemMark, ItemStatus, Lane, NewItem, QueueSettings, Tier, Workspace
from stepwell.stores.queue_rows import tier_of

__all__ = [
    "encoded",
    "pack",
    "pack_mark",
    "pack_queue",
    "pack_tier",
    "pack_workspace",
    "read_item",
    "read_lane",
    "read_queues",
    "read_tiers",
    "read_workspaces",
    "request",
    "text",
]

T = TypeVar("T")

pack = msgspec.msgpack.Encoder().encode
_decode_tier = msgspec.msgpack.Decoder(tuple[int | None, float, float | None, int | None, int | None, float | None]).decode
_decode_workspace = msgspec.msgpack.Decoder(tuple[str, bool, int]).decode
_decode_queue = msgspec.msgpack.Decoder(tuple[bool, int | None, float | None]).decode
_DAMAGED = (ValueError, KeyError, msgspec.MsgspecError)


def encoded(name: str) -> str:
    """A name as a part of a key, as ``parts/due.lua`` writes it."""
    return quote(name, safe="")


def request(new: NewItem) -> tuple[object, ...]:
    """A request as ``parts/desk.lua`` takes it."""
    return (
        *(new.item_id, new.workspace_id, new.workflow_id, new.version, new.execution_id, text(new.input), new.queue, new.priority),
        *(new.delay_ms, new.body_digest, new.max_attempts, new.run_at_ms, new.key, new.singleton, new.debounce),
    )


def text(data: bytes) -> msgspec.Raw:
    """Bytes, packed as a text of theirs."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


def pack_mark(mark: ItemMark, error: str | None) -> tuple[object, ...]:
    """A mark as ``parts/marks.lua`` takes it."""
    return mark.item_id, mark.status, mark.fence, error


def pack_tier(tier: Tier) -> bytes:
    """A tier's limits as ``parts/tiers.lua`` has them."""
    numbers = (tier.queue_depth, tier.state_bytes, tier.retention_seconds)
    return pack((tier.concurrency, float(tier.weight), tier.rate_per_second, *numbers))


def read_tiers(flat: Sequence[bytes]) -> list[Tier]:
    """The tiers of a hash, by name."""
    return [tier_of((name, *row)) for name, row in _table(flat, "tier", _decode_tier, bytes.decode)]


def pack_workspace(workspace: Workspace) -> bytes:
    """A workspace's row."""
    return pack((workspace.tier, workspace.is_paused, workspace.created_ms))


def read_workspaces(flat: Sequence[bytes]) -> list[Workspace]:
    """The workspaces of a hash, by id."""
    return [
        Workspace(workspace_id=name, tier=tier, is_paused=is_paused, created_ms=created_ms)
        for name, (tier, is_paused, created_ms) in _table(flat, "workspace", _decode_workspace, _decoded)
    ]


def pack_queue(settings: QueueSettings) -> bytes:
    """A named queue's row, as ``parts/choosing.lua`` reads it."""
    return pack((settings.is_paused, settings.concurrency, settings.rate_per_second))


def read_queues(flat: Sequence[bytes]) -> list[QueueSettings]:
    """The queues of a hash, by name."""
    return [
        QueueSettings(name=name, is_paused=is_paused, concurrency=concurrency, rate_per_second=rate)
        for name, (is_paused, concurrency, rate) in _table(flat, "queue", _decode_queue, _decoded)
    ]


def _table(flat: Sequence[bytes], what: str, decode: Callable[[bytes], T], name_of: Callable[[bytes], str]) -> list[tuple[str, T]]:
    """The rows of a hash, by name; a row that cannot be read is named."""
    found: list[tuple[str, T]] = []
    for field, row in _pairs(flat):
        name = name_of(field)
        try:
            found.append((name, decode(row)))
        except _DAMAGED:
            raise Corrupted(f"{what} {name!r} cannot be read; put it again") from None
    return sorted(found, key=itemgetter(0))


def read_item(flat: Sequence[bytes]) -> Item | None:
    """The item of a hash's fields and values; None if there is none."""
    if not flat:
        return None
    fields = dict(_pairs(flat))
    try:
        return _item(fields)
    except _DAMAGED as error:
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
    """A lane as ``lanes.lua`` counts it."""
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
