"""The filter of lists: words such as ``status:FAILED age<1h input.user.id:42``, the same in the API and the dashboard.

A value with spaces stands in double quotes. A span is compared: ``age<1h``, ``duration>5s``. A fault is reported with its column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepwell.duration import written_seconds
from stepwell.errors import InvalidInput, Problem
from stepwell.web.problem import HttpProblem

__all__ = ["PATH", "SPAN", "filter_text", "parse_filter"]

SPAN = frozenset(("<", ">"))
"""The values of a field that is a span of time, which is compared."""

PATH = frozenset((".",))
"""The values of a field that is compared at a path inside it, such as ``input.user.id:42``."""

_TERM = re.compile(
    r'\s*(?P<name>[a-z_]+)(?P<path>(?:\.[^\s:<>".]+)*)(?P<sign>[:<>])(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]+))(?=\s|$)'
)
_ESCAPED = re.compile(r'\\(["\\])')
_LONGEST = 1_000


def parse_filter(text: str, fields: Mapping[str, frozenset[str] | None]) -> dict[str, str]:
    """Return the terms of a filter by field; a span is under its field and sign, such as ``age<``, a value at a path with that.

    - ``fields``: the fields that may be filtered by, each with its possible values, None for any, ``SPAN`` or ``PATH``.

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
        value = _ESCAPED.sub(r"\1", term["quoted"]) if term["plain"] is None else term["plain"]
        if name not in fields:
            raise _fault(f"there is no field {name!r}; use {', '.join(fields)}", start)
        values, key = fields[name], name + term["path"] + ("" if term["sign"] == ":" else term["sign"])
        if (values is PATH) is not bool(term["path"]):
            raise _fault(f"write {name}.path.to.it:value" if values is PATH else f"write {name}:value", start)
        if (values is SPAN) is (term["sign"] == ":"):
            raise _fault(f"write {name}<1h or {name}>1h" if values is SPAN else f"write {name}:value", start)
        if key in found:
            raise _fault(f"the field {key!r} is given twice", start)
        if values not in (None, SPAN, PATH) and value not in values and value.upper() in values:
            value = value.upper()
        if values is SPAN:
            _check_span(value, start + len(key))
        elif values not in (None, PATH) and value not in values:
            raise _fault(f"{value!r} is no {name}; use one of {', '.join(sorted(values))}", start + len(name) + 1)
        found[key] = value
        at = term.end()
    return found


def filter_text(terms: Mapping[str, str]) -> str:
    """Return terms as the text of a filter."""
    parts: list[str] = []
    for key, value in terms.items():
        escaped = re.sub(r'(["\\])', r"\\\1", value)
        written = value if value and not re.search(r'[\s"]', value) else f'"{escaped}"'
        parts.append(key + written if key.endswith(("<", ">")) else f"{key}:{written}")
    return " ".join(parts)


def _check_span(value: str, at: int) -> None:
    try:
        written_seconds(value, "the span")
    except InvalidInput as error:
        raise _fault(error.message, at) from None


def _fault(message: str, at: int) -> HttpProblem:
    detail = f"filter, column {at + 1}: {message}"
    return HttpProblem("invalid", detail, faults=[Problem("invalid", message, "/query/filter")], column=at + 1)
