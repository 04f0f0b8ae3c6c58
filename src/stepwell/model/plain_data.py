"""Records as plain data: what every public record can be turned into for JSON."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any, cast

import msgspec

from stepwell.name_hints import RECORDS, missing_attribute

__all__ = ["PlainRecord", "plain_data"]


class PlainRecord(msgspec.Struct, frozen=True):
    """A record that callers get, with ``to_dict``; notebooks show it as a table."""

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, RECORDS)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table, or the short text of a record that does not show all of itself."""
        from html import escape

        if type(self).__repr__ is not msgspec.Struct.__repr__:
            return f"<code>{escape(repr(self))}</code>"
        rows = ((name, getattr(self, name)) for name in self.__struct_fields__)
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(repr(value))}</td></tr>" for name, value in rows if value is not None)
        return f"<table><caption>{escape(type(self).__name__)}</caption>{''.join(cells)}</table>"

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data that ``json.dumps`` takes: times are ISO 8601 texts in UTC, bytes are base64.

        Example:

            return [record.to_dict() for record in run.steps()]
        """
        return plain_data(self)


def plain_data(value: object) -> Any:
    """Return a value as plain data. Optional fields that have their default may be left out."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, Set):
        return sorted(cast("Set[str]", value))
    if isinstance(value, BaseException):
        return str(value)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict):
        return to_dict()
    raise NotImplementedError(f"{type(value).__name__} has no plain form")
