"""Conversations: state and history that expire a day after their last use, with one turn at a time."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from time import monotonic
from typing import Any, TypeVar

import msgspec

from stepwell.clock import Clock, from_ms
from stepwell.duration import Span, held_seconds
from stepwell.errors import Conflict, InvalidInput
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import internal_path
from stepwell.model.scoped_operations import ABSENT, Clear, Delete, Put, StateOp, StoredEntry, Touch
from stepwell.model.value import Value, canonical, decode, from_value, recode
from stepwell.pipeline.operations import Operation, read
from stepwell.state.locks import HeldLock, guards_of
from stepwell.state.scoped_state import StateOperations, must_slide

__all__ = [
    "DAY_SECONDS",
    "Answer",
    "AsyncTurnFunction",
    "ConversationOperations",
    "ConversationSummary",
    "OpenTurn",
    "Turn",
    "TurnFunction",
    "TurnResult",
    "check_called",
    "check_runnable",
]

T = TypeVar("T")
Raw = msgspec.Raw
DAY_SECONDS = 24 * 3600.0

_STATE, _ABOUT, _HISTORY = "state", "about", "history/"

# Turns are stored in chunks: a long history must not exceed the limit of one value, nor take one row per turn.
_CHUNK_TURNS = 50
_CHUNK_BYTES = 64 * 1024


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a conversation beside its state."""

    user: str | None = None
    turns: int = 0
    updated_ms: int = 0
    last_turn_ms: int = 0
    progress: float | None = None
    chunk: int = 0


class Answer(PlainRecord, frozen=True):
    """The result of a turn's function.

    - ``reply``: the answer to the message; it is kept in the history.
    - ``collected``: keys and values to merge into the conversation's state.
    - ``progress``: how far the conversation is, from 0 to 1, or None.
    """

    reply: Value = None
    """The answer to the message; it is kept in the history."""
    collected: Mapping[str, Value] = {}
    """Keys and values to merge into the conversation's state."""
    progress: float | None = None
    """How far the conversation is, from 0 to 1, or None."""


class Turn(PlainRecord, frozen=True):
    """One message and its reply, as the history keeps them."""

    number: int
    message: Value
    reply: Value
    at: datetime
    duration_ms: int


class TurnResult(PlainRecord, frozen=True):
    """The result of ``conversations.turn``: the reply, the state afterwards, the stored turn, and the progress."""

    reply: Value
    state: dict[str, Value]
    turn: Turn
    progress: float | None


class ConversationSummary(PlainRecord, frozen=True):
    """A conversation in the list of its user."""

    conversation_id: str
    updated_at: datetime


class OpenTurn(msgspec.Struct, frozen=True):
    """A turn under way: what was loaded, and when it began."""

    conversation_id: str
    state: dict[str, Value]
    about: About
    revision: int
    """The revision of the stored `About`: the save lands only if it is still the same."""
    chunk: list[Value]
    user: str | None
    began: float


class _TurnUnderWay:
    """A turn that this thread or task is inside of, until ``is_over``: a task that it started may live longer."""

    __slots__ = ("is_over", "place")

    def __init__(self, place: tuple[object, str]) -> None:
        self.place, self.is_over = place, False


_turns: ContextVar[tuple[_TurnUnderWay, ...]] = ContextVar("stepwell_turns", default=())


