"""Find the store's URL, and hide the password in one that is logged."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["DEFAULT_URL", "choose_url", "without_secrets"]

DEFAULT_URL = "sqlite:///.stepwell/well.db"


def choose_url(given: str | None, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the store's URL and its origin: the argument, ``STEPWELL_URL``, ``REDIS_URL``, or the embedded default."""
    if given is not None:
        return given, "the argument"
    for name in ("STEPWELL_URL", "REDIS_URL"):
        if environ.get(name):
            return environ[name], name
    return DEFAULT_URL, "the default"


# Use a pattern and no parser: in a malformed URL, an unencoded password (with a slash or hash) must not leak.
_PASSWORD = re.compile(r"^([^:/?#]+://[^:/?#@]*):.*@", re.DOTALL)
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)


def without_secrets(url: str) -> str:
    """Return the URL without its password, for logs."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))
