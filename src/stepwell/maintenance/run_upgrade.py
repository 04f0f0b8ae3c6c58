"""Move live runs of a declared workflow to another version of its definition: those whose path so far is one of it, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import Conflict, InvalidInput, LeaseLost, NotFound, StepwellError
from stepwell.fault_points import fault
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.flow.function import registered_names
from stepwell.kernel.compatibility import obstacles
from stepwell.kernel.plan import Plan
from stepwell.kernel.token import ROOT
from stepwell.model.commit import Head
from stepwell.model.draft import Planned
from stepwell.model.execution_state import ONLY, ExecutionState, State
from stepwell.model.ids import check_key
from stepwell.model.mutation import ChangeVersion, SetVariable, UpdateToken
from stepwell.model.plain_data import PlainRecord
from stepwell.model.record import decode_token, encode_token, plain_input
from stepwell.model.status import FINAL
from stepwell.model.value import recode
from stepwell.pipeline.operations import Operation, read
from stepwell.pipeline.paged_reads import all_executions
from stepwell.runtime.definitions import DefinitionOperations
from stepwell.state.executions import Executions, UnsharedChange, UnsharedExecution

__all__ = ["RefusedUpgrade", "UpgradeReport", "upgrade_runs"]

_PAGE = 500
_MOST_PASSES = 5


class RefusedUpgrade(PlainRecord, frozen=True):
    """A run that stays with its version."""

    execution_id: str
    version: int
    """The version that it stays with."""
    reasons: tuple[str, ...]


class UpgradeReport(PlainRecord, frozen=True, kw_only=True):
    """The result of an upgrade of the live runs of a workflow."""

    workflow: str
    to_version: int
    moved: tuple[str, ...]
    """The runs that were moved, or in a dry run would be."""
    refused: tuple[RefusedUpgrade, ...]
    held: tuple[str, ...]
    """The runs that a worker held; they can be moved when they wait again."""
    is_dry_run: bool


def upgrade_runs(
    store: Store,
    executions: Executions,
    definitions: DefinitionOperations,
    name: str,
    to_version: int,
    *,
    workspace: str | None,
    is_dry_run: bool,
) -> Operation[UpgradeReport]:
    """Check each live run of a workflow against a version of its definition, and move those that can go on with it.

    Each move is a commit under the fence that the run had without a holder, so that it is refused if a worker was first.

    Raise ``NotFound`` if there is no such version, ``NotActive`` for a draft, and ``InvalidInput`` for a function's workflow.
    """
    check_key(name, "a workflow's name")
    if workspace is not None:
        check_key(workspace, "a workspace id")
    if name in registered_names():
        raise InvalidInput(
            f"workflow {name!r} is a function: workers run its earlier versions with its newest code; use stepwell.patched(...) to "
            "let old runs go their old way"
        )
    if type(to_version) is not int or to_version < 1:
        raise InvalidInput(f"a version is a whole number from 1 on, not {to_version!r}")
    found = yield from definitions.startable(name, to_version)
    assert isinstance(found, DeclaredWorkflow)  # noqa: S101 - no function has the name
    upgrade = _Upgrade(store, executions, definitions, found, workspace, is_dry_run=is_dry_run)
    for _ in range(1 if is_dry_run else _MOST_PASSES):
        if not (yield from upgrade.run_pass()):
            break
    return upgrade.report()


class _Upgrade:
    def __init__(
        self,
        store: Store,
        executions: Executions,
        definitions: DefinitionOperations,
        workflow: DeclaredWorkflow,
        workspace: str | None,
        *,
        is_dry_run: bool,
    ) -> None:
        self._store, self._executions, self._definitions = store, executions, definitions
        self._workflow, self._workspace, self._is_dry_run = workflow, workspace, is_dry_run
        self._moved: dict[str, None] = {}
        self._refused: dict[str, RefusedUpgrade] = {}
        self._held: dict[str, None] = {}

    def report(self) -> UpgradeReport:
        """Return what became of the runs."""
        return UpgradeReport(
            workflow=self._workflow.name,
            to_version=self._workflow.version,
            moved=tuple(self._moved),
            refused=tuple(self._refused.values()),
            held=tuple(self._held),
            is_dry_run=self._is_dry_run,
        )

    def run_pass(self) -> Operation[bool]:
        """Look at every live run of another version; return whether another writer was first with any."""
        self._refused.clear()
        self._held.clear()
        heads = yield from read(lambda: list(self._live()))
        was_late = False
        for start in range(0, len(heads), _PAGE):
            was_late |= yield from self._move(heads[start : start + _PAGE])
        return was_late

    def _live(self) -> Iterator[Head]:
        query = ExecutionQuery(workspace_id=self._workspace, workflow_id=self._workflow.name, limit=_PAGE)
        heads = all_executions(self._store, query)
        return (head for head in heads if head.status not in FINAL and head.version != self._workflow.version)

    def _move(self, heads: Sequence[Head]) -> Operation[bool]:
        changes: list[UnsharedChange] = []
        loaded = yield from self._executions.unshared([head.execution_id for head in heads])
        now_ms = yield from read(self._store.now_ms)
        for head, each in zip(heads, loaded, strict=True):
            if isinstance(each, StepwellError):
                self._refuse(head, each.message)
            elif each is not None and each.head.status not in FINAL:
                change = yield from self._change(each, now_ms)
                changes += [] if change is None else [change]
        if self._is_dry_run:
            self._moved.update(dict.fromkeys(change.live.execution_id for change in changes))
            return False
        outcomes = (yield from self._executions.commit_unshared(changes)) if changes else []
        fault("upgrade.batch_written")
        was_late = False
        for change, outcome in zip(changes, outcomes, strict=True):
            if outcome is None:
                self._moved[change.live.execution_id] = None
            elif isinstance(outcome, Conflict | LeaseLost):
                self._held[change.live.execution_id] = None
                was_late = True
            else:
                self._refuse_id(change.live.execution_id, change.live.state.identity.version, outcome.message)
        return was_late

    def _change(self, found: UnsharedExecution, now_ms: int) -> Operation[UnsharedChange | None]:
        """Return the commit that moves a run; None if it stays."""
        head, live = found
        if head.version == self._workflow.version:
            return None
        reasons = yield from self._reasons(live.state)
        if reasons:
            self._refuse(head, *reasons)
            return None
        if found.is_held(now_ms):  # its session goes on with the definition that it has
            self._held[head.execution_id] = None
            return None
        batch: list[Planned] = [ChangeVersion(self._workflow.version)]
        if (data := live.state.sections["tokens"].get(ROOT)) is not None:  # one that has not begun gets all this when it begins
            root, outermost = decode_token(data), self._plan(self._workflow).root.name
            if root.node != outermost:
                batch.append(UpdateToken(ROOT, msgspec.Raw(encode_token(root.replace(node=outermost)))))
            known = live.state.sections["variables"]
            fresh = self._workflow.definition.variables.items()
            batch += [SetVariable(name, msgspec.Raw(recode(value))) for name, value in fresh if name not in known]
        return UnsharedChange(live, head, batch)

    def _reasons(self, state: State) -> Operation[list[str]]:
        """Return why a run cannot go on with the version."""
        who = state.identity
        if who.is_hand_driven:
            return ["transactions drive it, and no worker"]
        if who.engine is not None:
            return [f"{who.engine} runs it, and has its version in a history of its own"]
        if ROOT not in state.sections["tokens"] and state.sections["tokens"]:
            return ["it waits for its queue item, or was begun by a function"]
        try:
            old = yield from self._definitions.load(who.workflow_id, who.version)
        except NotFound as error:
            return [error.message]
        if (trigger := state.sections["trigger"].get(ONLY)) is not None:
            try:
                self._workflow.encode_input(plain_input(trigger), self._executions.limits)
            except StepwellError as error:
                return [f"its input does not fit: {error.message}"]
        return obstacles(self._plan(old), self._plan(self._workflow), ExecutionState(state))

    def _plan(self, workflow: DeclaredWorkflow) -> Plan:
        return self._definitions.plan(workflow)

    def _refuse(self, head: Head, *reasons: str) -> None:
        self._refused[head.execution_id] = RefusedUpgrade(head.execution_id, head.version, reasons)

    def _refuse_id(self, execution_id: str, version: int, reason: str) -> None:
        self._refused[execution_id] = RefusedUpgrade(execution_id, version, (reason,))