class ConversationOperations:
    """Operations on the conversations of one workspace."""

    def __init__(self, shared: StateOperations, clock: Clock, workspace: str, ttl_seconds: float) -> None:
        self._shared, self._store, self._limits, self._clock = shared, shared.store, shared.limits, clock
        self.workspace, self._ttl_ms = check_key(workspace, "a workspace id"), round(ttl_seconds * 1000)

    def within(self, workspace: str) -> ConversationOperations:
        """Return the operations on the conversations of another workspace."""
        return ConversationOperations(self._shared, self._clock, workspace, self._ttl_ms / 1000)

    def lasting(self, ttl: Span) -> ConversationOperations:
        """Return the same operations with another TTL."""
        return ConversationOperations(self._shared, self._clock, self.workspace, held_seconds(ttl, "ttl"))

    def get(self, conversation_id: str, kind: type[Any] | None = None) -> Operation[Any]:
        """Return the state of a conversation, as an instance of a class if one is given, or None; restart its TTL."""
        found = yield from self._rows(conversation_id, _STATE, _ABOUT)
        yield from self._slide(conversation_id, found.get(_ABOUT))
        value = _value(found.get(_STATE)) if _ABOUT in found else None
        return value if kind is None or value is None else from_value(value, kind)

    def set(self, conversation_id: str, state: Mapping[str, Value], user: str | None, lock: HeldLock | None) -> Operation[None]:
        """Save a state, and restart the conversation's TTL."""
        if not isinstance(state, Mapping):
            raise InvalidInput(f"the state of a conversation is a dict, not {type(state).__name__}")
        while True:
            found = yield from self._rows(conversation_id, _ABOUT)
            before = _about(found.get(_ABOUT))
            about = msgspec.structs.replace(before, user=user or before.user, updated_ms=self._clock.now_ms())
            ops = self._state_ops(conversation_id, dict(state), before, about, _revision(found.get(_ABOUT)))
            ops += self._touch_chunks(conversation_id, about, self._ttl_ms)
            try:
                yield from self._shared.write(*ops, guards=guards_of(lock))
            except Conflict:
                # A turn was saved in between. Start again, so that its history is kept.
                continue
            return

    def delete(self, conversation_id: str) -> Operation[bool]:
        """Delete a conversation with its history; return whether there was one."""
        found = yield from self._rows(conversation_id, _ABOUT)
        about = _about(found.get(_ABOUT))
        ops: list[StateOp] = [Clear(self._path(conversation_id))]
        if about.user is not None:
            ops.append(Delete(self._user_path(about.user), conversation_id))
        yield from self._shared.write(*ops)
        return _ABOUT in found

    def history(self, conversation_id: str, limit: int | None) -> Operation[list[Turn]]:
        """Return the turns in order; with a limit, the last ones."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidInput(f"limit is a whole number, 0 or more, not {limit!r}")
        path = self._path(conversation_id)
        found = yield from self._rows(conversation_id, _ABOUT)
        yield from self._slide(conversation_id, found.get(_ABOUT))
        rows = yield from read(lambda: self._store.scan(path, prefix=_HISTORY, limit=self._limits.scope_keys))
        # Chunks of an earlier conversation with this id may outlive the rest of it; they are not part of this one.
        own = set(_chunk_keys(_about(found.get(_ABOUT))))
        turns = [from_value(each, Turn) for key, row in rows if key in own for each in decode(row.data or b"[]")]
        return turns if limit is None else turns[max(len(turns) - limit, 0) :]

    def of_user(self, user: str) -> Operation[list[ConversationSummary]]:
        """Return a user's conversations, the most recently used first."""
        path = self._user_path(user)
        rows = yield from read(lambda: self._store.scan(path, limit=self._limits.scope_keys))
        found = [ConversationSummary(key, from_ms(decode(row.data or b"0"))) for key, row in rows]
        return sorted(found, key=lambda summary: (summary.updated_at, summary.conversation_id), reverse=True)

    @contextmanager
    def only_turn(self, conversation_id: str) -> Generator[None]:
        """Mark a turn of a conversation as under way. Raise ``InvalidInput`` inside another one, which this would wait for."""
        place, around = (self._store, self._path(conversation_id)), _turns.get()
        if any(each.place == place and not each.is_over for each in around):
            raise InvalidInput(
                f"a turn of conversation {conversation_id!r} is under way around this one, which would wait for itself; call the "
                "function of the turn directly, or take the next turn when this one has ended"
            )
        turn = _TurnUnderWay(place)
        token = _turns.set((*around, turn))
        try:
            yield
        finally:
            turn.is_over = True
            _turns.reset(token)

    def open_turn(self, conversation_id: str, user: str | None, message: Value) -> Operation[OpenTurn]:
        """Load what a turn needs, and refuse now what could not be saved afterwards."""
        canonical(message, self._limits, what="the message")
        if user is not None:
            user = check_key(user, "a user")
        found = yield from self._rows(conversation_id, _ABOUT)
        about, revision = _about(found.get(_ABOUT)), _revision(found.get(_ABOUT))
        yield from self._slide(conversation_id, found.get(_ABOUT))
        # A new conversation takes nothing over that is left of an earlier one.
        parts = _STATE, *_chunk_keys(about)[-1:]
        found = {} if revision == ABSENT else (yield from self._rows(conversation_id, *parts))
        state: dict[str, Value] = _value(found.get(_STATE)) or {}
        chunk: list[Value] = _value(found.get(_chunk_key(about.chunk))) or []
        return OpenTurn(conversation_id, state, about, revision, chunk, user or about.user, monotonic())

    def close_turn(self, turn: OpenTurn, lock: HeldLock, message: Value, answer: object) -> Operation[TurnResult]:
        """Merge what was collected, and save state and history together if the lock is still held."""
        checked = _check_answer(answer)
        took_ms = round((monotonic() - turn.began) * 1000)
        now = self._clock.now_ms()
        record = Turn(turn.about.turns + 1, message, checked.reply, from_ms(now), took_ms)
        state = {**turn.state, **checked.collected}
        chunk, number = _append(turn.chunk, turn.about.chunk, _record(record), self._limits)
        about = About(turn.user, record.number, now, took_ms, checked.progress, number)
        ops = self._state_ops(turn.conversation_id, state, turn.about, about, turn.revision)
        ops += self._touch_chunks(turn.conversation_id, about, self._ttl_ms)
        ops.append(self._put(self._path(turn.conversation_id), _chunk_key(number), chunk))
        try:
            yield from self._shared.write(*ops, guards=guards_of(lock))
        except Conflict as conflict:
            raise _interfered(turn.conversation_id, conflict) from None
        return TurnResult(checked.reply, state, record, checked.progress)

    def _state_ops(
        self, conversation_id: str, state: dict[str, Value], before: About, about: About, revision: int
    ) -> list[StateOp]:
        """Return the operations that save a state if no other was saved since the revision."""
        path = self._path(conversation_id)
        kept = msgspec.structs.replace(self._put(path, _ABOUT, msgspec.to_builtins(about)), expected=revision)
        ops: list[StateOp] = [kept, self._put(path, _STATE, state)]
        if before.user is not None and before.user != about.user:
            ops.append(Delete(self._user_path(before.user), conversation_id))
        if about.user is not None:
            ops.append(self._put(self._user_path(about.user), conversation_id, about.updated_ms))
        return ops

    def _touch_chunks(self, conversation_id: str, about: About, ttl_ms: int | None = None) -> list[StateOp]:
        path = self._path(conversation_id)
        return [Touch(path, key, ttl_ms) for key in _chunk_keys(about)]

    def _slide(self, conversation_id: str, row: StoredEntry | None) -> Operation[None]:
        """Restart the TTL of all parts of a conversation if enough of it has passed: they must expire together."""
        if row is None or not must_slide(row, self._clock.now_ms()):
            return
        path, about = self._path(conversation_id), _about(row)
        ops = [Touch(path, _STATE), Touch(path, _ABOUT), *self._touch_chunks(conversation_id, about)]
        if about.user is not None:
            ops.append(Touch(self._user_path(about.user), conversation_id))
        yield from self._shared.write(*ops)

    def _put(self, path: str, key: str, value: Value) -> Put:
        data = canonical(value, self._limits, what=f"the {key} of the conversation")
        return Put(path, key, Raw(data), ttl_ms=self._ttl_ms, sliding=True)

    def _rows(self, conversation_id: str, *keys: str) -> Operation[dict[str, StoredEntry]]:
        path = self._path(conversation_id)
        return (yield from read(lambda: self._store.entries(path, keys)))

    def _path(self, conversation_id: str) -> str:
        return internal_path("conversation_record", self.workspace, conversation_id)

    def _user_path(self, user: str) -> str:
        return internal_path("conversation_index", self.workspace, user)


