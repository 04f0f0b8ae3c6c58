"""Conditional requests: compare ``If-Match`` and ``If-None-Match`` with a revision."""

from __future__ import annotations

import re

from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call

__all__ = ["check_if_match", "expected_revision"]


def check_if_match(call: Call, revision: str | int | None) -> None:
    """Raise ``HttpProblem`` (412) unless ``If-Match`` names the revision.

    - ``revision``: of the resource; None if there is none yet.
    """
    given = call.request.headers.get("if-match")
    if given is None:
        return
    named = [each.strip() for each in given.split(",")]
    if ("*" in named and revision is not None) or f'"{revision}"' in named:
        return
    raise HttpProblem("precondition_failed", "read the resource again, and decide again", current_revision=revision)


def expected_revision(call: Call) -> int | None:
    """Return the revision that a write requires: 0 for ``If-None-Match: *``, None for ``If-Match: *``.

    Raise ``HttpProblem``: 428 without either header, and 400 for one that is no ETag of this API.
    """
    if call.request.headers.get("if-none-match", "").strip() == "*":
        return 0
    given = call.request.headers.get("if-match")
    if given is None:
        raise HttpProblem("precondition_required", "send If-Match with the ETag of a GET (or *), or If-None-Match: * to create")
    if given.strip() == "*":
        return None
    found = re.fullmatch(r'\s*"(\d{1,18})"\s*', given, re.ASCII)
    if found is None:
        raise HttpProblem("malformed", "If-Match is one ETag as a GET returned it, in double quotes, or *")
    return int(found[1])
