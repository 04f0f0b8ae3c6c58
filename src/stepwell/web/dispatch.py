"""Answer one API request: find its route, check who calls and what is sent, run the handler, and encode the reply."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from time import monotonic
from typing import Any, cast
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stepwell.clock import from_ms
from stepwell.errors import Conflict, ExecutionRemoved, StepwellError
from stepwell.model.access import Identity, Role
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.state.history import no_execution
from stepwell.state.request_log import AuditEntry, KeptReply, RequestKey
from stepwell.web.authentication import is_loopback, workspace_of
from stepwell.web.chosen_fields import check_fields, choosable_fields, with_fields
from stepwell.web.hiding import check_not_hidden, hider_of, without_secrets
from stepwell.web.problem import HttpProblem, problem_of
from stepwell.web.request_body import convert, read_json
from stepwell.web.route import Call, Reply, Route, quoted_etag
from stepwell.web.server_state import Server

__all__ = ["API_VERSION", "RequestDispatcher", "perform", "problem_response", "query_of", "request_id_of"]

log = logging.getLogger(__name__)

API_VERSION = "2026-11-01"
_WRITES = frozenset(("POST", "PUT", "DELETE", "PATCH"))
_EXACT = 2**53
_KEY_LENGTH = 255
# Statuses that a retry may change; every other reply of a request with an Idempotency-Key is kept.
_NOT_KEPT = frozenset((401, 403, 408, 409, 429))

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


def request_id_of(request: Request) -> str:
    """Return the id of a request, which its log lines and errors carry."""
    return str(request.scope.get("stepwell.request_id", ""))


def problem_response(request: Request, error: HttpProblem | StepwellError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the reply for an error."""
    root = request.scope.get("root_path", "")
    status, body, more = problem_of(error, instance=request.url.path, request_id=request_id_of(request), root=root)
    found = {**(headers or {}), **more}
    if status == 401:
        found["WWW-Authenticate"] = 'Bearer realm="stepwell"'
    return Response(_encode(body), status, found, "application/problem+json")