def _interfered(conversation_id: str, conflict: Conflict) -> Conflict:
    who = "by a caller without its lock; nothing of the turn was saved"
    message = f"conversation {conversation_id!r} was saved or deleted during the turn, {who}"
    return Conflict(message, expected=conflict.expected, actual=conflict.actual)


TurnFunction = Callable[[dict[str, Value], Value], Answer]
AsyncTurnFunction = Callable[[dict[str, Value], Value], Awaitable[Answer]]
"""The function that answers one message: it gets the conversation's state and the message, and returns an `Answer`."""


def check_runnable(run: object) -> None:
    """Raise ``InvalidInput`` for a turn's function that cannot be called, before its conversation is locked."""
    if not callable(run):
        raise InvalidInput(f"a turn is run by a function of state and message, not {run!r}")


def check_called(given: T, kind: object) -> T:
    """Return what a turn's function gave when it was called.

    Raise ``InvalidInput`` if it is a plain function where an ``AsyncTurnFunction`` is needed, or the other way round.
    """
    if inspect.isawaitable(given) == (kind is AsyncTurnFunction):
        return given
    if inspect.iscoroutine(given):
        given.close()  # or Python would warn that it was never awaited
    needed, other = ("async def", "Stepwell") if kind is AsyncTurnFunction else ("plain def", "AsyncStepwell")
    raise InvalidInput(f"the function of a turn is {needed} here; the other kind is for {other}")


