"""Records as plain data: what every public record can be turned into for JSON."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from stepwell.name_hints import RECORDS, missing_attribute

__all__ = ["PlainRecord", "Records", "plain_data"]

R = TypeVar("R", bound="PlainRecord")


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


_MOST_ROWS = 200
_MOST_CELL = 80


class Records(list[R]):
    """A list of records, which notebooks show as one table."""

    def _repr_html_(self) -> str:
        """Return a table with a row for each record, and a column for each field that any of them has."""
        from html import escape

        if not self:
            return "<em>nothing</em>"
        rows = self[:_MOST_ROWS]
        names = [name for name in rows[0].__struct_fields__ if any(getattr(each, name) not in _NOTHING for each in rows)]
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(getattr(each, name)))}</td>' for name in names)}</tr>" for each in rows)
        more = f"<caption>the first {_MOST_ROWS} of {len(self):,}</caption>" if len(self) > _MOST_ROWS else ""
        return f"<table>{more}<tr>{head}</tr>{body}</table>"


_NOTHING: tuple[object, ...] = (None, (), "")


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _MOST_CELL else f"{text[: _MOST_CELL - 1]}…"


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