class RequestDispatcher:
    """Answers the requests under ``/api/v1``."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def answer(self, request: Request, raw_path: str) -> Any:
        """Return the response of a request, also if handling it fails.

        - ``raw_path``: its path under ``/api/v1``, still percent-encoded.
        """
        began, name = monotonic(), "unknown"
        headers: dict[str, str] = {"Stepwell-Version": API_VERSION, "Cache-Control": "no-store"}
        try:
            if request.method == "OPTIONS" and (allowed := self._server.table.allowed(raw_path)):
                return Response(status_code=204, headers={**headers, "Allow": ", ".join(allowed)})
            route, path = self._server.table.find(request.method, raw_path)
            name = route.name
            response = await self._checked(request, route, path, headers)
        except (HttpProblem, StepwellError) as error:
            response = problem_response(request, error, headers)
        except Exception:
            log.exception("request %s of route %s failed", request_id_of(request), name)
            response = problem_response(request, HttpProblem("internal"), headers)
        self._server.metrics.count(name, response.status_code, monotonic() - began)
        return response

    async def _checked(self, request: Request, route: Route, path: dict[str, str], headers: dict[str, str]) -> Any:
        is_write = route.method in _WRITES
        query = query_of(request)
        identity = None if route.role is None else await self._identity_of(request, route, query)
        asked = query.pop("workspace", None)
        chosen = query.pop("fields", None) if choosable_fields(route) else None
        if identity is None:
            if route.role is not None:
                if "ticket" in query:
                    raise HttpProblem("unauthorized", "this ticket is unknown, expired or was used; ask for another one")
                given = "authorization" in request.headers
                fault = "this token is unknown, expired or revoked" if given else "send `Authorization: Bearer <token>`"
                raise HttpProblem("unauthorized", f"{fault}; make a token with: stepwell token create")
            identity, workspace = Identity(name="", role=Role.VIEWER, workspace=None), DEFAULT_WORKSPACE
        else:
            headers |= self._server.rates.take(identity, is_write=is_write)
            workspace = workspace_of(identity, asked)
            _check_allowed(self._server, request, identity, route)
        _check_accepts(request, route)
        call = Call(
            server=self._server,
            request=request,
            identity=identity,
            workspace=workspace,
            path=path,
            query=convert(query, route.query, is_text=True, what="query"),
            body=await self._body(request, route),
            reason=request.headers.get("stepwell-reason"),
        )
        if not is_write:
            return await self._run(call, route, headers, () if chosen is None else check_fields(route, chosen))
        response = await self._once(call, route, headers)
        await _audit(call, route, response.status_code, f"{request.url.path} {call.about}".strip())
        return response

    async def _identity_of(self, request: Request, route: Route, query: Mapping[str, str]) -> Identity | None:
        """Return the caller of a request; a stream may be opened by a ticket, since a browser sends no header for it."""
        ticket = query.get("ticket") if route.media == "text/event-stream" else None
        if ticket is not None:
            return await self._server.well.access.redeem_stream_ticket(ticket)
        return await self._server.authenticator.identity_of(request)

    async def _body(self, request: Request, route: Route) -> Any:
        limits = self._server.limits
        if route.body is None:
            return None
        return await read_json(request, route.body, limits.body_bytes, limits.body_seconds, is_optional=route.is_body_optional)

    async def _once(self, call: Call, route: Route, headers: dict[str, str]) -> Response:
        """Run a request that changes something; one with an ``Idempotency-Key`` that ran before returns its first reply."""
        key = _key_of(call, route)
        if key is None:
            return await self._reply_or_problem(call, route, headers)
        requests = call.well.requests
        kept = await requests.reply(key)
        if kept is not None:
            return _replayed(kept, key, headers)
        if not route.keeps_replies:
            call.request_key = key
            try:
                return await self._run(call, route, headers)
            except Conflict as error:
                kept = await requests.reply(key)  # the same request ran at this very moment
                if kept is None:
                    return problem_response(call.request, error, headers)
                return _replayed(kept, key, headers)
            except (HttpProblem, StepwellError) as error:
                return problem_response(call.request, error, headers)
        try:
            await requests.reserve(key)
        except Conflict:
            kept = await requests.reply(key)
            return _replayed(kept or KeptReply(key.fingerprint), key, headers)
        try:
            response = await self._reply_or_problem(call, route, headers)
        except BaseException:
            await requests.release(key)
            raise
        if response.status_code < 500 and response.status_code not in _NOT_KEPT:
            is_secret = route.shows_secret and response.status_code < 300
            await requests.keep(key, kept_reply(key, _without_secret(call) if is_secret else response))
        else:
            await requests.release(key)
        return response

    async def _reply_or_problem(self, call: Call, route: Route, headers: dict[str, str]) -> Response:
        try:
            return await self._run(call, route, headers)
        except (HttpProblem, StepwellError) as error:
            return problem_response(call.request, error, headers)

    async def _run(self, call: Call, route: Route, headers: dict[str, str], fields: Sequence[str] = ()) -> Any:
        if route.needs_if_match and "if-match" not in call.request.headers:
            raise HttpProblem("precondition_required", "send If-Match with the ETag that a GET of this resource returned")
        result = await _handled(call, route)
        if not isinstance(result, Reply):
            return result  # a stream
        status = result.status or route.status
        found = {**headers, **result.headers}
        if result.etag is not None:
            found |= {"ETag": quoted_etag(result.etag), "Cache-Control": "private, no-cache"}
            known = call.request.headers.get("if-none-match", "")
            is_read = call.request.method in ("GET", "HEAD")
            if is_read and known and found["ETag"] in [each.strip().removeprefix("W/") for each in known.split(",")]:
                return Response(status_code=304, headers=found)
        if isinstance(result.body, bytes):
            return Response(result.body, status, found, route.media)
        if result.body is None and route.reply is None:
            return Response(status_code=204 if status == 200 else status, headers=found)
        body = with_fields(result.body, fields) if fields else result.body
        return Response(_json(call.request, body), status, found, "application/json")


async def perform(
    server: Server,
    request: Request,
    identity: Identity,
    workspace: str,
    name: str,
    path: Mapping[str, str],
    *,
    query: Mapping[str, str],
    body: Any = None,
    reason: str | None = None,
) -> Reply:
    """Return the reply of a route to a page of the dashboard, after the checks that a request of the API gets.

    - ``identity``, ``workspace``: who looks, and at what; the dashboard has authenticated them.
    - ``path``, ``query``, ``body``: the route's parameters.
    - ``reason``: for the audit, if the route changes something.

    Raise ``HttpProblem`` and errors of Stepwell as the API would return them.
    """
    route = server.table.named(name)
    _check_allowed(server, request, identity, route)
    call = Call(
        server=server,
        request=request,
        identity=identity,
        workspace=workspace,
        path={key: value for key, value in path.items() if key in route.parameters},
        query=convert(query, route.query, is_text=True, what="query"),
        body=None if route.body is None else convert({} if body is None else body, route.body),
        reason=reason,
    )
    if route.method not in _WRITES:
        return await _handled(call, route)
    resource = f"{call.base}{route.path.format(**{key: quote(value, safe='') for key, value in call.path.items()})}"
    try:
        reply: Reply = await _handled(call, route)
    except (HttpProblem, StepwellError) as error:
        await _audit(call, route, problem_of(error, instance="", request_id="", root="")[0], resource)
        raise
    await _audit(call, route, reply.status or route.status, f"{resource} {call.about}".strip())
    return reply


async def _handled(call: Call, route: Route) -> Any:
    """Run a handler, and hide secrets in its reply.

    What retention removed from another workspace is answered like what never was.
    """
    check_not_hidden(call.body)
    try:
        found = await route.handler(call)
    except ExecutionRemoved as error:
        if error.workspace_id != call.workspace:
            raise no_execution(error.execution_id) from None
        raise
    if isinstance(found, Reply):
        call.about = found.about
    if isinstance(found, Reply) and found.body is not None and not isinstance(found.body, bytes):
        found.body = without_secrets(found.body, await hider_of(call.well, call.path.get("execution_id")))
    return found


async def _audit(call: Call, route: Route, status: int, resource: str) -> None:
    entry = AuditEntry(
        entry_id="",
        at=from_ms(0),  # the store sets both
        actor=call.identity.name,
        token_id=call.identity.token_id,
        action=route.name,
        resource=resource,
        status=status,
        reason=call.reason,
        request_id=request_id_of(call.request),
    )
    try:
        await call.well.requests.note(call.workspace, entry)
    except StepwellError as error:
        log.error("the audit lacks request %s (%s by %s): %s", entry.request_id, entry.action, entry.actor, error)


def query_of(request: Request) -> dict[str, str]:
    """Return the parameters of a request's query. Raise ``HttpProblem`` (400) for one that is given twice."""
    text = request.scope.get("query_string", b"").decode("latin-1")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError:
        raise HttpProblem("malformed", "the query cannot be read: it is UTF-8, percent-encoded, of at most 50 fields") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise HttpProblem("malformed", "a parameter of the query is given twice")
    return query


