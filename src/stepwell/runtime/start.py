"""Start an execution of a workflow: check its input, create it by its first commit, and give it to a worker that has room.

A child may get its parent's context and variables, and may give back what it changed in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from stepwell.clock import Clock, to_ms
from stepwell.errors import AlreadyExists, CommitUnknown, Conflict, InvalidInput, LimitExceeded, NotFound, StepwellError
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.flow.definition.node import ContextRule
from stepwell.flow.function import Workflow, secrets_of
from stepwell.flow.governance import Governance, check_governance
from stepwell.kernel.pending_changes import PendingChanges
from stepwell.model.commit import Creation, Lease
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY, ExecutionState, State
from stepwell.model.external_engines import HOLD_SECONDS, first_record, recorded
from stepwell.model.ids import NewId
from stepwell.model.limits import Limits
from stepwell.model.mutation import Create, SetMetadata, SetStatus, SetTrigger, SetVariable, WriteState
from stepwell.model.queue_lifecycle import slot_item
from stepwell.model.record import (
    OWN_METADATA,
    FunctionTrigger,
    ItemInput,
    Metadata,
    Trigger,
    decode_trigger,
    encode_plain_trigger,
    encode_record,
    encode_trigger,
    governed_input,
    root_of,
    trigger_input,
    value_of_trigger,
)
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.model.scoped_operations import StateOp
from stepwell.model.state_migration import state_version
from stepwell.model.status import Status
from stepwell.model.value import Value, canonical, decode, recode, to_value
from stepwell.pipeline.operations import Operation
from stepwell.runtime.steps.budget import governance_of
from stepwell.state.executions import Executions
from stepwell.telemetry import current_trace_id

__all__ = [
    "LocalWorker",
    "Seed",
    "Starting",
    "check_child_depth",
    "edited_trigger",
    "input_of",
    "news_of",
    "news_of_ended",
    "news_of_function",
    "seed_of",
]


_SHARES = OWN_METADATA[0]
"""The key in a child's free metadata that says that it returns its context to its parent."""


class Seed(msgspec.Struct, frozen=True):
    """The context and variables that an execution begins with."""

    context: dict[str, Value] = {}
    variables: dict[str, Value] = {}
    metadata: dict[str, Value] = {}


def seed_of(rule: ContextRule, state: State) -> Seed:
    """Return what a child begins with: nothing; the context; or context and variables, as a copy or to be returned."""
    if rule == "isolate":
        return Seed()
    context = _decoded(state, "context")
    if rule == "inherit":
        return Seed(context)
    return Seed(context, _decoded(state, "variables"), {_SHARES: True} if rule == "share" else {})


def news_of(changes: PendingChanges, status: Status, result: dict[str, Value]) -> dict[str, Value]:
    """Return the message of a child that ends to its parent."""
    news: dict[str, Value] = {"status": str(status), "result": result}
    metadata = decode(changes.get("metadata", ONLY) or b"{}")
    if metadata.get(_SHARES):
        variables = {name: value for name, value in changes.mapping("variables").items() if not name.startswith("$")}
        news |= {"context": changes.mapping("context"), "variables": variables}
    return news


def news_of_function(state: State, status: Status, result: Value, variables: Mapping[str, Value]) -> dict[str, Value]:
    """Return the same for a function, given its variables, of which some may not have landed yet."""
    news: dict[str, Value] = {"status": str(status), "result": result}
    if decode(state.sections["metadata"].get(ONLY, b"{}")).get(_SHARES):
        own = {name: value for name, value in variables.items() if not name.startswith("$")}
        news |= {"context": _decoded(state, "context"), "variables": own}
    return news


def news_of_ended(child: ExecutionState) -> dict[str, Value]:
    """Return the same from the record of a child that has ended."""
    news: dict[str, Value] = {"status": str(child.status), "result": child.result}
    if child.metadata.get(_SHARES):
        variables = {name: value for name, value in child.variables.items() if not name.startswith("$")}
        news |= {"context": child.context, "variables": variables}
    return news


def _decoded(state: State, section: str) -> dict[str, Value]:
    return {key: decode(data) for key, data in state.sections[section].items() if not key.startswith("$")}


