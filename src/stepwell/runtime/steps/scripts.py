"""Scripts as steps: the engines that run them, and what a running script may do.

Stepwell brings an engine for Lua. ``install_engine`` adds one for another language, or takes one away. A script is one step: its
output is recorded once, it is retried and cancelled like any other, and what it writes lands in the commit that records its output.

``ScriptRun`` is the only way from a script to anything else. Each of its methods checks workspace, governance and limits again,
since what a script's process asks for cannot be trusted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Protocol

from stepwell.clock import Clock
from stepwell.errors import InvalidInput, LimitExceeded, NoScriptEngine, NotFound
from stepwell.flow.definition.node import Definition
from stepwell.flow.function import Step, registered_names, registered_step, registered_step_names
from stepwell.flow.language.template import StateKey
from stepwell.flow.retry import Retry
from stepwell.kernel.loaded_state import lay_over
from stepwell.kernel.protocol import RunStep
from stepwell.model.execution_state import ExecutionState
from stepwell.model.ids import check_key, child_id_of
from stepwell.model.limits import Limits
from stepwell.model.record import Metadata
from stepwell.model.scope import Scope
from stepwell.model.value import Value, decode
from stepwell.runtime.steps.attempt import run_attempt
from stepwell.runtime.steps.budget import Budget
from stepwell.runtime.steps.context import NestedContext, StepContext, here
from stepwell.runtime.steps.http_step import builtin_step
from stepwell.runtime.steps.outcome import child_result
from stepwell.runtime.steps.scoped_state import StepState
from stepwell.runtime.steps.secret_errors import text_without_secrets

if TYPE_CHECKING:
    from stepwell.runtime.services import Services

__all__ = ["ScriptEngine", "ScriptEngines", "ScriptRun", "install_engine", "script_step"]


class ScriptEngine(Protocol):
    """Runs scripts of one language for one worker."""

    async def run(self, code: str, value: Value, run: ScriptRun) -> Value:
        """Run a script with an input and return its output. Raise what it failed of."""
        ...

    def close(self) -> None:
        """End all scripts that still run."""
        ...


EngineFactory = Callable[[Limits], ScriptEngine]

_installed: dict[str, EngineFactory] = {}


def install_engine(language: str, make: EngineFactory | None) -> None:
    """Install the engine of a script language, which each worker makes for itself; None removes it."""
    if make is None:
        _installed.pop(language, None)
    else:
        _installed[language] = make


class ScriptEngines:
    """The engines of one worker, each made for the first script of its language."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._made: dict[str, ScriptEngine] = {}

    def of(self, language: str) -> ScriptEngine:
        """Return the engine for a language. Raise ``NoScriptEngine`` if there is none."""
        if language not in self._made:
            make = _installed.get(language)
            if make is None:
                raise NoScriptEngine(f"no script engine is installed for {language!r}")
            self._made[language] = make(self._limits)
        return self._made[language]

    def close(self) -> None:
        """End all engines."""
        for engine in self._made.values():
            engine.close()


Waiting = Callable[[], AbstractContextManager[None]]


def script_step(asked: RunStep, services: Services, budget: Budget, waiting: Waiting = nullcontext) -> Step[..., Any]:
    """Return a script as a step.

    Args:
        asked: the attempt.
        services: of the worker.
        budget: of the execution, which the script's tools are counted against.
        waiting: entered while the script waits for another execution; it may cancel the attempt, which loses nothing.
    """

    async def script(value: Any) -> Any:
        context = here.get()
        assert isinstance(context, StepContext)  # noqa: S101 - every attempt has one
        run = ScriptRun(context, services, budget, waiting)
        try:
            return await services.scripts.of(asked.language).run(asked.code, value, run)
        finally:
            run.close()

    return Step(script, f"script:{asked.language}", Retry(attempts=1), None, effect="script")