def _check_allowed(server: Server, request: Request, identity: Identity, route: Route) -> None:
    if route.is_store_wide and identity.workspace is not None:
        raise HttpProblem("forbidden", "this needs a token for all of the store: stepwell token create --all-workspaces")
    if route.role is not None and not identity.role.allows(route.role):
        raise HttpProblem("forbidden", f"this needs the role {route.role}, and the token has {identity.role}")
    if route.is_admin_bind and not server.is_admin_open and not is_loopback(request):
        raise HttpProblem(
            "no_such_route", "this is answered on the machine of the server alone, unless it was started with --open-admin"
        )


def _check_accepts(request: Request, route: Route) -> None:
    accept = request.headers.get("accept", "*/*").lower()
    kinds = [each.partition(";")[0].strip() for each in accept.split(",")]
    media = [route.media.partition(";")[0], "application/problem+json"]
    if route.media == "text/event-stream":
        media += ["application/x-ndjson", "application/json"]
    families = {each.partition("/")[0] + "/*" for each in media} | {"*/*", "*"}
    if accept.strip() and not any(kind in media or kind in families for kind in kinds):
        raise HttpProblem("not_acceptable", f"this address returns {media[0]}")


def _key_of(call: Call, route: Route) -> RequestKey | None:
    key = call.request.headers.get("idempotency-key")
    if key is None or route.method != "POST":
        return None
    if not 1 <= len(key) <= _KEY_LENGTH or not key.isprintable():
        raise HttpProblem("malformed", f"an Idempotency-Key has 1 to {_KEY_LENGTH} printable characters")
    said = _encode_sorted(call.body) + b"\n" + call.request.scope.get("query_string", b"")
    where = f"{route.name} {sorted(call.path.items())}"
    return RequestKey(call.workspace, where, key, sha256(said).hexdigest())


def _without_secret(call: Call) -> Response:
    """Return what a repeat of a request gets whose reply had a secret: that it was done, and what to do without the secret."""
    fault = (
        "the first request was done, and no reply with its secret is kept; remove what it made, and make another one with a new key"
    )
    return problem_response(call.request, HttpProblem("secret_shown_once", fault))


def kept_reply(key: RequestKey, response: Response) -> KeptReply:
    """Return a reply as it is kept under its idempotency key."""
    kept = {name: value for name, value in response.headers.items() if name in ("content-type", "location", "etag")}
    return KeptReply(key.fingerprint, response.status_code, kept, bytes(response.body).decode())


def _replayed(kept: KeptReply, key: RequestKey, headers: dict[str, str]) -> Response:
    if kept.fingerprint != key.fingerprint:
        raise HttpProblem("idempotency_key_reused", "this Idempotency-Key was used for a request with another body; use a new one")
    if kept.status == 0:
        raise HttpProblem("in_progress", headers={"Retry-After": "1"})
    return Response(kept.body, kept.status, {**headers, **kept.headers, "Idempotency-Replayed": "true"})


def _json(request: Request, body: Any) -> bytes:
    accept = request.headers.get("accept", "")
    if "ints=string" in accept.replace(" ", ""):
        body = _exact(msgspec.to_builtins(body))
    return _encode(body)


def _exact(value: Any) -> Any:
    """Return a value with integers that JavaScript cannot hold as texts."""
    match value:
        case bool():
            return value
        case int() if not -_EXACT <= value <= _EXACT:
            return str(value)
        case dict():
            return {key: _exact(each) for key, each in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [_exact(each) for each in cast("list[Any]", value)]
        case _:
            return value
