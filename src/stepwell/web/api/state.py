"""Routes of scoped state, conversations and locks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta

from stepwell.app.awaited import AsyncScopedState
from stepwell.errors import Conflict, InvalidInput, NotFound
from stepwell.model.access import Role
from stepwell.model.scope import Scope
from stepwell.model.value import Value
from stepwell.state.conversations import ConversationSummary, Turn
from stepwell.state.remote_locks import RemoteHold
from stepwell.web.paging import Count, CountedQuery, Counting, page_reply, sorted_page
from stepwell.web.preconditions import expected_revision
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES", "scope_name"]

Name = Annotated[str, Meta(min_length=1, max_length=512)]
Ttl = Annotated[int, Meta(ge=1, le=3_153_600_000_000)]
Held = Annotated[int, Meta(ge=1, le=86_400_000)]
_KINDS = ("global", "workspace", "workflow", "step", "conversation", "user", "custom")


class ScopeView(msgspec.Struct, frozen=True, kw_only=True):
    """A scope that holds something."""

    scope: str
    """As it stands in addresses."""
    kind: str
    names: list[str]


class KeyList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a list of keys."""

    prefix: Annotated[str, Meta(max_length=512)] = ""
    """List only keys that begin with this."""
    limit: Count = 50
    cursor: str | None = None


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """A key with its value."""

    key: str
    value: Value
    revision: int
    expires_at: datetime | None = None


class PutEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value to set."""

    value: Value
    """The value."""
    ttl_ms: Ttl | None = None
    """After this time the key is gone; null keeps it for ever."""


class AddNumber(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number to add."""

    by: int | float = 1
    """What to add; a negative number subtracts."""


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """A number after the addition."""

    key: str
    value: int | float


class UserQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user whose conversations to list."""

    user: Name
    """The user whose conversations to list."""
    limit: Count = 50
    cursor: str | None = None
    count: Counting | None = None
    """Count them, too."""


class TurnQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of turns to return, newest last."""

    limit: Count = 50
    """How many turns."""


class ConversationView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a conversation."""

    conversation_id: str
    state: Value


class PutConversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a conversation to save."""

    state: dict[str, Value]
    """The new state."""
    user: Name | None = None
    """The user in whose list the conversation appears."""


class AcquireLock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time to hold a lock."""

    ttl_ms: Held = 30_000
    """How long it is held unless it is renewed."""
    holder: Name | None = None
    """Unique to this acquisition, which makes a retry safe; null: the server chooses one."""


class RenewLock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The holder of a lock, and its time from now."""

    holder: Name
    """As ``acquire_lock`` returned it."""
    fence: int
    """As ``acquire_lock`` returned it."""
    ttl_ms: Held = 30_000
    """How long it is held from now on."""


class ReleaseLock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The holder of a lock."""

    holder: Name
    """As ``acquire_lock`` returned it."""
    fence: int
    """As ``acquire_lock`` returned it."""


def scope_name(scope: Scope) -> str:
    """Return a scope as it stands in addresses: the kind and the names between colons, each percent-encoded."""
    return ":".join((scope.kind, *(quote(name, safe="") for name in scope.names)))


def _state_of(call: Call) -> AsyncScopedState:
    """Return the state that the address names, inside of the caller's workspace."""
    kind, *names = call.path["scope"].split(":")
    if kind not in _KINDS:
        raise HttpProblem("invalid", f"{kind!r} is no kind of scope; use one of {', '.join(_KINDS)}")
    if kind == "global":
        if call.identity.workspace is not None:
            raise HttpProblem("forbidden", "the state of the whole store needs a token for all of the store")
        return call.well.state.globals
    try:
        decoded = tuple(unquote(each, errors="strict") for each in names)
    except UnicodeDecodeError:
        raise InvalidInput("the names of a scope are UTF-8, percent-encoded") from None
    return call.well.state.at(Scope(kind, call.workspace, decoded))


async def list_scopes(call: Call) -> Reply:
    """Return the scopes of the workspace that hold something."""
    found = [
        ScopeView(scope=scope_name(each), kind=each.kind, names=list(each.names))
        for each in await call.well.state.scopes(call.workspace)
    ]
    return await sorted_page(call, found, lambda each: each.scope, "scopes")


async def list_keys(call: Call) -> Reply:
    """Return a page of keys, sorted."""
    query, state = call.query, _state_of(call)
    signer, binding = await call.server.signer(), ["keys", call.workspace, call.path["scope"], query.prefix]
    after = None if query.cursor is None else signer.position(binding, query.cursor)
    found = await state.keys(query.prefix, after=after, limit=query.limit + 1)
    page = found[: query.limit]
    return page_reply(call, page, signer.cursor(binding, page[-1]) if len(found) > len(page) else None)


async def get_entry(call: Call) -> Reply:
    """Return a key with its value."""
    key = call.path["key"]
    entry = await _state_of(call).entry(key)
    if entry is None:
        raise NotFound(f"there is no key {key!r} in this scope")
    return Reply(EntryView(key=key, value=entry.value, revision=entry.revision, expires_at=entry.expires_at), etag=entry.revision)


async def put_entry(call: Call) -> Reply:
    """Set a key."""
    key, body, state = call.path["key"], call.body, _state_of(call)
    expected = expected_revision(call)
    ttl = None if body.ttl_ms is None else body.ttl_ms / 1000
    try:
        if expected is None:
            revision = await state.set(key, body.value, ttl)
        else:
            revision = await state.compare_and_set(key, body.value, revision=expected, ttl=ttl)
    except Conflict as error:
        raise _moved_on(error) from None
    return Reply(EntryView(key=key, value=body.value, revision=revision), etag=revision)


