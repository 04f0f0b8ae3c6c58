"""Reads the ``.lua`` files: one script for each verb, made of the parts that it includes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha1
from importlib import resources

import msgspec

__all__ = ["SCRIPTS", "Script"]

_INCLUDE = re.compile(r"^--@include (\w+\.lua)$", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """A script as the server knows it."""

    name: str
    text: str
    sha: str


def _read() -> Mapping[str, Script]:
    folder = resources.files("stepwell.stores.redis").joinpath("scripts")
    parts = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.joinpath("parts").iterdir()}
    scripts: dict[str, Script] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".lua"):
            text = _INCLUDE.sub(lambda match: parts[match[1]], entry.read_text(encoding="utf-8"))
            name = entry.name.removesuffix(".lua")
            scripts[name] = Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    return scripts


SCRIPTS = _read()
