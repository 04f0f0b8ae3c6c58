"""Conditional requests: compare ``If-Match`` and ``If-None-Match`` with a revision."""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call

__all__ = ["check_edit", "check_if_match", "etag_of", "expected_revision"]


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


def etag_of(settings: object) -> str:
    """Return the ETag of settings that have no revision of their own: a digest of them."""
    return sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()[:32]


def check_edit(call: Call, etag: str | None, *, is_new: bool = False) -> None:
    """Raise ``HttpProblem`` unless the caller knows what it replaces: 428 without ``If-Match``, 412 if it was changed meanwhile.

    - ``etag``: of what is there; None if there is nothing yet.
    - ``is_new``: whether what is there was never set up. That needs no header, and nothing neither.
    """
    is_new = is_new or etag is None
    if call.request.headers.get("if-none-match", "").strip() == "*":
        if not is_new:
            raise HttpProblem("precondition_failed", "this exists already; read it, and change it with If-Match")
    elif "if-match" in call.request.headers:
        check_if_match(call, etag)
    elif not is_new:
        raise HttpProblem(
            "precondition_required", "send If-Match with the ETag of a GET, so that no change of another is lost, or *"
        )


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