def _check_answer(answer: object) -> Answer:
    if not isinstance(answer, Answer):
        raise InvalidInput(f"the function of a turn gives back an Answer, not {type(answer).__name__}")
    if not isinstance(answer.collected, Mapping):
        raise InvalidInput(f"what a turn collected is a dict, not {type(answer.collected).__name__}")
    progress = answer.progress
    if progress is not None and (isinstance(progress, bool) or not isinstance(progress, int | float) or not 0 <= progress <= 1):
        raise InvalidInput(f"progress is a number from 0 to 1, not {progress!r}")
    return answer


def _record(turn: Turn) -> Value:
    """Return a turn as it is stored, with the message and reply unchanged, so that the rules of values apply to them."""
    at = msgspec.to_builtins(turn.at)
    return {"number": turn.number, "message": turn.message, "reply": turn.reply, "at": at, "duration_ms": turn.duration_ms}


def _append(chunk: list[Value], number: int, record: Value, limits: Limits) -> tuple[list[Value], int]:
    """Return the chunk that a turn goes to, and its number: the last one, or a new one when that is full."""
    longer = [*chunk, record]
    most_bytes = min(_CHUNK_BYTES, limits.value_bytes)
    # The 1 is a comma. A chunk that is over a limit that was lowered since stays as it is, and the turn is not refused for it.
    if len(longer) > _CHUNK_TURNS or (chunk and len(recode(chunk)) + 1 + len(canonical(record, limits)) > most_bytes):
        return [record], number + 1
    return longer, number


def _chunk_key(number: int) -> str:
    return f"{_HISTORY}{number:08d}"


def _chunk_keys(about: About) -> list[str]:
    """Return the keys of a history's chunks, oldest first."""
    return [_chunk_key(number) for number in range(about.chunk + 1) if about.turns]


def _value(row: StoredEntry | None) -> Value:
    return None if row is None or row.data is None else decode(row.data)


def _about(row: StoredEntry | None) -> About:
    value = _value(row)
    return About() if value is None else from_value(value, About)


def _revision(row: StoredEntry | None) -> int:
    return ABSENT if row is None else row.revision
