"""From a URL to a store. Adapters are imported only when their URL asks for them."""

from __future__ import annotations

from urllib.parse import urlsplit

from stepwell.clock import Clock
from stepwell.config import without_secrets
from stepwell.contract.store import Store
from stepwell.errors import InvalidInput
from stepwell.model.limits import Limits

__all__ = ["store_of"]


def store_of(url: str, clock: Clock, limits: Limits) -> Store:
    """The store that a URL names, not opened yet; ``InvalidInput`` if no store has that scheme."""
    match _scheme(url):
        case "memory":
            from stepwell.stores.memory import MemoryStore

            return MemoryStore(clock, limits)
        case "sqlite":
            from stepwell.stores.sqlite.store import SQLiteStore

            return SQLiteStore(url, clock, limits)
        case scheme:
            raise InvalidInput(
                f"no store has the scheme {scheme!r} of {without_secrets(url)!r}; use memory:// or sqlite:///path/to/file.db"
            )


def _scheme(url: object) -> str:
    if not isinstance(url, str):
        raise InvalidInput(f"a URL is text, not {type(url).__name__}")
    try:
        return urlsplit(url).scheme
    except ValueError as error:
        raise InvalidInput(f"{without_secrets(url)!r} is no URL: {error}") from None
