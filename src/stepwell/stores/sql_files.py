"""Read ``.sql`` files: named statements, and numbered schema scripts."""

from __future__ import annotations

import re
from importlib import resources

__all__ = ["read_queries", "read_schema"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def read_queries(package: str, file: str = "queries.sql") -> dict[str, str]:
    """Return the statements of a file by name; comments before the first name are skipped."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    return {name: body.strip().removesuffix(";") for name, body in zip(parts[::2], parts[1::2], strict=True)}


def read_schema(package: str, folder: str = "schema") -> list[tuple[int, str]]:
    """Return the schema scripts in order of their numbers: ``0001_name.sql`` is number 1."""
    files = [entry for entry in resources.files(package).joinpath(folder).iterdir() if entry.name.endswith(".sql")]
    return sorted((int(entry.name.split("_")[0]), entry.read_text(encoding="utf-8")) for entry in files)
