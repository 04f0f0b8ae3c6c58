"""What a server says about itself: whether it can hold a store, and what it does for durability.

Which server a command goes to: the only one, or the node of a cluster that has the slot of its key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from redis import exceptions

from stepwell.contract.store import Durability
from stepwell.errors import StoreUnavailable, StoreUnsafe
from stepwell.stores.redis.connection import Command, RedisConnection, RedisConnectionLost, RedisRequestUnsent, Reply, translate
from stepwell.stores.redis.keys import slot_of
from stepwell.stores.redis.url import RedisSettings

__all__ = [
    "Cluster",
    "ServerFacts",
    "Servers",
    "SingleServer",
    "check_fit",
    "durability_of",
    "read_survey",
    "value_of",
    "weakest",
]


log = logging.getLogger(__name__)

_OLDEST = (6, 2)
_LEVELS = ("none", "normal", "full")
_UNKNOWN = Durability("none", "the server does not show its configuration (CONFIG GET), so what it keeps after a crash is unknown")


class ServerFacts(msgspec.Struct, frozen=True):
    """The facts that decide whether and how a server can be used."""

    version: str
    role: str
    eviction: str
    is_cluster: bool
    durability: Durability


def value_of(reply: Reply, settings: RedisSettings) -> Reply:
    """The reply, if it is one; else its error is raised, as ours."""
    if isinstance(reply, RedisRequestUnsent | RedisConnectionLost):
        raise reply.error
    if isinstance(reply, exceptions.RedisError):
        raise translate(reply, settings) from reply
    return reply


def read_survey(link: RedisConnection) -> ServerFacts:
    """Ask a server about itself."""
    info, *config = link.exchange([("INFO",), *(("CONFIG", "GET", name) for name in ("appendonly", "appendfsync", "save"))])
    text: bytes = value_of(info, link.settings)
    facts = dict(line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line)
    is_hidden = any(not isinstance(reply, list) or not reply for reply in config)
    return ServerFacts(
        version=facts.get("redis_version", "0"),
        role=facts.get("role", "master"),
        eviction=facts.get("maxmemory_policy", ""),
        is_cluster=facts.get("cluster_enabled") == "1",
        durability=_UNKNOWN if is_hidden else durability_of(*(reply[1].decode() for reply in config)),
    )


def durability_of(appendonly: str, appendfsync: str, save: str) -> Durability:
    """What an acknowledged commit survives with these settings. Replicas are not counted: a failover can lose the last writes."""
    match appendonly, appendfsync:
        case "yes", "always":
            return Durability("full", "Redis appendonly=yes appendfsync=always")
        case "yes", "everysec":
            return Durability("normal", "Redis appendonly=yes appendfsync=everysec: a crash can lose the last 2 seconds")
        case "yes", other:
            return Durability("normal", f"Redis appendonly=yes appendfsync={other}: a power loss can lose the last 30 seconds")
        case _ if save:
            return Durability("none", f"Redis writes snapshots only (save {save}): a crash loses everything since the last one")
        case _:
            return Durability("none", "Redis appendonly=no and no snapshots: a restart loses everything")


def weakest(surveys: list[ServerFacts]) -> Durability:
    """The durability of a store on several servers: that of the weakest."""
    return min((survey.durability for survey in surveys), key=lambda durability: _LEVELS.index(durability.level))


def check_fit(survey: ServerFacts, settings: RedisSettings) -> None:
    """Refuse a server that cannot hold a store, or that would throw parts of it away."""
    numbers = tuple(int(part) for part in survey.version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        raise StoreUnavailable(f"the Redis server {settings.name} has version {survey.version}; upgrade it to 6.2 or newer")
    if survey.role != "master":
        raise StoreUnavailable(f"the Redis server {settings.name} is a read-only replica; point the URL at its primary")
    if survey.is_cluster and settings.database:
        raise StoreUnavailable(f"the Redis server {settings.name} is a cluster, which has database 0 only; correct the URL")
    _check_eviction(survey.eviction, settings)


def _check_eviction(policy: str, settings: RedisSettings) -> None:
    if not policy:
        log.warning("%s does not show its maxmemory-policy; make sure that it is noeviction", settings.name)
        return
    if policy.startswith("allkeys-") or (policy.startswith("volatile-") and settings.execution_ttl_ms):
        raise StoreUnsafe(
            f"the Redis server {settings.name} has maxmemory-policy {policy}, which throws parts of executions away when memory "
            "runs out; set maxmemory-policy to noeviction"
        )
    if policy.startswith("volatile-"):
        log.warning("%s has maxmemory-policy %s, which may drop locks that are held; set it to noeviction", settings.name, policy)


# A slot that moves, or a replica that takes over, needs a moment; 8 looks with growing pauses are about 2.5 seconds.
_LOOKS = 8
_PAUSE_SECONDS = 0.01
_NOT_HERE = (exceptions.MovedError, exceptions.TryAgainError, exceptions.ClusterDownError)


class Servers(Protocol):
    """The servers of one store."""

    is_cluster: bool

    def send(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        """Send commands, each with the key that says where to, and give a reply for each; order holds on each server."""
        ...

    def links(self) -> list[RedisConnection]:
        """The connections to every server that has data of its own."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class SingleServer:
    """One server that has all keys."""

    is_cluster = False

    def __init__(self, link: RedisConnection) -> None:
        self._link = link

    def send(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        return self._link.exchange([command for _, command in commands] if len(commands) > 1 else (commands[0][1],))

    def links(self) -> list[RedisConnection]:
        return [self._link]

    def close(self) -> None:
        self._link.close()


class Cluster:
    """The nodes of a cluster. Commands for different nodes go out one node after another; there is no order between nodes."""

    is_cluster = True

    def __init__(self, seed: RedisConnection) -> None:
        self._settings: RedisSettings = seed.settings
        self._known: dict[tuple[str, int], RedisConnection] = {(seed.settings.host, seed.settings.port): seed}
        self._ranges: list[tuple[int, int, RedisConnection]] = []
        self._look()

    def send(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        replies: list[Reply] = [None] * len(commands)
        waiting = list(range(len(commands)))
        for look in range(_LOOKS):
            self._send(commands, waiting, replies)
            waiting = [index for index in waiting if isinstance(replies[index], (*_NOT_HERE, RedisRequestUnsent))]
            if not waiting:
                break
            time.sleep(_PAUSE_SECONDS * 2**look)
            try:
                self._look()
            except StoreUnavailable:
                continue
        return replies

    def _send(self, commands: Sequence[tuple[bytes, Command]], which: Sequence[int], replies: list[Reply]) -> None:
        groups: dict[RedisConnection, list[int]] = {}
        for index in which:
            link = self._link_of(slot_of(commands[index][0]))
            if link is None:
                replies[index] = RedisRequestUnsent(
                    StoreUnavailable(f"no node of the cluster {self._settings.name} has the slot of a key")
                )
            else:
                groups.setdefault(link, []).append(index)
        for link, indexes in groups.items():
            for index, reply in zip(indexes, link.exchange([commands[index][1] for index in indexes]), strict=True):
                is_moving = isinstance(reply, exceptions.AskError) and not isinstance(reply, exceptions.MovedError)
                replies[index] = self._ask(reply, commands[index][1]) if is_moving else reply

    def _ask(self, error: Any, command: Command) -> Reply:
        """The slot is on its way to another node, which answers for keys that have arrived."""
        return self._link_to(error.host, error.port).exchange([("ASKING",), command])[1]

    def _link_of(self, slot: int) -> RedisConnection | None:
        return next((link for first, last, link in self._ranges if first <= slot <= last), None)

    def _link_to(self, host: str, port: int) -> RedisConnection:
        return self._known.setdefault((host, port), RedisConnection(msgspec.structs.replace(self._settings, host=host, port=port)))

    def _look(self) -> None:
        """Ask any node that answers which node has which slots."""
        failure = StoreUnavailable(f"no node of the cluster {self._settings.name} answers")
        for link in list(self._known.values()):
            reply: Reply = link.exchange([("CLUSTER", "SLOTS")])[0]
            if isinstance(reply, RedisRequestUnsent | RedisConnectionLost):
                failure = reply.error
            elif isinstance(reply, exceptions.RedisError):
                failure = translate(reply, link.settings)
            else:
                self._ranges = [self._range(link, *row) for row in reply]
                return
        raise failure

    def _range(
        self, asked: RedisConnection, first: int, last: int, primary: Sequence[Any], *_: object
    ) -> tuple[int, int, RedisConnection]:
        # A node that does not know its own name leaves it empty: it is the one that was asked.
        host = (primary[0] or b"").decode() or asked.settings.host
        return first, last, self._link_to(host, primary[1])

    def links(self) -> list[RedisConnection]:
        return list(dict.fromkeys(link for _, _, link in self._ranges))

    def close(self) -> None:
        for link in self._known.values():
            link.close()