async def delete_entry(call: Call) -> Reply:
    """Delete a key."""
    key = call.path["key"]
    try:
        existed = await _state_of(call).delete(key, revision=expected_revision(call))
    except Conflict as error:
        raise _moved_on(error) from None
    if not existed:
        raise NotFound(f"there is no key {key!r} in this scope")
    return Reply()


def _moved_on(error: Conflict) -> HttpProblem:
    return HttpProblem("precondition_failed", error.message, current_revision=error.actual)


async def increment_entry(call: Call) -> Reply:
    """Add to a number."""
    key = call.path["key"]
    return Reply(Sum(key=key, value=await _state_of(call).increment(key, call.body.by)))


async def list_conversations(call: Call) -> Reply:
    """Return a user's conversations."""
    found = await call.well.conversations.within(call.workspace).of_user(call.query.user)
    return await sorted_page(call, found, lambda each: each.conversation_id, ["conversations", call.query.user])


async def get_conversation(call: Call) -> Reply:
    """Return the state of a conversation."""
    name = call.path["conversation_id"]
    state = await call.well.conversations.within(call.workspace).get(name)
    if state is None:
        raise _no_conversation(name)
    return Reply(ConversationView(conversation_id=name, state=state))


async def put_conversation(call: Call) -> Reply:
    """Save the state of a conversation."""
    name = call.path["conversation_id"]
    await call.well.conversations.within(call.workspace).set(name, call.body.state, user=call.body.user)
    return Reply(ConversationView(conversation_id=name, state=call.body.state))


async def delete_conversation(call: Call) -> Reply:
    """Delete a conversation with its history."""
    name = call.path["conversation_id"]
    if not await call.well.conversations.within(call.workspace).delete(name):
        raise _no_conversation(name)
    return Reply()


def _no_conversation(name: str) -> NotFound:
    return NotFound(f"there is no conversation {name!r}")


async def list_turns(call: Call) -> Reply:
    """Return the last turns of a conversation, in order."""
    found = await call.well.conversations.within(call.workspace).history(call.path["conversation_id"], call.query.limit)
    return Reply(Page(items=found))


async def acquire_lock(call: Call) -> Reply:
    """Acquire a lock."""
    body: AcquireLock = call.body
    return Reply(
        await call.well.locks.acquire(call.path["lock"], workspace=call.workspace, seconds=body.ttl_ms / 1000, holder=body.holder)
    )


async def renew_lock(call: Call) -> Reply:
    """Hold a lock for longer."""
    body: RenewLock = call.body
    hold = await call.well.locks.renew(
        call.path["lock"], workspace=call.workspace, seconds=body.ttl_ms / 1000, holder=body.holder, fence=body.fence
    )
    return Reply(hold)


async def release_lock(call: Call) -> Reply:
    """Release a lock."""
    await call.well.locks.release(call.path["lock"], workspace=call.workspace, holder=call.body.holder, fence=call.body.fence)
    return Reply()


ROUTES = (
    api_route("GET /state", list_scopes, Page[ScopeView], query=CountedQuery),
    api_route("GET /state/{scope}/keys", list_keys, Page[str], query=KeyList),
    api_route("GET /state/{scope}/keys/{key}", get_entry, EntryView),
    api_route(
        "PUT /state/{scope}/keys/{key}",
        put_entry,
        EntryView,
        Role.OPERATOR,
        body=PutEntry,
        conditions=("If-Match", "If-None-Match"),
        example={"value": {"seats": 5}, "ttl_ms": 86400000},
    ),
    api_route("DELETE /state/{scope}/keys/{key}", delete_entry, None, Role.OPERATOR, conditions=("If-Match",)),
    api_route(
        "POST /state/{scope}/keys/{key}/increment",
        increment_entry,
        Sum,
        Role.OPERATOR,
        body=AddNumber,
        is_body_optional=True,
        example={"by": 2},
    ),
    api_route("GET /conversations", list_conversations, Page[ConversationSummary], query=UserQuery),
    api_route("GET /conversations/{conversation_id}", get_conversation, ConversationView),
    api_route(
        "PUT /conversations/{conversation_id}",
        put_conversation,
        ConversationView,
        Role.OPERATOR,
        body=PutConversation,
        example={"state": {"step": "size"}, "user": "ada"},
    ),
    api_route("DELETE /conversations/{conversation_id}", delete_conversation, None, Role.OPERATOR),
    api_route("GET /conversations/{conversation_id}/turns", list_turns, Page[Turn], query=TurnQuery),
    api_route(
        "POST /locks/{lock}/acquire",
        acquire_lock,
        RemoteHold,
        Role.OPERATOR,
        body=AcquireLock,
        is_body_optional=True,
        example={"ttl_ms": 30000, "holder": "worker-7"},
    ),
    api_route(
        "POST /locks/{lock}/renew",
        renew_lock,
        RemoteHold,
        Role.OPERATOR,
        body=RenewLock,
        example={"holder": "worker-7", "fence": 1},
    ),
    api_route(
        "POST /locks/{lock}/release",
        release_lock,
        None,
        Role.OPERATOR,
        body=ReleaseLock,
        example={"holder": "worker-7", "fence": 1},
    ),
)