def check_child_depth(parent: Metadata, limits: Limits) -> None:
    """Raise ``LimitExceeded`` if an execution is nested too deeply to have children."""
    if parent.depth >= limits.child_depth:
        raise LimitExceeded(
            f"workflow {parent.workflow_id!r} would start a child inside {parent.depth:,} others, over the limit "
            f"child_depth={limits.child_depth:,}; let its recursion end, or raise Limits(child_depth=...)",
            limit="child_depth",
            maximum=limits.child_depth,
            actual=parent.depth + 1,
        )


def input_of(workflow: Workflow[..., Any], value: object, trigger: Trigger | None) -> Value:
    """Return the input of an execution that is to be started.

    - ``value``: what was given as the input, or ``UNSET``: then a typed trigger's own value is the input.
    - ``trigger``: what starts the execution, if that is known.
    """
    if value is not UNSET or not isinstance(trigger, Trigger) or not workflow.takes_input:
        return workflow.input_of(value)
    if isinstance(trigger, FunctionTrigger) and not isinstance(workflow, DeclaredWorkflow):
        return trigger  # a function takes arguments by their names
    return value_of_trigger(trigger)


def edited_trigger(workflow: Workflow[..., Any] | None, stored: bytes | None, value: object, limits: Limits) -> bytes:
    """Return the trigger of a fork with another input than its original; what started that stays.

    - ``workflow``: the workflow, whose parameters or schema the input has to fit; None if this process does not have it.
    - ``stored``: the original's trigger, if it has one.
    """
    found = None if stored is None else decode_trigger(stored)
    if isinstance(found, FunctionTrigger):  # its input are arguments by name
        given = FunctionTrigger(to_value(value))
        if workflow is not None:
            workflow.bind(given)
        return encode_trigger(given, limits)
    data = canonical(to_value(value), limits) if workflow is None else workflow.encode_input(value, limits)
    return encode_trigger(found, limits, input=data) if isinstance(found, Trigger) else encode_plain_trigger(data)


class LocalWorker(Protocol):
    """A worker of this process that can run a new execution at once."""

    holder: str

    @property
    def has_room(self) -> bool:
        """True if it can run another execution now."""
        ...

    @property
    def lease_seconds(self) -> float:
        """The length of its leases."""
        ...

    def room_lent(self) -> AbstractContextManager[None]:
        """Let it run one more while a step of one that it runs waits for another."""
        ...

    def run_leased(self, lease: Lease, *, is_new: bool = True) -> None:
        """Run an execution, unless it runs already. A new one has no messages yet."""
        ...


