"""Records of an execution's state: identity, trigger, step outputs, loops, tokens and cancel scopes."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, cast

import msgspec

from stepwell.clock import to_ms
from stepwell.errors import InvalidInput
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.plain_data import PlainRecord
from stepwell.model.state_versions import FIRST_VERSION
from stepwell.model.status import Status, StepStatus
from stepwell.model.value import DEFAULT_LIMITS, Value, canonical, decode

__all__ = [
    "COMPENSATION",
    "ERASED_INPUT",
    "MANUAL",
    "OWN_METADATA",
    "UNREADABLE_INPUT",
    "CancelScope",
    "EventTrigger",
    "FunctionTrigger",
    "ItemInput",
    "LoopContext",
    "ManualTrigger",
    "Metadata",
    "Presence",
    "ScheduleTrigger",
    "StepOutput",
    "Token",
    "Trigger",
    "WebhookTrigger",
    "decode_loop",
    "decode_metadata",
    "decode_scope",
    "decode_status",
    "decode_step",
    "decode_token",
    "decode_trigger",
    "encode_loop",
    "encode_plain_trigger",
    "encode_record",
    "encode_step",
    "encode_token",
    "encode_trigger",
    "governed_input",
    "not_undone",
    "overran",
    "plain_input",
    "split_input",
    "summary_line",
    "trigger_input",
    "typed_trigger",
    "value_of_trigger",
]

OWN_METADATA = ("shares_context", "$crashes")
"""The keys in the free metadata of an execution that the engine keeps there: whether it gives its context back, and its crashes."""

COMPENSATION = "$compensation"
"""The token of a function's run whose compensation has begun, and its field with the final result."""

MANUAL = "manual"
"""The workflow id of an execution whose state is driven by hand."""


class Metadata(PlainRecord, frozen=True, omit_defaults=True):
    """The identity of an execution; fixed when it is created."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    version: int
    started_at: datetime
    workflow_name: str | None = None
    parent_id: str | None = None
    trace_id: str | None = None
    is_child: bool = False
    """Whether the parent waits for it; the parent of a fork does not."""
    deadline_ms: int | None = None
    """The deadline, in milliseconds since 1970."""
    governance: dict[str, Any] | None = None
    """Its budget and allowed effects; see ``flow.governance``."""
    item_id: str | None = None
    """The queue item that it came from."""
    depth: int = 0
    """The number of executions that it is nested in: 0 for one that is no child."""
    is_hand_driven: bool = False
    """Whether transactions drive it, though it names a workflow; one of the workflow ``manual`` is driven so anyway."""
    engine: str | None = None
    """The engine that runs it, by name; None for the workers of Stepwell."""
    state_version: int = FIRST_VERSION
    """The version of its context and variables, for state migrations."""
    subject: str | None = None
    """The person or thing whose data it holds. It is stored only encrypted."""
    data_key: str | None = None
    """The id of the data key of its subject, under which everything of it is encrypted."""
    secrets: tuple[str, ...] | None = None
    """Names of keys and fields whose values are shown nowhere."""
    salt: str | None = None
    """Random, in an encrypted store: without it the digests of states would let short values be guessed."""
    root_id: str | None = None
    """The execution in whose slot it runs, if that is not its parent; see ``root_of``."""

    def __post_init__(self) -> None:
        for what in ("execution_id", "workspace_id", "workflow_id"):
            given = getattr(self, what)
            if (text := check_key(given, what)) is not given:
                msgspec.structs.force_setattr(self, what, text)
        _whole(self.version, "version")
        if (moment := _utc(self.started_at, "started_at")) is not self.started_at:
            msgspec.structs.force_setattr(self, "started_at", moment)


def root_of(identity: Metadata) -> str:
    """Return the id of the execution in whose slot an execution runs: its own, if it is no child or was detached."""
    if not identity.is_child or not identity.depth:
        return identity.execution_id
    if identity.depth == 1 and identity.root_id is None and identity.parent_id is not None:
        return identity.parent_id
    return identity.root_id or identity.execution_id  # children of an earlier version know no root further up


def overran(identity: Metadata) -> str:
    """Return what to say of an execution whose time is over: which limit it was, and how long."""
    seconds = ((identity.deadline_ms or 0) - to_ms(identity.started_at)) / 1000
    budget = (identity.governance or {}).get("seconds")
    limit = "the budget Governance(seconds=...)" if budget is not None and abs(budget - seconds) < 0.01 else "its timeout"
    return f"the run took longer than {seconds:g} s, {limit}"


class StepOutput(PlainRecord, frozen=True, omit_defaults=True):
    """The output of a step, recorded once. Errors are not outputs: a step that raised has none."""

    node_id: str
    node_name: str
    status: str
    output: Value
    executed_at: datetime
    duration_ms: int
    digest: str | None = None
    """Of the step's name and arguments, for a call with a key: the same key stands for no other call."""
    call_key: str | None = None
    """The key of the user's own, for a call of a declared workflow that has one."""
    summary: str | None = None
    """One line for people about this call, if the workflow gives one."""


