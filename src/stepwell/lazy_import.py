"""Names that a package fetches from their modules when they are first used, so that importing the package costs next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module

__all__ = ["fetching"]


def fetching(package: str, homes: Mapping[str, Collection[str]], modules: Collection[str] = ()) -> Callable[[str], object]:
    """The ``__getattr__`` of a package whose names live in ``homes`` (module: names) and which offers some modules themselves."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def fetch(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, found)  # asked for once
        return found

    return fetch
