"""Import a package's names from their modules on first use, so that importing the package is fast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module

__all__ = ["fetching"]


def fetching(package: str, homes: Mapping[str, Collection[str]], modules: Collection[str] = ()) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package.

    - ``homes``: for each module, the names that it defines.
    - ``modules``: submodules that are attributes themselves.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def fetch(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            if name.startswith("_"):  # tools ask for these, not people who guess
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            from stepwell.name_hints import MODULE, hint

            known = {**dict.fromkeys(home_of), **dict.fromkeys(modules)}
            top = {"step": "stepwell.step", "workflow": "stepwell.workflow"} if package != "stepwell" else {}
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint(name, known, {**MODULE, **top})}")
        found: object = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, found)  # the next access finds the name in the package
        return found

    return fetch
