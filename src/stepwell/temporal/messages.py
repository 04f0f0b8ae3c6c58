"""Messages between the dispatcher, the workflow and its activities, as JSON that Temporal's own UI shows."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from stepwell.errors import LimitExceeded
from stepwell.flow.language.template import StateKey
from stepwell.flow.retry import ErrorClass, Retry
from stepwell.kernel.commit_planner import EffectDone
from stepwell.kernel.protocol import AttemptFailed, RunStep, StartChild, StepCompleted, StepMissing
from stepwell.model.mutation import Mutation
from stepwell.model.record import Metadata
from stepwell.model.value import Value
from stepwell.runtime.inbox import Message

__all__ = [
    "MOST_BYTES",
    "MOST_TOLD_BYTES",
    "NO_CALL",
    "AskedCall",
    "AttemptAnswer",
    "BeginAnswer",
    "ChildAnswer",
    "ChildRequest",
    "CommitAnswer",
    "CommitRequest",
    "FunctionAnswer",
    "FunctionRequest",
    "InboxAnswer",
    "InboxRequest",
    "ItemOrigin",
    "KeepRequest",
    "LeaveMessages",
    "PayloadReference",
    "RunInput",
    "StateAnswer",
    "StateRequest",
    "StepAnswer",
    "StepRequest",
    "payload",
    "read",
    "reference_in",
    "referring",
    "sealed",
]

MOST_BYTES = 1_900_000
"""The largest payload that is sent. The server refuses more than 2 MiB, and a worker would try to send it for ever."""

MOST_TOLD_BYTES = MOST_BYTES // 4
"""The largest result that Temporal shows; a larger one is in the store alone."""

T = TypeVar("T")


class ItemOrigin(msgspec.Struct, frozen=True):
    """The data to create the execution of a queue item: the dispatcher or the workflow does, whichever comes first."""

    item_id: str
    fence: int
    identity: Metadata
    trigger: msgspec.Raw


class RunInput(msgspec.Struct, frozen=True):
    """The input of a Temporal workflow: which execution it runs. The definition is not in it; it is found by name and version."""

    execution_id: str
    workspace_id: str
    workflow: str
    version: int
    is_declared: bool
    origin: ItemOrigin | None = None
    """For the first life of an execution from the queue, which need not be read from the store to begin."""
    has_kept: bool = False
    """Whether payloads of this life are kept in the store."""


class StateAnswer(msgspec.Struct, frozen=True):
    """An execution's state: as a snapshot, or if that is too large for a payload, as the revision that the store has."""

    revision: int
    snapshot: bytes = b""


class BeginAnswer(msgspec.Struct, frozen=True):
    """The state of an execution under a new fence; without one if there is nothing to run."""

    fence: int = 0
    state: StateAnswer | None = None


class CommitRequest(msgspec.Struct, frozen=True):
    """A commit that was planned on a revision."""

    execution_id: str
    commit_id: str
    fence: int
    revision: int
    mutations: list[Mutation]
    nudges: list[str]
    is_final: bool
    before: str = ""
    """The digest of the state that the commit was planned for."""
    origin: ItemOrigin | None = None
    has_kept: bool = False
    """Whether payloads of the execution are kept in the store, which may go some time after its end."""


class CommitAnswer(msgspec.Struct, frozen=True):
    """The outcome of a commit. It landed if there is nothing else here."""

    digest: str = ""
    """Of the state, after a commit that landed."""
    state: StateAnswer | None = None
    """The state, if another commit came first: perhaps this very commit, in another try whose reply was lost."""
    fence: int = 0
    inbox: list[str] = []
    """With a state, the keys of the messages that are in the inbox."""
    refusal: dict[str, Any] | None = None
    """Why the store refused it."""
    names: list[str] = []
    is_gone: bool = False
    """Whether the execution is no longer this workflow's to run."""
    told: dict[str, Any] = {}
    """If it is gone since it has ended: how."""


class InboxRequest(msgspec.Struct, frozen=True):
    """A request for the messages of an inbox that are not known yet."""

    execution_id: str
    workspace_id: str
    known: list[str]


class InboxAnswer(msgspec.Struct, frozen=True):
    """Messages in the inbox, as many as a payload holds."""

    messages: list[Message]
    has_more: bool = False


class LeaveMessages(msgspec.Struct, frozen=True):
    """Messages that came by Temporal's own tools, to be left in the inbox."""

    execution_id: str
    workspace_id: str
    messages: list[Message]


class PayloadReference(msgspec.Struct, frozen=True):
    """A payload that is kept in the store, since Temporal would not take it."""

    execution_id: str
    key: str


class KeepRequest(msgspec.Struct, frozen=True):
    """A payload to keep in the store."""

    execution_id: str
    data: msgspec.Raw


class StateRequest(msgspec.Struct, frozen=True):
    """Scoped state that a definition reads."""

    keys: list[tuple[str, str, str]]
    identity: Metadata

    @classmethod
    def of(cls, keys: tuple[StateKey, ...], identity: Metadata) -> StateRequest:
        """Return the request for these keys."""
        return cls([(each.scope, each.name, each.key) for each in keys], identity)


NO_CALL = msgspec.Raw(b"null")


