"""The filter of lists: words such as ``status:FAILED workflow:checkout``, the same in the API and the dashboard.

A value with spaces stands in double quotes. A fault is reported with its column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepwell.errors import Problem
from stepwell.web.problem import HttpProblem

__all__ = ["parse_filter"]

_TERM = re.compile(r'\s*(?P<name>[a-z_]+):(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s"]+))(?=\s|$)')
_LONGEST = 1_000


def parse_filter(text: str, fields: Mapping[str, frozenset[str] | None]) -> dict[str, str]:
    """Return the terms of a filter by field.

    - ``fields``: the fields that may be filtered by, each with its possible values, or None for any.

    Raise ``HttpProblem`` (422) that names the column of the fault.
    """
    found: dict[str, str] = {}
    at = 0
    if len(text) > _LONGEST:
        raise _fault(f"the filter is longer than {_LONGEST:,} characters", _LONGEST)
    while text[at:].strip():
        start = at + len(text[at:]) - len(text[at:].lstrip())
        term = _TERM.match(text, at)
        if term is None:
            raise _fault("a filter has terms such as status:FAILED; put a value with spaces in double quotes", start)
        name = term["name"]
        value = term["quoted"] if term["plain"] is None else term["plain"]
        if name not in fields:
            raise _fault(f"there is no field {name!r}; use {', '.join(fields)}", start)
        if name in found:
            raise _fault(f"the field {name!r} is given twice", start)
        values = fields[name]
        if values is not None and value not in values:
            raise _fault(f"{value!r} is no {name}; use one of {', '.join(sorted(values))}", start + len(name) + 1)
        found[name] = value
        at = term.end()
    return found


def _fault(message: str, at: int) -> HttpProblem:
    detail = f"filter, column {at + 1}: {message}"
    return HttpProblem("invalid", detail, faults=[Problem("invalid", message, "/query/filter")], column=at + 1)
