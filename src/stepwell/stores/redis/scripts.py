"""Reads the ``.lua`` files: one script for each verb, made of the parts that it includes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha1
from importlib import resources

import msgspec

__all__ = ["SCRIPTS", "LuaScript"]

_INCLUDE = re.compile(r"^--@include (\w+\.lua)$", re.MULTILINE)


class LuaScript(msgspec.Struct, frozen=True):
    """A script as the server knows it."""

    name: str
    text: str
    sha: str


def _read() -> Mapping[str, LuaScript]:
    folder = resources.files("stepwell.stores.redis").joinpath("scripts")
    own = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".lua")}
    parts = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.joinpath("parts").iterdir()}
    scripts: dict[str, LuaScript] = {}
    for file in sorted(own):
        text, name = _assemble(own[file], own | parts, set()), file.removesuffix(".lua")
        scripts[name] = LuaScript(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    return scripts


def _assemble(text: str, files: Mapping[str, str], included: set[str]) -> str:
    """A script with all that it includes, each once: parts, what those include, and another script as the body of a function."""

    def included_text(match: re.Match[str]) -> str:
        name = match[1]
        if name in included:
            return ""
        included.add(name)
        return _assemble(files[name], files, included)

    return _INCLUDE.sub(included_text, text)


SCRIPTS = _read()
