"""Make the store of a URL. Adapters are imported only when a URL needs them."""

from __future__ import annotations

from urllib.parse import urlsplit

from stepwell.clock import Clock
from stepwell.config import without_secrets
from stepwell.contract.store import Store
from stepwell.errors import InvalidInput
from stepwell.model.limits import Limits

__all__ = ["store_of"]


def store_of(url: str, clock: Clock, limits: Limits) -> Store:
    """Return the store of a URL, not opened yet. Raise ``InvalidInput`` for an unknown scheme."""
    scheme = _scheme(url)
    if "#" in url:
        # The rest would be dropped silently: half a password and the host, or half the name of a file.
        raise InvalidInput(f"{without_secrets(url)!r}: write # as %23 in a URL")
    match scheme:
        case "memory":
            from stepwell.stores.memory import MemoryStore

            _check_bare(url)
            return MemoryStore(clock, limits)
        case "sqlite":
            from stepwell.stores.sqlite.store import SQLiteStore

            return SQLiteStore(url, clock, limits)
        case "postgresql" | "postgres":
            try:
                from stepwell.stores.postgres.store import PostgresStore
            except ImportError as error:  # also raised by psycopg when it finds no libpq
                raise InvalidInput(f"postgresql:// needs a driver; run pip install 'stepwell[postgres]' ({error})") from error

            return PostgresStore(url, clock, limits)
        case (
            "redis"
            | "rediss"
            | "valkey"
            | "valkeys"
            | "redis+sentinel"
            | "rediss+sentinel"
            | "valkey+sentinel"
            | "valkeys+sentinel"
        ):
            try:
                from stepwell.stores.redis.store import RedisStore
            except ModuleNotFoundError as error:
                raise InvalidInput(f"a redis:// store needs a driver; run pip install 'stepwell[redis]' ({error})") from error

            return RedisStore(url, clock, limits)
        case "redis+cluster" | "rediss+cluster" | "valkey+cluster" | "valkeys+cluster":
            raise InvalidInput(
                f"{without_secrets(url)!r}: a cluster cannot hold a store, since one script writes an execution, its scopes and "
                "its queue item, which may be on different nodes; use redis:// with one server, redis+sentinel:// for failover, or "
                "postgresql://"
            )
        case _:
            raise InvalidInput(
                f"no store has the scheme {scheme!r} of {without_secrets(url)!r}; use memory://, sqlite:///path/to/file.db, "
                "postgresql://host/database, redis://host or redis+sentinel://host/service"
            )


def _check_bare(url: str) -> None:
    """Raise ``InvalidInput`` for a memory URL with a name or options: two wells that it names would not share a store."""
    if any(urlsplit(url)[1:]):
        raise InvalidInput(
            f"{without_secrets(url)!r}: a store in memory has no name and no options, since it belongs to one well alone; "
            "write memory://, or give wells that share their data one sqlite:/// URL"
        )


def _scheme(url: object) -> str:
    if not isinstance(url, str):
        raise InvalidInput(f"a URL is text, not {type(url).__name__}")
    try:
        return urlsplit(url).scheme
    except ValueError as error:
        raise InvalidInput(f"{without_secrets(url)!r} is no URL: {error}") from None
