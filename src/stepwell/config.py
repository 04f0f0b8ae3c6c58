"""Settings: where they come from, in what order."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

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


# By pattern and not by parsing: a password that was not encoded (with a slash, a hash) must not come out of a URL that is wrong.
_PASSWORD = re.compile(r"^([^:/?#]+://[^:/?#@]*):.*@", re.DOTALL)
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)


def without_secrets(url: str) -> str:
    """The URL as it may be logged: without a password."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))
