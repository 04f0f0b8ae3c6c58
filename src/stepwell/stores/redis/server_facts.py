"""Read the facts of a Redis server: whether it can hold a store, and what it keeps after a crash."""

from __future__ import annotations

import logging

import msgspec
from redis import exceptions

from stepwell.contract.store import Durability
from stepwell.errors import StoreUnavailable, StoreUnsafe
from stepwell.stores.redis.connection import RedisConnection, RedisConnectionLost, RedisRequestUnsent, Reply, translate
from stepwell.stores.redis.url import RedisSettings

__all__ = ["ServerFacts", "check_fit", "durability_of", "read_facts", "value_of"]


log = logging.getLogger(__name__)

_OLDEST = (6, 2)
_UNKNOWN = Durability("none", "the server does not show its configuration (CONFIG GET), so what it keeps after a crash is unknown")


class ServerFacts(msgspec.Struct, frozen=True):
    """The facts that decide whether a server can be used, and how."""

    version: str
    role: str
    eviction: str
    is_cluster: bool
    durability: Durability


def value_of(reply: Reply, settings: RedisSettings) -> Reply:
    """Return a reply; raise the Stepwell error for one that is an error."""
    if isinstance(reply, RedisRequestUnsent | RedisConnectionLost):
        raise reply.error
    if isinstance(reply, exceptions.RedisError):
        raise translate(reply, settings) from reply
    return reply


def read_facts(connection: RedisConnection) -> ServerFacts:
    """Read the facts from the server, by INFO and CONFIG GET."""
    commands = [("INFO",), *(("CONFIG", "GET", name) for name in ("appendonly", "appendfsync", "save"))]
    info, *config = connection.exchange(commands)
    text: bytes = value_of(info, connection.settings)
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
    """Return what an acknowledged commit survives with these settings.

    Replicas are not counted: a failover can lose the last writes.
    """
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


def check_fit(facts: ServerFacts, settings: RedisSettings) -> None:
    """Raise ``StoreUnavailable`` or ``StoreUnsafe`` for a server that cannot hold a store or would evict parts of it."""
    numbers = tuple(int(part) for part in facts.version.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        raise StoreUnavailable(f"the Redis server {settings.name} has version {facts.version}; upgrade it to 6.2 or newer")
    if facts.is_cluster:
        raise StoreUnavailable(
            f"the Redis server {settings.name} is in cluster mode, where one script cannot write an execution, its scopes and its "
            "queue item, which may be on different nodes; use one server (cluster-enabled no), redis+sentinel:// for failover, "
            "or postgresql://"
        )
    if facts.role != "master":
        raise StoreUnavailable(f"the Redis server {settings.name} is a read-only replica; point the URL at its primary")
    _check_eviction(facts.eviction, settings)


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
