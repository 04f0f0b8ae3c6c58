"""Read the ``.lua`` files: one script for each verb, assembled from the files that it includes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha1
from importlib import resources

import msgspec

__all__ = ["SCRIPTS", "LuaScript"]

_INCLUDE = re.compile(r"^ *--@include (\w+\.lua)$", re.MULTILINE)


class LuaScript(msgspec.Struct, frozen=True):
    """A script: its name, its text, and the SHA by which the server knows it."""

    name: str
    text: str
    sha: str


def _read() -> Mapping[str, LuaScript]:
    folder = resources.files("stepwell.stores.redis").joinpath("scripts")
    own = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".lua")}
    included = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.joinpath("includes").iterdir()}
    scripts: dict[str, LuaScript] = {}
    for file in sorted(own):
        text, name = _assemble(own[file], included, set()), file.removesuffix(".lua")
        scripts[name] = LuaScript(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    return scripts


def _assemble(text: str, files: Mapping[str, str], included: set[str]) -> str:
    """Return a script with the files that it includes, and those that these include, each once."""

    def included_text(match: re.Match[str]) -> str:
        name = match[1]
        if name in included:
            return ""
        included.add(name)
        return _assemble(files[name], files, included)

    return _INCLUDE.sub(included_text, text)


SCRIPTS = _read()
