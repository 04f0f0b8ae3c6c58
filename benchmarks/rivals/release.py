"""The versions of the rivals that take part."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["release_line"]

_PRODUCTS = (
    "dbos",
    "langgraph",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "procrastinate",
    "pgqueuer",
    "huey",
    "oban",
)


def release_line() -> str:
    """Return the rivals' versions as one JSON object; None for what is not installed."""
    notes = [] if sys.version_info >= (3, 12) else ["oban needs Python 3.12 and takes no part"]
    return json.dumps({"kind": "releases", **{name: _version(name) for name in _PRODUCTS}, "notes": notes})


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
