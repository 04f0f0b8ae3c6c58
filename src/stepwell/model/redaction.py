"""Redaction: show values without what is declared secret.

A secret is declared by the name of its key or field, such as ``password`` or ``*_token``; capital and small letters are the same.
Its value is shown as ``[secret]``, whatever it is, at any depth. Texts that were made from values, such as messages of errors, are
searched for the secret values themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

from stepwell.errors import InvalidInput

__all__ = ["HIDDEN", "Redaction"]

HIDDEN = "[secret]"

_SHORTEST = 4
"""Shorter secret values are not searched for in texts: they would hide parts of ordinary words."""


class Redaction:
    """Hides what is declared secret.

    - ``names``: names of keys and fields, or patterns such as ``*_token``.
    """

    __slots__ = ("_patterns", "_plain", "names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        if isinstance(names, str):
            raise InvalidInput(f"secrets is a list of names; write secrets=[{names!r}]")
        try:
            self.names = tuple(dict.fromkeys(names))
        except TypeError:
            raise InvalidInput(f"secrets is a list of names of keys and fields, not {names!r}") from None
        for name in self.names:
            given: object = name
            if not isinstance(given, str) or not given:
                raise InvalidInput(f"a secret is declared by the name of its key or field, not {given!r}")
        folded = [name.casefold() for name in self.names]
        self._plain = frozenset(name for name in folded if not set(name) & set("*?["))
        self._patterns = tuple(name for name in folded if name not in self._plain)

    def __bool__(self) -> bool:
        return bool(self.names)

    def __repr__(self) -> str:
        return f"<Redaction of {', '.join(self.names) or 'nothing'}>"

    def also(self, names: Iterable[str]) -> Redaction:
        """Return a redaction that hides more names, too."""
        more = tuple(names)
        return Redaction((*self.names, *more)) if more else self

    def hides(self, name: str) -> bool:
        """Return whether the value of a key or field is secret."""
        folded = name.casefold()
        return folded in self._plain or any(fnmatchcase(folded, pattern) for pattern in self._patterns)

    def value(self, value: Any) -> Any:
        """Return a value with ``[secret]`` in place of what is secret; the same value if nothing is declared."""
        if not self.names:
            return value
        if isinstance(value, Mapping):
            return {
                key: HIDDEN if isinstance(key, str) and self.hides(key) else self.value(child)
                for key, child in cast("Mapping[Any, Any]", value).items()
            }
        if isinstance(value, list | tuple):
            return [self.value(child) for child in cast("list[Any]", value)]
        return value

    def named(self, name: str, value: Any) -> Any:
        """Return the value of a key with this name, with what is secret hidden."""
        return HIDDEN if self.names and self.hides(name) else self.value(value)

    def text(self, text: str, *values: Any) -> str:
        """Return a text without the secret values that these values hold."""
        if not self.names:
            return text
        found = sorted({each for value in values for each in self._secrets(value)}, key=len, reverse=True)
        for each in found:
            text = text.replace(each, HIDDEN)
        return text

    def _secrets(self, value: Any) -> Iterator[str]:
        """Return the texts and numbers that a value holds under secret names."""
        if isinstance(value, Mapping):
            for key, child in cast("Mapping[Any, Any]", value).items():
                yield from _atoms(child) if isinstance(key, str) and self.hides(key) else self._secrets(child)
        elif isinstance(value, list | tuple):
            for child in cast("list[Any]", value):
                yield from self._secrets(child)


def _atoms(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(cast("Mapping[Any, Any]", value).values())
    if isinstance(value, list | tuple):
        for child in cast("list[Any]", value):
            yield from _atoms(child)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and len(str(value)) >= _SHORTEST:
        yield str(value)