class StepRequest(msgspec.Struct, frozen=True):
    """An attempt at a step."""

    asked: RunStep
    identity: Metadata
    spent: int | float = 0
    step_count: int = 0
    """How many steps are recorded or under way, for the budget."""
    call: msgspec.Raw = NO_CALL
    """The arguments of a function's call; null for a step of a definition, which has them in what is asked."""
    has_limit: bool = False
    """Whether the execution's deadline limits the attempt."""


class StepAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of an attempt: an output, an error, or neither since this worker does not know the step."""

    is_completed: bool = False
    output: msgspec.Raw = msgspec.Raw(b"null")
    landing: list[Mutation] = []
    took_ms: int = 0
    spent: int | float = 0
    error: dict[str, Any] | None = None
    names: list[str] = []
    is_final: bool = False
    policy: Retry | None = None
    chance: float = 0

    @classmethod
    def failed(cls, kind: str, message: str, *, is_final: bool) -> StepAnswer:
        """Return a failure that no code of a step has raised."""
        error = {"kind": kind, "message": message, "code": None, "class": str(ErrorClass.EXECUTION), "is_retryable": not is_final}
        return cls(error={**error, "suggestion": None}, names=[kind], is_final=is_final)

    @property
    def is_missing(self) -> bool:
        """True if the worker does not know the step."""
        return not self.is_completed and self.error is None

    def done(self, asked: RunStep | StartChild) -> EffectDone:
        """Return the event for the kernel, without what it cost."""
        token_id, key = asked.token_id, asked.key
        if self.is_completed:
            completed = StepCompleted(token_id, key, bytes(self.output), self.took_ms, asked.attempt)
            return EffectDone(completed, self.landing, (), self.policy)
        if self.error is None:
            assert isinstance(asked, RunStep)  # noqa: S101 - a child's start has an answer of its own
            return EffectDone(StepMissing(token_id, key, asked.uses))
        failed = AttemptFailed(
            token_id,
            key,
            self.error,
            tuple(self.names),
            is_final=self.is_final,
            policy=self.policy,
            chance=self.chance,
            took_ms=self.took_ms,
            attempt=asked.attempt,
        )
        return EffectDone(failed)


class ChildRequest(msgspec.Struct, frozen=True):
    """A child to start."""

    asked: StartChild
    parent: Metadata
    context: dict[str, Value]
    variables: dict[str, Value]
    metadata: dict[str, Value]


class ChildAnswer(msgspec.Struct, frozen=True):
    """The outcome of a child's start: it runs, it has ended with a result, or it cannot be started."""

    news: Value = None
    error: dict[str, Any] | None = None
    names: list[str] = []


class AskedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a step that a function's code has come to."""

    key: str
    number: int
    """Of the attempt."""
    step: str
    call: msgspec.Raw
    """The arguments."""
    has_limit: bool = False
    summary: str | None = None


class AttemptAnswer(msgspec.Struct, frozen=True):
    """The outcome of an attempt that a function's code asked for."""

    key: str
    number: int
    answer: StepAnswer


class FunctionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Run a function until it ends or rests."""

    execution_id: str
    workspace_id: str
    origin: ItemOrigin | None = None
    answers: list[AttemptAnswer] = []
    """The attempts that have ended, until the record has them."""
    under_way: list[tuple[str, int]] = []
    """Key and number of the attempts that have not."""
    is_first: bool = False
    """Whether the workflow does not know the execution's identity."""
    is_again: bool = False
    """Whether a worker was asked before that does not know the function."""


class FunctionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a function workflow after a session: ended, or what it waits for."""

    is_over: bool = False
    wake_ms: int | None = None
    told: dict[str, Any] = {}
    """Once it is over, its status and result."""
    asked: list[AskedCall] = []
    """The calls of steps that it has come to, and that were not under way."""
    open: list[tuple[str, int]] = []
    """Key and number of all attempts that it waits for. Any other is given up."""
    taken: list[tuple[str, int]] = []
    """Those of the answers that its record has."""
    identity: Metadata | None = None
    """Of the execution, for the workflow that asks for it."""
    is_unknown: bool = False
    """Whether this worker does not know the function."""


def payload(data: bytes) -> RawValue:
    """Return JSON of any size as a payload."""
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))


_KEPT = "stepwell-kept"


def referring(reference: PayloadReference) -> RawValue:
    """Return a reference as a payload."""
    data = msgspec.json.encode(reference)
    return RawValue(Payload(metadata={"encoding": b"json/plain", _KEPT: b"1"}, data=data))


def reference_in(value: RawValue) -> PayloadReference | None:
    """Return the reference that a payload is, or None if it is the value itself."""
    return msgspec.json.decode(value.payload.data, type=PayloadReference) if _KEPT in value.payload.metadata else None


def sealed(value: msgspec.Struct, what: str) -> RawValue:
    """Return a value as a payload; ``LimitExceeded`` if it is larger than what Temporal takes."""
    data = msgspec.json.encode(value)
    if len(data) > MOST_BYTES:
        raise LimitExceeded.of("temporal_payload", MOST_BYTES, len(data), what, is_fixed=True)
    return payload(data)


def read(value: RawValue, kind: type[T]) -> T:
    """Return the value of a payload."""
    return msgspec.json.decode(value.payload.data, type=kind)
