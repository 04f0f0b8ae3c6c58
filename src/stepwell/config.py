"""Settings: where they come from, in what order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

__all__ = ["DEFAULT_URL", "choose_url", "without_secrets"]

DEFAULT_URL = "sqlite:///.stepwell/well.db"


def choose_url(given: str | None, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The store's URL and where it was found: the argument, ``STEPWELL_URL``, ``REDIS_URL``, else the embedded default."""
    if given is not None:
        return given, "the argument"
    for name in ("STEPWELL_URL", "REDIS_URL"):
        if environ.get(name):
            return environ[name], name
    return DEFAULT_URL, "the default"


def without_secrets(url: str) -> str:
    """The URL as it may be logged: without a password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))
