"""Fields of forms as values: JSON, numbers, spans and times that a person typed. A fault says which field it is in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET

from stepwell.duration import seconds_of
from stepwell.errors import InvalidInput, Problem
from stepwell.model.value import parse
from stepwell.web.problem import HttpProblem

__all__ = ["field_fault", "json_field", "moment_field", "number_field", "span_ms_field"]


def field_fault(name: str, message: str) -> HttpProblem:
    """Return the error (422) for a field."""
    return HttpProblem("invalid", f"{name}: {message}", faults=[Problem("invalid", message, f"/{name}")])


def json_field(form: Mapping[str, str], name: str) -> Any:
    """Return the JSON value of a field; UNSET if it is empty."""
    text = form.get(name, "").strip()
    if not text:
        return UNSET
    try:
        return parse(text, what=name)
    except InvalidInput as error:
        raise field_fault(name, f"{error.message}; a text stands in double quotes") from None


def number_field(form: Mapping[str, str], name: str) -> int | float | None:
    """Return the number of a field; None if it is empty."""
    text = form.get(name, "").strip().replace(",", "")
    if not text:
        return None
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        raise field_fault(name, f"{text!r} is no number") from None


def span_ms_field(form: Mapping[str, str], name: str) -> int | None:
    """Return the span of a field, such as 7d, in milliseconds; None if it is empty."""
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        return round(seconds_of(text, name) * 1000)
    except InvalidInput as error:
        raise field_fault(name, error.message) from None


def moment_field(form: Mapping[str, str], name: str) -> datetime:
    """Return the time of a field, as browsers send it, in UTC."""
    text = form.get(name, "").strip()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise field_fault(name, "give a day and time, such as 2026-11-19T03:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
