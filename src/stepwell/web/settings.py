"""Limits of the HTTP server: what one request, one caller and all callers together may use."""

from __future__ import annotations

import msgspec

from stepwell.errors import InvalidInput

__all__ = ["HttpLimits"]


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of requests. A request over a limit is refused before any work is done for it."""

    body_bytes: int = 1024 * 1024
    """A body, also after it is inflated."""
    body_seconds: float = 30
    """How long a body may take to arrive."""
    page_items: int = 200
    """The largest page of a list."""
    wait_seconds: float = 60
    """The longest wait for a result."""
    reads_per_minute: int = 12_000
    """Requests of one token that read."""
    writes_per_minute: int = 3_000
    """Requests of one token that change something."""
    event_clients: int = 2_000
    """Streams of events that are open at once."""
    event_send_seconds: float = 30
    """How long a client of a stream may take to read what was sent, before it is dropped."""
    heartbeat_seconds: float = 15
    """How often an idle stream sends a comment, so that proxies keep it open."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            size: object = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
                raise InvalidInput(f"HttpLimits({name}=...) is a number above 0, not {size!r}")