class ScriptRun:
    """One attempt at a script, seen from the worker: who it is, and what it may do."""

    def __init__(self, context: StepContext, services: Services, budget: Budget, waiting: Waiting) -> None:
        self._context, self._services, self._budget, self._waiting = context, services, budget, waiting
        self._calls, self._tools, self._children = 0, 0, 0
        self.now = services.clock.now()
        """When the attempt began."""

    @property
    def identity(self) -> Metadata:
        """The execution that the script is a step of."""
        return self._context.identity

    @property
    def step(self) -> str:
        """The key of the script's record."""
        return self._context.step

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._context.attempt

    @property
    def limits(self) -> Limits:
        """The limits of the well."""
        return self._services.limits

    def without_secrets(self, text: str) -> str:
        """Return a text of the script for people, without the secret values of its run and its input."""
        names = self.identity.secrets
        return text_without_secrets(names, text, self._context.started_by, self._context.given) if names else text

    def count(self) -> None:
        """Count one call of the script. Raise ``LimitExceeded`` if there were too many."""
        self._calls += 1
        if self._calls > self.limits.script_calls:
            raise LimitExceeded.of("script_calls", self.limits.script_calls, None, "the number of calls that a script makes")

    def state(self, name: str) -> StepState:
        """Return a scope of the script's own workspace, by its name in scripts."""
        return self._context.state(_scope_of(name, self.identity, self.step))

    def may_read(self, name: str) -> bool:
        """Return whether the script may read a scope."""
        with suppress(InvalidInput):
            self.state(name)
            return True
        return False

    # Tools: registered steps, called as a part of the script.

    def tool_names(self) -> list[str]:
        """Return the names of all tools, sorted."""
        return sorted(registered_step_names())

    def tool_policy(self, name: str) -> Retry | None:
        """Return the retry policy that a registered step has itself, or None."""
        step = registered_step(name)
        return None if step is None else step.policy

    async def call_tool(self, name: str, value: Value, key: str = "", timeout_seconds: float | None = None) -> Value:
        """Call a registered step as a part of this script: one attempt, whose writes land with the script's own, or not at all.

        ``key`` tells the call from the script's others; by default it is its number. Raise ``NotFound`` for an unknown step,
        ``GovernanceViolated`` if the execution may not run it, and the errors of the step.
        """
        step = builtin_step(name, timeout_seconds) or registered_step(name)
        if step is None:
            raise NotFound(f"there is no tool {name!r}: this worker has no step of that name; import the module that defines it")
        if timeout_seconds is not None:
            step = copy.copy(step)
            step.timeout_seconds = timeout_seconds
        self._tools += 1
        key = f"{self.step}/{key or f'tool:{self._tools}'}"
        self._budget.begin(step, key)
        context = NestedContext(self._context, key)
        output = await run_attempt(step, context, step.bind(value), self._services)
        context.hand_over()
        return decode(output)

    def close(self) -> None:
        """Give back what the tools hold of the budget: the script as a whole is what the record counts."""
        for _ in range(self._tools):
            self._budget.end()
        self._tools = 0

    # Workflows: children, run as executions of their own, or a part of the script.

    @property
    def clock(self) -> Clock:
        """The clock of the worker."""
        return self._services.clock

    async def read_state(self, keys: Sequence[StateKey]) -> Value:
        """Return scoped state as the templates of a workflow inside of the script see it, with what the script has written."""
        found = await self._services.read_state(keys, self.identity)
        lay_over(found, keys, self.identity, self._context.buffer.batch())
        return found

    def next_child(self) -> str:
        """Return the id of the next workflow that the script runs, the same at every attempt."""
        self._children += 1
        return child_id_of(self.identity.execution_id, f"{self.step}~{self._children}", self.limits.key_bytes)

    async def has_workflow(self, name: str) -> bool:
        """Return whether a workflow can be started by this name."""
        with suppress(NotFound):
            await self._services.workflows.startable(check_key(name, "a workflow's name"), None)
            return True
        return False

    def workflow_names(self) -> list[str]:
        """Return the names of the workflow functions of this process."""
        return sorted(registered_names())

    async def store_workflow(self, definition: Definition) -> None:
        """Store a definition that another one has as its subworkflow."""
        await self._services.workflows.startable(definition, None)

    async def run_workflow(self, workflow: Definition | str, value: Value, child_id: str) -> tuple[Value, ExecutionState]:
        """Run a child execution to its end; return its result, and its state.

        With an id of ``next_child``, a script that is retried finds what an earlier attempt has started. Raise ``ExecutionFailed``
        or ``ExecutionCancelled`` if it ends otherwise.
        """
        found = await self._services.workflows.startable(workflow, None)
        with self._waiting(), self._services.room_lent():
            await self._services.start_child(found, value, child_id, self.identity)
            state = await self._services.ended(child_id)
        return child_result(found, child_id, {"status": str(state.status), "result": state.result}), state


def _scope_of(name: str, identity: Metadata, step: str) -> Scope:
    """Return the scope that a script names, always one of its own workspace.

    ``global`` is the workspace, not the store: what all workspaces share is not for scripts.
    """
    kind, _, rest = check_key(name, "a scope").partition(":")
    workspace, workflow = identity.workspace_id, identity.workflow_id
    match kind, rest:
        case "global", "":
            return Scope.of_workspace(workspace)
        case "workflow", _:
            return Scope.of_workflow(rest or workflow, workspace)
        case "step", _:
            return Scope.of_step(workflow, rest or step, workspace)
        case "user", rest if rest:
            return Scope.of_user(rest, workspace)
        case "conversation" | "session", rest if rest:
            return Scope.of_conversation(rest, workspace)
        case "custom", rest if rest:
            return Scope.custom(rest, workspace)
        case _:
            return Scope.custom(name, workspace)
