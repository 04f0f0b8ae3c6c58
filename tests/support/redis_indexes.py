"""Compares every index of a Redis queue with what its items say: the rules of ``includes/items.lua``, written a second time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from urllib.parse import quote

from tests.support.redis_server import RedisSite

from stepwell.model.queue_item import ACTIVE, Item, ItemQuery, ItemStatus
from stepwell.model.queue_lifecycle import has_ended, ready_since

__all__ = ["check_indexes"]

# What is no index of items: what was set up, what fairness and rates remember, and what is only for people.
_OTHERS = ("number", "turn", "tiers", "workspaces", "queues", "passes", "rates", "queue_rates", "waits")


def _name(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


class _Wanted:
    """Return the expected indexes, by the part of a key's name after the queue's."""

    def __init__(self) -> None:
        self.sets: defaultdict[str, set[str]] = defaultdict(set)
        self.scores: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.hashes: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def add(self, item: Item) -> None:
        number, workspace = f"{item.number:016d}", _name(item.workspace_id)
        self.hashes["ids"][item.item_id] = number
        self.scores["all"][number] = self.scores[f"of:{workspace}"][number] = 0
        if item.key is not None:
            self.hashes[f"keys:{workspace}"][item.key] = number
        if has_ended(item):
            self._add_ended(item, number, workspace)
            return
        if item.status is ItemStatus.DISPATCHED:
            self.hashes["executions"][item.execution_id] = number
        if item.singleton is not None:
            self.hashes[f"singles:{workspace}"][item.singleton] = number
        if item.status in ACTIVE:
            self._add_active(item, number, workspace)
        else:
            self._add_waiting(item, number, workspace)

    def _add_ended(self, item: Item, number: str, workspace: str) -> None:
        assert item.finished_ms is not None
        self.scores[f"ended:{workspace}"][number] = item.finished_ms
        if item.status is not ItemStatus.COMPLETED:
            self.scores["dead"][number] = 0

    def _add_active(self, item: Item, number: str, workspace: str) -> None:
        self.sets[f"used:{workspace}"].add(number)
        self.sets[f"busy:{_name(item.queue)}"].add(number)
        self.scores["active"][number] = 0
        if item.status is ItemStatus.CLAIMED:
            assert item.lease_until_ms is not None
            self.scores["claims"][number] = item.lease_until_ms

    def _add_waiting(self, item: Item, number: str, workspace: str) -> None:
        self.scores[f"waiting:{_name(item.workspace_id, item.queue)}"][number] = ready_since(item)
        if item.debounce is not None:
            self.scores[f"bounce:{_name(item.workspace_id, item.debounce)}"][number] = 0

    def add_place(self, item: Item, *, is_delayed: bool) -> None:
        """Where a waiting item waits: one whose time has come stays among the delayed until the next claim."""
        number, lane = f"{item.number:016d}", _name(item.workspace_id, item.queue, item.workflow_id)
        if is_delayed:
            self.scores["delayed"][number] = item.run_at_ms
        else:
            self.scores[f"ready:{lane}"][number] = -item.priority
            self.sets["ready"].add(lane)


def check_indexes(site: RedisSite) -> None:
    """Fail if any index lacks an item, or has one that it should not have, or if there is a key that nothing accounts for."""
    wanted, client, queue = _Wanted(), site.client, site.keys.queue
    now = site.store.now_ms()
    delayed = {number.decode() for number in client.zrange(queue + b":delayed", 0, -1)}
    for item in site.store.items(ItemQuery(limit=1_000_000)):
        wanted.add(item)
        if item.status is ItemStatus.QUEUED:
            is_delayed = f"{item.number:016d}" in delayed
            assert is_delayed or item.run_at_ms <= now
            wanted.add_place(item, is_delayed=is_delayed)
    found: dict[str, Any] = {}
    for key in site.names():
        name = key.decode().removeprefix(queue.decode() + ":")
        if key.startswith(queue + b":") and name.partition(":")[0] not in (*_OTHERS, "item"):
            found[name] = _content(site, key)
    assert found == {**wanted.sets, **wanted.scores, **wanted.hashes}
    rows = {key.decode().rpartition(":")[2] for key in site.names() if key.startswith(queue + b":item:")}
    assert rows == set(wanted.scores["all"])


def _content(site: RedisSite, key: bytes) -> Any:
    client = site.client
    match client.type(key):
        case b"set":
            return {member.decode() for member in client.smembers(key)}
        case b"zset":
            return {member.decode(): score for member, score in client.zrange(key, 0, -1, withscores=True)}
        case _:
            return {field.decode(): value.decode() for field, value in client.hgetall(key).items()}
