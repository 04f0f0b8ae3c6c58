"""Errors as the HTTP API returns them: ``application/problem+json`` (RFC 9457), from one table of codes.

An error of Stepwell keeps its code (``SW-...``). What only HTTP knows, such as a missing token, has a code of its own here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepwell import errors
from stepwell.errors import Conflict, LimitExceeded, LockHeld, Problem, StepwellError, ValidationFailed

__all__ = ["KINDS", "HttpProblem", "ProblemKind", "kind_of", "problem_of"]


class ProblemKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of error: its code and status, and whether the same request may succeed later."""

    code: str
    status: int
    title: str
    retryable: bool = False


_HTTP_KINDS = (
    ProblemKind(code="malformed", status=400, title="The request cannot be read."),
    ProblemKind(code="unauthorized", status=401, title="A valid access token or session is needed."),
    ProblemKind(code="forbidden", status=403, title="The role of this token does not allow the request."),
    ProblemKind(code="no_such_route", status=404, title="There is nothing at this address."),
    ProblemKind(code="method_not_allowed", status=405, title="This address does not take this method."),
    ProblemKind(code="not_acceptable", status=406, title="No representation that the client accepts is available."),
    ProblemKind(code="timeout", status=408, title="The request did not arrive in time.", retryable=True),
    ProblemKind(code="in_progress", status=409, title="A request with this Idempotency-Key is still running.", retryable=True),
    ProblemKind(code="not_configured", status=409, title="This server was not set up for that."),
    ProblemKind(code="secret_shown_once", status=409, title="This was done before, and its secret was shown then."),
    ProblemKind(code="gone", status=410, title="This was used, has ended or was removed."),
    ProblemKind(code="precondition_failed", status=412, title="The resource is at another revision."),
    ProblemKind(code="too_large", status=413, title="The request is too large."),
    ProblemKind(code="unsupported_media_type", status=415, title="The body is not JSON in UTF-8."),
    ProblemKind(code="misdirected", status=421, title="This server does not answer for this host."),
    ProblemKind(code="invalid", status=422, title="The request has faults; nothing was written."),
    ProblemKind(code="idempotency_key_reused", status=422, title="The Idempotency-Key was used for another request."),
    ProblemKind(code="precondition_required", status=428, title="The request needs an If-Match header."),
    ProblemKind(code="rate_limited", status=429, title="Too many requests.", retryable=True),
    ProblemKind(code="internal", status=500, title="The server failed; its log has the reason under the request id."),
    ProblemKind(code="busy", status=503, title="The server has no room for this request now.", retryable=True),
)

# An error has the status of its class, or of its nearest base class.
_STATUSES: dict[type[StepwellError], int] = {
    errors.ValidationFailed: 422,
    errors.NotFound: 404,
    errors.ValueErased: 410,
    errors.ExecutionRemoved: 410,
    errors.Conflict: 409,
    errors.ReceiptArchived: 410,
    errors.LeaseLost: 409,
    errors.LockHeld: 409,
    errors.StoreUnavailable: 503,
    errors.Corrupted: 500,
    errors.CommitUnknown: 503,
    errors.StateNewer: 409,
    StepwellError: 500,
}
_RETRYABLE = (errors.LockHeld, errors.StoreUnavailable)
# Limits that free themselves: the same request may be accepted later.
_BUSY_LIMITS = frozenset(("concurrency", "queue_depth"))
_PERMANENT = (errors.StoreForeign, errors.StoreNewer, errors.StoreUnsafe, errors.Corrupted, errors.EncryptionKeyMissing)


def _kind_of_class(kind: type[StepwellError]) -> ProblemKind:
    status = next(_STATUSES[each] for each in kind.__mro__ if each in _STATUSES)
    is_retryable = issubclass(kind, _RETRYABLE) and not issubclass(kind, _PERMANENT)
    title = (kind.__doc__ or kind.__name__).strip().partition("\n")[0]
    return ProblemKind(code=kind.code, status=status, title=title, retryable=is_retryable)


_CLASSES = [
    found for name in errors.__all__ if isinstance(found := getattr(errors, name), type) and issubclass(found, StepwellError)
]

KINDS: Mapping[str, ProblemKind] = {each.code: each for each in (*_HTTP_KINDS, *map(_kind_of_class, _CLASSES))}
"""Every kind of error that the API returns, by its code."""


class HttpProblem(Exception):
    """An error that only HTTP knows: the handler of a request raises it, and the client gets it as a problem."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        *,
        faults: Sequence[Problem] = (),
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        self.kind = KINDS[code]
        self.detail, self.faults, self.headers, self.extra = detail or self.kind.title, tuple(faults), dict(headers or {}), extra
        super().__init__(self.detail)


def kind_of(error: StepwellError) -> ProblemKind:
    """Return the kind of an error of Stepwell."""
    return KINDS.get(type(error).code) or _kind_of_class(type(error))


def problem_of(
    error: HttpProblem | StepwellError, *, instance: str, request_id: str, root: str
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return the status, body and headers of the reply for an error.

    - ``instance``: the path of the request.
    - ``root``: the path under which the API is mounted, for the address of the problem's description.
    """
    if isinstance(error, HttpProblem):
        kind, detail, faults, headers, extra = error.kind, error.detail, error.faults, error.headers, error.extra
    else:
        kind, detail, headers, extra = kind_of(error), error.message, dict[str, str](), dict[str, Any]()
        faults = error.errors if isinstance(error, ValidationFailed) else ()
        if isinstance(error, LimitExceeded) and error.limit in _BUSY_LIMITS:
            kind = msgspec.structs.replace(kind, status=429, retryable=True)
        if isinstance(error, Conflict) and error.actual is not None:
            extra["current_revision"] = error.actual
        if isinstance(error, errors.CommitUnknown) and error.commit_id:
            extra |= {"commit_id": error.commit_id, "execution_id": error.execution_id}
        if isinstance(error, errors.ExecutionRemoved):
            extra |= {
                "removed_ms": error.removed_ms,
                "policy": error.policy,
                "archive": error.archive,
                "has_record": error.has_record,
            }
        if isinstance(error, LockHeld) and error.until_ms is not None:
            extra["held_until_ms"] = error.until_ms
    if kind.retryable:
        headers.setdefault("Retry-After", "1")
    body: dict[str, Any] = {
        "type": f"{root}/api/v1/problems/{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "instance": instance,
        "code": kind.code,
        "retryable": kind.retryable,
        "errors": [{"pointer": each.where, "detail": each.message, "code": each.code} for each in faults],
        "request_id": request_id,
    }
    return kind.status, {**extra, **body}, headers