class Starting:
    """Starts executions."""

    def __init__(self, executions: Executions, clock: Clock, new_id: NewId) -> None:
        self._executions, self._clock, self._new_id = executions, clock, new_id

    def start(
        self,
        workflow: Workflow[..., Any],
        value: Value,
        execution_id: str,
        workspace: str,
        *,
        parent: Metadata | None = None,
        is_detached: bool = False,
        governance: Governance | None = None,
        seed: Seed | None = None,
        worker: LocalWorker | None = None,
        ops: Sequence[StateOp] = (),
        trigger: Trigger | None = None,
        engine: str | None = None,
        subject: str | None = None,
    ) -> Operation[None]:
        """Create an execution. A worker of this process with room gets its lease; else it is due for any worker.

        ``value`` is its input, and ``trigger`` says what started it, if that is known.
        With an ``engine``, or as the child of an execution that has one, it is recorded for that engine instead.

        Raise ``LimitExceeded`` if its workspace has no free slot, and ``NotFound`` if there is no such workspace.
        ``ops`` are changes of scoped state that land in the commit that creates it.
        """
        started_by = self._trigger(workflow, value, trigger)
        check_governance(governance)
        subjects = self._executions.subjects
        data_key = None if subject is None else (yield from subjects.key_of(workspace, subject))
        if subject is None and parent is not None:
            subject, data_key = parent.subject, parent.data_key
        identity = self._identity(workflow, execution_id, workspace, parent, governance)
        inherited = () if parent is None else parent.secrets or ()
        identity = subjects.protected(self._with_secrets(identity, workflow, inherited), subject, data_key)
        own = None if governance is None else identity.governance
        engine = engine or (None if parent is None else parent.engine)
        identity = identity if engine is None else msgspec.structs.replace(identity, engine=engine)
        if parent is not None and not is_detached:  # no parent waits for a detached child
            check_child_depth(parent, self._executions.limits)
            root_id = root_of(parent) if parent.depth else None  # of a root's own children the parent says it
            identity = msgspec.structs.replace(identity, depth=parent.depth + 1, root_id=root_id)
        # Children run in the slot of their root. The default workspace has no limit, and pays nothing for those of others.
        is_waiting = parent is not None and is_detached and engine is None  # its root may end first, so it waits for its own slot
        if (parent is None or is_waiting) and workspace != DEFAULT_WORKSPACE:
            identity = msgspec.structs.replace(identity, item_id=self._new_id())
        is_waiting = is_waiting and identity.item_id is not None
        mine = worker if worker is not None and worker.has_room and engine is None and not is_waiting else None
        given = governed_input(started_by, own, subject, data_key, identity.secrets or ())
        creation = Creation(
            workflow.name,
            workflow.version,
            identity.parent_id,
            holder=engine if mine is None else mine.holder,
            lease_seconds=HOLD_SECONDS if engine is not None else 0 if mine is None else mine.lease_seconds,
            is_runnable=not is_waiting,
            slot=None if identity.item_id is None else slot_item(identity, given, is_started=not is_waiting),
        )
        raw = msgspec.Raw
        batch: Sequence[Planned] = [
            Create(raw(encode_record(identity)), raw(b"{}" if seed is None else recode(seed.context))),
            SetTrigger(raw(started_by)),
            *_planted(seed),
            *(WriteState(op) for op in ops),
            *([SetStatus(Status.RUNNING)] if mine is not None or engine is not None else []),
            *([] if engine is None else [recorded(engine, execution_id, first_record(identity))]),
        ]
        yield from self._create(identity, batch, creation)
        if mine is not None:
            lease = Lease(execution_id, mine.holder, 1, self._clock.now_ms() + round(mine.lease_seconds * 1000))
            mine.run_leased(lease, is_new=parent is None)  # the parent may have cancelled its child before the child existed

    def _trigger(self, workflow: Workflow[..., Any], value: Value, trigger: Trigger | None) -> bytes:
        """Return what is stored of an input, which fits the workflow's parameters, and of what started the execution."""
        limits = self._executions.limits
        if isinstance(value, FunctionTrigger):
            workflow.bind(value)
            if trigger is None or trigger is value:
                return encode_trigger(value, limits)
            raise InvalidInput(f"with a trigger, None for workflow {workflow.name!r} would be no input; leave it out")
        data = workflow.encode_input(value, limits)
        if trigger is None:
            return encode_plain_trigger(data)
        if not isinstance(trigger, Trigger):
            raise InvalidInput(f"trigger is a WebhookTrigger(...) or another of the triggers, not {trigger!r}")
        has_it = not isinstance(trigger, FunctionTrigger) and canonical(value_of_trigger(trigger), limits) == data
        return encode_trigger(trigger, limits, input=None if has_it else data)

    def _create(self, identity: Metadata, batch: Sequence[Planned], creation: Creation) -> Operation[None]:
        """Make the first commit. If its reply is lost, the store says whether it landed."""
        try:
            yield from self._executions.begin_history(identity, batch, creation)
        except CommitUnknown:
            try:
                head = yield from self._executions.head(identity.execution_id)
            except StepwellError:
                head = None
            # The holder is unique to this start of this process; an execution that was started twice is taken on once.
            if head is None or creation.holder is None or (head.holder, head.fence) != (creation.holder, 1):
                raise

    def check_same(
        self,
        workflow: Workflow[..., Any],
        value: Value,
        execution_id: str,
        workspace: str,
        error: StepwellError,
        trigger: Trigger | None = None,
    ) -> Operation[None]:
        """Raise unless what has the id already is what was to be started: a run of this workflow, workspace and input.

        One workspace never gets hold of another's runs by guessing ids.
        """
        try:
            head = yield from self._executions.head(execution_id)
        except NotFound:
            raise error from None  # it was deleted, and its id is not free again
        if head.workspace_id != workspace:
            raise error
        if head.workflow_id != workflow.name:
            message = f"execution {execution_id!r} exists already, as a run of workflow {head.workflow_id!r}; choose another id"
            raise AlreadyExists(message) from None
        live = yield from self._executions.newest(execution_id)
        stored = live.state.sections["trigger"].get(ONLY)
        if stored is None or _input_bytes(stored) != _input_bytes(self._trigger(workflow, value, trigger)):
            raise Conflict(
                f"execution {execution_id!r} of workflow {workflow.name!r} was started with another input; choose another id, or "
                f"use well.run({execution_id!r}) for the run that has it"
            ) from None

    def identity_of_item(
        self,
        workflow: Workflow[..., Any],
        execution_id: str,
        workspace: str,
        item_id: str,
        given: ItemInput,
        engine: str | None = None,
    ) -> Metadata:
        """Return the identity of an execution from a queue item, with the governance and subject that its request named."""
        identity = self._identity_of_item(workflow, execution_id, workspace, item_id, engine, given.governance)
        identity = self._with_secrets(identity, workflow, given.secrets)
        return self._executions.subjects.protected(identity, given.subject, given.data_key)

    def _with_secrets(self, identity: Metadata, workflow: Workflow[..., Any], inherited: tuple[str, ...]) -> Metadata:
        """Return an identity with the names of what is declared secret: by the well, its parent or item, the workflow and steps."""
        names = secrets_of(workflow.secrets, self._executions.redaction.names, inherited)
        return msgspec.structs.replace(identity, secrets=names) if names else identity

    def _identity_of_item(
        self,
        workflow: Workflow[..., Any],
        execution_id: str,
        workspace: str,
        item_id: str,
        engine: str | None,
        governance: dict[str, Any] | None,
    ) -> Metadata:
        if engine is None and governance is None and workflow.timeout_seconds is None and workflow.governance is None:
            return Metadata(
                execution_id,
                workspace,
                workflow.name,
                workflow.version,
                self._clock.now(),
                workflow.name,
                trace_id=self._new_id(),
                item_id=item_id,
                state_version=state_version(workflow.name),
            )
        given = None if governance is None else msgspec.convert(governance, Governance)
        identity = self._identity(workflow, execution_id, workspace, None, given)
        return msgspec.structs.replace(identity, item_id=item_id, engine=engine)

    def _trace_id(self, parent: Metadata | None) -> str:
        """Return the trace of a new run: its parent's, the one that the caller is in, or a new one."""
        found = parent.trace_id if parent is not None else current_trace_id()
        return found or self._new_id()

    def _identity(
        self, workflow: Workflow[..., Any], execution_id: str, workspace: str, parent: Metadata | None, given: Governance | None
    ) -> Metadata:
        now = self._clock.now()
        inherited = None if parent is None else governance_of(parent)
        governance = given or workflow.governance or inherited
        if inherited is not None and inherited.effects is not None and governance is not None and governance is not inherited:
            # A child may have its own budgets, but no effects that its parent may not have.
            effects = inherited.effects if governance.effects is None else set(inherited.effects) & set(governance.effects)
            governance = msgspec.structs.replace(governance, effects=tuple(sorted(effects)))
        seconds = workflow.timeout_seconds
        if governance is not None and governance.seconds is not None:
            seconds = governance.seconds if seconds is None else min(seconds, governance.seconds)
        return Metadata(
            execution_id,
            workspace,
            workflow.name,
            workflow.version,
            now,
            workflow.name,
            trace_id=self._trace_id(parent),
            parent_id=None if parent is None else parent.execution_id,
            is_child=parent is not None,
            deadline_ms=None if seconds is None else to_ms(now) + round(seconds * 1000),
            governance=None if governance is None else to_value(governance),
            state_version=state_version(workflow.name),
        )


def _planted(seed: Seed | None) -> list[Planned]:
    """Return the variables that a child gets from its parent."""
    if seed is None:
        return []
    planted: list[Planned] = [SetVariable(name, msgspec.Raw(recode(value))) for name, value in seed.variables.items()]
    return [*planted, *([SetMetadata(msgspec.Raw(recode(seed.metadata)))] if seed.metadata else [])]


def _input_bytes(trigger: bytes) -> tuple[bool, bytes]:
    """Return what two inputs are compared by: canonical bytes, since Python takes 1, 1.0 and True for the same."""
    found = trigger_input(trigger)
    return isinstance(found, FunctionTrigger), recode(to_value(found))