_LONGEST_SUMMARY = 200


def not_undone(result: Any) -> str:
    """Return the end of the message about a run that names what its compensations left behind; empty if they all succeeded."""
    ended: dict[str, Any] = result or {}
    failed: dict[str, Any] = ended.get("compensation", {}).get("failed", {})
    return f"; not undone, since their compensation failed: {', '.join(map(repr, failed))}" if failed else ""


def summary_line(text: object) -> str | None:
    """Return a summary as it is stored: one line, cut to 200 characters; None if nothing is left."""
    line = " ".join(str(text).split()).encode("utf-8", "replace").decode()  # a half of a surrogate pair cannot be stored
    return (line if len(line) <= _LONGEST_SUMMARY else f"{line[: _LONGEST_SUMMARY - 1]}…") or None


class LoopContext(PlainRecord, frozen=True):
    """The position of a loop; replaced at each iteration."""

    loop_id: str
    current_index: int
    current_item: Value
    total_items: int | None


class Presence(StrEnum):
    """The state of a token or cancel scope: live, or cancelled."""

    ACTIVE = "active"
    CANCELLED = "cancelled"


class Token(PlainRecord, frozen=True):
    """A control-flow token: a node that an execution has reached, inside a cancel scope, with a value."""

    token_id: str
    node: str
    scope: str = "root"
    value: Value = None
    status: Presence = Presence.ACTIVE

    def replace(self, **changes: Any) -> Token:
        """Return the same token with some fields changed.

        - ``changes``: the new values by field.
        """
        return msgspec.structs.replace(self, **changes)


class CancelScope(PlainRecord, frozen=True):
    """A region of an execution that is cancelled as one; scopes form a tree under ``root``."""

    scope_id: str
    parent: str | None
    status: Presence = Presence.ACTIVE


class EventTrigger(PlainRecord, frozen=True, tag="event", tag_field="kind"):
    """An event of an entity, which started the run."""

    type: str
    entity: Value = None
    previous: Value = None


class WebhookTrigger(PlainRecord, frozen=True, tag="webhook", tag_field="kind"):
    """An HTTP request came in."""

    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: Value = None
    query: dict[str, str] = msgspec.field(default_factory=dict)


class ScheduleTrigger(PlainRecord, frozen=True, tag="schedule", tag_field="kind"):
    """A schedule fired."""

    scheduled_at: datetime
    """The tick, however late the run began."""
    cron: str | None = None
    """The schedule's cron expression, if it has one."""
    every: float | None = None
    """The schedule's interval in seconds, if it has one."""


class FunctionTrigger(PlainRecord, frozen=True, tag="function", tag_field="kind"):
    """A workflow called it as its child, or it was called by arguments."""

    arguments: Value


class ManualTrigger(PlainRecord, frozen=True, tag="manual", tag_field="kind"):
    """A person, or code that says no more, asked for it."""

    value: Value = None


Trigger = EventTrigger | WebhookTrigger | ScheduleTrigger | FunctionTrigger | ManualTrigger


class _PlainTrigger(msgspec.Struct, frozen=True, tag="plain", tag_field="kind"):
    """A trigger that is a bare value; decoding returns that value."""

    value: Value


