"""Replies with only the fields that the query names: ``?fields=execution_id,status``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_args, get_origin

import msgspec

from stepwell.web.problem import HttpProblem
from stepwell.web.route import Page, Route

__all__ = ["check_fields", "choosable_fields", "with_fields"]


def choosable_fields(route: Route) -> tuple[str, ...]:
    """Return the fields of a route's reply, or of the items of its list; empty if nothing can be chosen."""
    if route.method != "GET" or route.role is None or route.media != "application/json":
        return ()
    kind: Any = get_args(route.reply)[0] if get_origin(route.reply) is Page else route.reply
    is_record = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return cast("type[msgspec.Struct]", kind).__struct_fields__ if is_record else ()


def check_fields(route: Route, text: str) -> list[str]:
    """Return the fields that a query names. Raise ``HttpProblem`` (422) for one that the reply does not have."""
    known, names = choosable_fields(route), text.split(",")
    for name in names:
        if name not in known:
            raise HttpProblem("invalid", f"fields: there is no field {name!r}; use some of {', '.join(known)}, with commas")
    return names


def with_fields(body: Any, names: Sequence[str]) -> Any:
    """Return the body of a reply with these fields alone; a list keeps what leads to its next page."""
    plain = cast("dict[str, Any]", msgspec.to_builtins(body))
    if isinstance(body, Page):
        return {**plain, "items": [_with(each, names) for each in plain["items"]]}
    return _with(plain, names)


def _with(item: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: item[name] for name in names if name in item}