_encode = msgspec.json.Encoder(order="deterministic").encode
encode_record = _encode
decode_metadata = msgspec.json.Decoder(Metadata).decode
decode_status = msgspec.json.Decoder(Status).decode
decode_step = msgspec.json.Decoder(StepOutput).decode
decode_loop = msgspec.json.Decoder(LoopContext).decode
decode_token = msgspec.json.Decoder(Token).decode
decode_scope = msgspec.json.Decoder(CancelScope).decode
_decode_trigger = msgspec.json.Decoder(Trigger | _PlainTrigger).decode
_STEP_STATUSES = frozenset(StepStatus)
_PRESENCES = frozenset(Presence)
_UNLIMITED = Limits(value_bytes=2**53, depth=10_000)


def encode_step(step: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return the canonical bytes of a step output, checked."""
    if not isinstance(step, StepOutput):
        raise InvalidInput(f"a step is recorded as a StepOutput, not {type(step).__name__}")
    check_key(step.node_id, "node_id", limits.key_bytes)
    check_key(step.node_name, "node_name", limits.key_bytes)
    if step.status not in _STEP_STATUSES:
        raise InvalidInput(f"{step.status!r} is no status of a step; use one of {', '.join(StepStatus)}")
    moment = _utc(step.executed_at, "executed_at")
    _whole(step.duration_ms, "duration_ms")
    name = step.node_name
    output = canonical(step.output, limits, what=f"the output of step {name!r}")
    return _encode(StepOutput(step.node_id, name, str(step.status), msgspec.Raw(output), moment, step.duration_ms))


def encode_loop(loop: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return the canonical bytes of a loop context, checked."""
    if not isinstance(loop, LoopContext):
        raise InvalidInput(f"a loop is described by a LoopContext, not {type(loop).__name__}")
    check_key(loop.loop_id, "loop_id", limits.key_bytes)
    _whole(loop.current_index, "current_index")
    if loop.total_items is not None:
        _whole(loop.total_items, "total_items")
    item = msgspec.Raw(canonical(loop.current_item, limits, what=f"the item of loop {loop.loop_id!r}"))
    return _encode(msgspec.structs.replace(loop, current_item=item))


def encode_token(token: Token, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return the canonical bytes of a token, checked."""
    check_key(token.token_id, "token_id", limits.key_bytes)
    check_key(token.node, "node", limits.key_bytes)
    check_key(token.scope, "scope", limits.key_bytes)
    if token.status not in _PRESENCES:
        raise InvalidInput(f"{token.status!r} is no status of a token; use one of {', '.join(Presence)}")
    value = msgspec.Raw(canonical(token.value, limits, what=f"the value of token {token.token_id!r}"))
    return _encode(msgspec.structs.replace(token, value=value))


def encode_trigger(trigger: object, limits: Limits = DEFAULT_LIMITS, *, input: bytes | None = None) -> bytes:
    """Return the canonical bytes of a trigger: one of the typed ones, or any plain value.

    - ``input``: the run's input as canonical bytes, stored with a typed trigger.
    """
    if isinstance(trigger, Trigger):
        fields = cast("dict[str, Value]", _plain_trigger(trigger, limits))
        if input is None:
            return canonical(fields, limits, what="the trigger")
        return canonical({**fields, "input": decode(input)}, _UNLIMITED)  # each of the two is within the limits
    return _encode(_PlainTrigger(msgspec.Raw(canonical(trigger, limits, what="the trigger"))))


def encode_plain_trigger(data: bytes) -> bytes:
    """Return the canonical bytes of a trigger that is a plain value, from the canonical bytes of that value."""
    return _encode(_PlainTrigger(msgspec.Raw(data)))


def _plain_trigger(trigger: Trigger, limits: Limits) -> Value:
    """Return a typed trigger as a plain value. Refuse fields that would come back changed or not at all."""
    if isinstance(trigger, ScheduleTrigger):
        trigger = msgspec.structs.replace(trigger, scheduled_at=_utc(trigger.scheduled_at, "scheduled_at"))
    for name in ("entity", "previous", "body", "arguments", "value"):
        canonical(getattr(trigger, name, None), limits, what=f"the trigger's {name}")
    try:
        plain = msgspec.to_builtins(trigger)
        msgspec.convert(plain, Trigger)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"the trigger has a field of the wrong type: {error}") from None
    return plain


def decode_trigger(data: bytes) -> Trigger | Value:
    """Return the trigger that ``encode_trigger`` was given."""
    trigger = _decode_trigger(data)
    return trigger.value if isinstance(trigger, _PlainTrigger) else trigger


def typed_trigger(data: bytes | None, *, is_child: bool = False) -> Trigger:
    """Return what started an execution, as a typed trigger.

    - ``data``: what is stored; None for an execution without a trigger.
    - ``is_child``: whether another execution called it.
    """
    found = None if data is None else decode_trigger(data)
    if isinstance(found, Trigger):
        return found
    return FunctionTrigger(found) if is_child else ManualTrigger(found)


def trigger_input(data: bytes) -> FunctionTrigger | Value:
    """Return the input of the execution that a stored trigger has started; a ``FunctionTrigger`` for arguments by name."""
    found = decode_trigger(data)
    if not isinstance(found, Trigger):
        return found
    fields: dict[str, Value] = decode(data)
    if "input" in fields:
        return fields["input"]
    return found if isinstance(found, FunctionTrigger) else value_of_trigger(found)


def value_of_trigger(trigger: Trigger) -> Value:
    """Return the value in a typed trigger that is the input of a run which was given no other; None for a schedule's."""
    match trigger:
        case EventTrigger():
            return trigger.entity
        case WebhookTrigger():
            return trigger.body
        case FunctionTrigger():
            return trigger.arguments
        case ManualTrigger():
            return trigger.value
        case ScheduleTrigger():
            return None


ERASED_INPUT = b""
"""The input of a queue item whose key was erased."""

UNREADABLE_INPUT = b"\0"
"""The input of a queue item that cannot be opened here: it was changed, or its key is missing. No input has this form."""


class _GovernedInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The input of a queue item whose request has a governance, a subject or secrets of its own."""

    governance: dict[str, Any] | None
    trigger: msgspec.Raw
    subject: str | None = None
    data_key: str | None = None
    secrets: tuple[str, ...] = ()


class ItemInput(NamedTuple):
    """The parts of a queue item's input."""

    trigger: bytes
    governance: dict[str, Any] | None = None
    subject: str | None = None
    data_key: str | None = None
    """The id of the subject's data key."""
    secrets: tuple[str, ...] = ()
    """The names of keys and fields whose values are shown nowhere."""


_GOVERNED = b'{"governance":'
_encode_governed = msgspec.json.Encoder().encode
_decode_governed = msgspec.json.Decoder(_GovernedInput).decode


def governed_input(
    trigger: bytes,
    governance: dict[str, Any] | None,
    subject: str | None = None,
    data_key: str | None = None,
    secrets: tuple[str, ...] = (),
) -> bytes:
    """Return what an item stores as its input: the trigger, and the governance, subject and secrets that its request names."""
    if governance is None and data_key is None and not secrets:
        return trigger
    return _encode_governed(_GovernedInput(governance, msgspec.Raw(trigger), subject, data_key, secrets))


def split_input(data: bytes) -> ItemInput:
    """Return what ``governed_input`` was given. No trigger has a field of the name ``governance``."""
    if not data.startswith(_GOVERNED):
        return ItemInput(data)
    found = _decode_governed(data)
    return ItemInput(bytes(found.trigger), found.governance, found.subject, found.data_key, found.secrets)


def plain_input(data: bytes) -> Value:
    """Return the input of the execution that a stored trigger has started, as a plain value."""
    found = trigger_input(data)
    return found.arguments if isinstance(found, FunctionTrigger) else found


def _utc(moment: object, what: str) -> datetime:
    """Return an aware datetime of any zone as the same moment in UTC."""
    if type(moment) is datetime and moment.tzinfo is UTC:
        return moment
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidInput(f"{what} must be a datetime with a time zone, such as datetime.now(UTC)")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{what} is a time in the years 1 to 9999 in UTC, not {moment}") from None


def _whole(number: object, what: str) -> None:
    if type(number) is not int or not 0 <= number < 2**63:
        raise InvalidInput(f"{what} must be a whole number from 0 to 2**63 - 1, not {number!r}")
