"""Workflows that run inside of a script's step, since they ask the script: functions as steps, conditions and hooks.

The kernel runs here in memory, with the same definition that a child execution would have. Tools are called as the script calls
them, and a question goes to the script, which waits for the workflow and answers it. So functions are what they are in Lua: they
see the locals around them, and what they change stays changed for the next one. Nothing is committed on the way. The workflow is a
part of the script's attempt: its writes land with the script's output or not at all, and after a crash the script begins again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, cast

import msgspec

from stepwell.errors import ExecutionFailed, InvalidInput, LimitExceeded, NotFound, ScriptFailed, StepwellError
from stepwell.kernel.commit_planner import CommitPlanner, EffectDone
from stepwell.kernel.data_view import TemplateData
from stepwell.kernel.plan import Plan
from stepwell.kernel.protocol import (
    Abandon,
    AttemptFailed,
    CancelChild,
    ChildEnded,
    Effect,
    End,
    Note,
    RunStep,
    StartChild,
    StepCompleted,
    TimePassed,
)
from stepwell.model.execution_state import ExecutionState, State
from stepwell.model.mutation import Create, SetStatus, SetTrigger, SetVariable
from stepwell.model.record import encode_record, encode_trigger
from stepwell.model.status import Status
from stepwell.model.validation import plan as plan_batch
from stepwell.model.value import Value, canonical, decode
from stepwell.runtime.steps.kernel_effects import log_note, refusal_of
from stepwell.runtime.steps.outcome import error_names, error_value
from stepwell.runtime.steps.scripts import ScriptRun
from stepwell.script.lua_workflows import FUNCTION, WHILE, BuiltWorkflow
from stepwell.script.workflow_results import result_of, step_table

__all__ = ["InlineWorkflow"]

_LONGEST_WAIT = 1.0
"""Timers are looked at again after so long, since the clock may be moved from outside."""
_Landing = list[SetVariable]


class _Question(NamedTuple):
    """A question to the script, and where its answer goes."""

    asked: dict[str, Value]
    answer: asyncio.Future[Value]


class _Task(NamedTuple):
    key: str
    attempt: int
    task: asyncio.Task[None]


class InlineWorkflow:
    """One workflow inside of one attempt at a script.

    Args:
        built: the workflow.
        value: its input.
        run: what the script may do.
        execution_id: what it is called in results. No execution has this id.
    """

    def __init__(self, built: BuiltWorkflow, value: Value, run: ScriptRun, execution_id: str) -> None:
        self._built, self._input, self._run, self.execution_id = built, value, run, execution_id
        self._plan, self._state = Plan(built.definition), State()
        identity = msgspec.structs.replace(
            run.identity,
            execution_id=execution_id,
            workflow_id=built.definition.name,
            started_at=run.clock.now(),
            deadline_ms=None,
            governance=None,  # tools are counted against the budget of the script's execution
        )
        raw = msgspec.Raw
        self._commit_batch(
            [
                Create(raw(encode_record(identity)), raw(b"{}")),
                SetTrigger(raw(encode_trigger(value, run.limits))),
                SetStatus(Status.RUNNING),
            ]
        )
        self._planner = CommitPlanner(self._plan, self._state, run.limits)
        self._wakeup = asyncio.Event()
        self._questions: asyncio.Queue[_Question | None] = asyncio.Queue()
        self._asked: _Question | None = None
        self._tasks: dict[str, _Task] = {}
        self._too_much: LimitExceeded | None = None
        """Why nothing more is begun: the script has made all calls that it may, and ``continue`` would go on with failures."""
        self._end: End | None = None
        self._main = asyncio.create_task(self._work())
        self._main.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._questions.put_nowait(None)
        if not task.cancelled():
            task.exception()  # `result` raises it, if the script still waits for it

    # The script's side.

    async def next_question(self) -> dict[str, Value] | None:
        """Wait until the workflow asks the script something, or has ended: then None."""
        while (question := await self._questions.get()) is not None:
            if not question.answer.done():  # the step that asked may have been cancelled since
                self._asked = question
                return question.asked
        return None

    def answer(self, value: Value, *, is_error: bool) -> None:
        """Take the script's answer to the last question."""
        if self._asked is None:
            raise InvalidInput("the workflow has not asked anything")
        answer, self._asked = self._asked.answer, None
        if answer.done():
            return
        if is_error:
            answer.set_exception(ScriptFailed(str(value)))
        else:
            answer.set_result(value)

    def result(self) -> dict[str, Value]:
        """Return the result of the workflow, which has ended. Raise ``ExecutionFailed`` if it failed."""
        self._main.result()
        return self._result()

    def _result(self) -> dict[str, Value]:
        assert self._end is not None  # noqa: S101 - it has ended
        state = ExecutionState(self._state)
        return result_of(self._built, self._name, self.execution_id, state, self._end.result.get("output"))

    def close(self) -> None:
        """Stop everything."""
        self._main.cancel()
        self._stop()

    def _stop(self) -> None:
        for token_id in list(self._tasks):
            self._abandon(token_id)

    @property
    def _name(self) -> str:
        return self._built.name

    # From the first event to the end.

    async def _work(self) -> None:
        try:
            for hook in ("setup", "on_start"):
                await self._hook(hook, self._input)
            self._planner.begin()
            while self._end is None:
                await self._commit_next()
                if self._end is None:
                    await self._wait()
                if self._too_much is not None:
                    raise self._too_much
        finally:
            self._stop()
        await self._told_end(self._end)

    async def _told_end(self, end: End) -> None:
        is_fine = end.status is Status.COMPLETED
        error: dict[str, Any] = cast("dict[str, Any]", end.result.get("error") or {})
        if not is_fine:
            await self._hook("on_error", error.get("message"), self._shown(error.get("step", "")))
        if "on_complete" in self._built.hooks:
            told = self._result()
            given = (told, is_fine) if self._built.kind == "parallel" else (is_fine, told)
            await self._hook("on_complete", *given)
        if not is_fine:
            raise ExecutionFailed(f"workflow {self._name!r} failed: {error.get('message')}", key=error.get("step", ""))

    async def _commit_next(self) -> None:
        """Give the events that have come to the kernel, and carry out what it asks for."""
        self._wakeup.clear()
        keys = self._plan.state_keys
        scoped = await self._run.read_state(keys) if keys else None
        planned = self._planner.next(self._run.clock.now_ms(), cast("Any", scoped))
        if planned is None:
            return
        try:
            self._commit_batch(planned.batch())
        except StepwellError as error:
            if not self._planner.refused(refusal_of(error), self._state):
                raise
            self._wakeup.set()
            return
        self._end = planned.end
        for effect in self._planner.landed(self._state):
            self._carry_out(effect)
        if self._planner.has_events:
            self._wakeup.set()

    def _commit_batch(self, batch: list[Any]) -> None:
        plan_batch(self._state, batch, self._run.limits).apply()

    async def _wait(self) -> None:
        """Wait for an event or the next timer."""
        soonest = self._planner.kernel.soonest_ms
        left = _LONGEST_WAIT if soonest is None else (soonest - self._run.clock.now_ms()) / 1000
        if left <= 0:
            self._planner.add(EffectDone(TimePassed()))
            return
        try:
            async with asyncio.timeout(min(left, _LONGEST_WAIT)):
                await self._wakeup.wait()
        except TimeoutError:
            return

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case RunStep():
                self._begin(effect, lambda: self._step(effect))
            case StartChild():
                self._begin(effect, lambda: self._child(effect))
            case Abandon(token_id=token_id):
                self._abandon(token_id)
            case Note():
                log_note(self._run.identity, effect)
            case CancelChild() | End():
                pass  # a child's task ends with its token

    def _begin(self, asked: RunStep | StartChild, work: Callable[[], Coroutine[Any, Any, EffectDone]]) -> None:
        """Begin an attempt, unless it runs already: a kernel that was made anew asks for it again."""
        found = self._tasks.get(asked.token_id)
        if found is not None and (found.key, found.attempt) == (asked.key, asked.attempt):
            return
        self._abandon(asked.token_id)

        async def do() -> None:
            done = await work()
            del self._tasks[asked.token_id]
            self._planner.add(done)
            self._wakeup.set()

        self._tasks[asked.token_id] = _Task(asked.key, asked.attempt, asyncio.create_task(do()))

    def _abandon(self, token_id: str) -> None:
        found = self._tasks.pop(token_id, None)
        if found is not None:
            found.task.cancel()

    def _count(self) -> None:
        """Count a call of the script. Raise ``LimitExceeded`` if there were too many, and end the workflow."""
        try:
            self._run.count()
        except LimitExceeded as error:
            self._too_much = error
            self._wakeup.set()
            raise

    # Steps.

    async def _step(self, asked: RunStep) -> EffectDone:
        node = self._node(asked)
        is_own, name = node in self._built.steps, self._shown(node)
        began_ms = self._run.clock.now_ms()
        try:
            if is_own:
                await self._hook("on_step_start", name)
            output, landing = await self._output(asked, node, name)
            data = canonical(output, self._run.limits, what=f"the output of step {name!r}")
            if is_own:
                await self._told_step(node, step_table(name, "COMPLETED", output))
        except Exception as error:  # noqa: BLE001 - the kernel decides what it means
            if is_own:
                await self._told_failure(node, name, error)
            return EffectDone(self._failure(asked, error))
        took_ms = self._run.clock.now_ms() - began_ms
        return EffectDone(StepCompleted(asked.token_id, asked.key, data, took_ms, asked.attempt), landing)

    async def _output(self, asked: RunStep, node: str, name: str) -> tuple[Value, _Landing]:
        """Return the output of a step, or what its ``on_error`` gives instead."""
        hooks = self._built.step_hooks.get(node, {})
        try:
            if "before_execute" in hooks:
                await self._ask("hook", hooks["before_execute"], first=self._context(asked))
            if asked.uses == FUNCTION:
                return await self._answered(asked)
            self._count()
            key = f"{self.execution_id.removeprefix(self._run.identity.execution_id)}/{asked.key}"
            return await self._run.call_tool(asked.uses, asked.args, key, asked.timeout_seconds), []
        except Exception as error:
            if "on_error" not in hooks:
                raise
            instead = await self._ask("hook", hooks["on_error"], first=str(error_value(error)["message"]), second=name)
            if not isinstance(instead, dict) or "output" not in instead:
                raise
            return cast("dict[str, Value]", instead)["output"], []

    async def _told_step(self, node: str, told: dict[str, Value]) -> None:
        hooks = self._built.step_hooks.get(node, {})
        for hook in ("on_complete", "after_execute") if told["success"] else ("after_execute",):
            if hook in hooks:
                await self._ask("hook", hooks[hook], first=told)
        await self._hook("on_step_complete", told["name"], told)

    async def _told_failure(self, node: str, name: str, error: Exception) -> None:
        """Tell hooks of a step that failed. A hook that fails, too, changes nothing any more."""
        try:
            await self._told_step(node, step_table(name, "FAILED", None, str(error_value(error)["message"])))
        except StepwellError:
            return

    def _failure(self, asked: RunStep | StartChild, error: Exception) -> AttemptFailed:
        told = error_value(error)
        policy = self._run.tool_policy(asked.uses) if isinstance(asked, RunStep) else None
        return AttemptFailed(
            asked.token_id,
            asked.key,
            told,
            tuple(error_names(error)),
            is_final=isinstance(error, NotFound) or (not told["is_retryable"] and not isinstance(error, ScriptFailed)),
            policy=policy,
            chance=random.random(),  # noqa: S311 - spreads retries, guards nothing
            attempt=asked.attempt,
        )

    async def _child(self, asked: StartChild) -> EffectDone:
        """Run a subworkflow: one of the script inside of the script, too, and a stored one as an execution of its own."""
        built = self._built.inner.get(asked.workflow)
        try:
            self._count()
            if built is None:
                output, _ = await self._run.run_workflow(asked.workflow, asked.input, asked.child_id)
            else:
                output = await self._run_inside(InlineWorkflow(built, asked.input, self._run, asked.child_id))
        except Exception as error:  # noqa: BLE001 - the kernel decides what it means
            return EffectDone(self._failure(asked, error))
        return EffectDone(ChildEnded("", asked.child_id, {"status": "COMPLETED", "result": {"output": output}}))

    async def _run_inside(self, child: InlineWorkflow) -> Value:
        try:
            while (question := await child.next_question()) is not None:
                try:
                    child.answer(await self._put(question), is_error=False)
                except ScriptFailed as error:
                    child.answer(error.message, is_error=True)
            return child.result()["output"]
        finally:
            child.close()

    # Questions.

    async def _answered(self, asked: RunStep) -> tuple[Value, _Landing]:
        """Return the script's answer to a node that asks it, and the variables that the answer sets."""
        given = cast("dict[str, Any]", asked.args)
        kind, context = str(given["as"]), self._context(asked)
        number: int | None = given.get("code")
        code = None if number is None else self._built.codes[number]
        if kind == "iteration":
            return await self._ask("hook", given["function"], first=context["iteration"], second=context), []
        if "ahead" in given:
            context["iteration"] = context["index"] = context["current_index"] = cast("int", context["iteration"]) + 1
        if kind == "step":
            context["input"] = given.get("input", context["input"])
        answer = await self._ask(kind, given.get("function"), code, first=context, second=context["body_output"])
        if kind != "update":
            return answer, []
        state = cast("dict[str, Value]", answer) if isinstance(answer, dict) else {}
        before = cast("dict[str, Value]", context["state"])
        changed = {name: state.get(name) for name in {*before, *state} if before.get(name) != state.get(name)}
        taken = next((name for name in sorted(changed) if name.startswith("$") or name == WHILE), None)
        if taken is not None:
            raise InvalidInput(f"variable {taken!r} is Stepwell's own; choose another name")
        limits, raw = self._run.limits, msgspec.Raw
        written = {name: canonical(value, limits, what=f"variable {name!r}") for name, value in sorted(changed.items())}
        return None, [SetVariable(name, raw(data)) for name, data in written.items()]

    async def _ask(self, kind: str, function: int | None, code: str | None = None, **given: Value) -> Value:
        return await self._put({"as": kind, "function": function, "code": code, **given})

    async def _put(self, asked: dict[str, Value]) -> Value:
        question = _Question(asked, asyncio.get_running_loop().create_future())
        self._questions.put_nowait(question)
        return await question.answer

    async def _hook(self, name: str, first: Value = None, second: Value = None) -> None:
        function = self._built.hooks.get(name)
        if function is not None:
            await self._ask("hook", function, first=first, second=second)

    def _context(self, asked: RunStep) -> dict[str, Value]:
        """Return what a function gets: the input, the state of the loop and its round, and how the steps before it ended."""
        token = self._planner.kernel.tokens[asked.token_id]
        facts = TemplateData(self._planner.kernel, token)
        steps: dict[str, Value] = {}
        ends: list[dict[str, Value]] = []
        for node, name in self._built.steps.items():
            try:
                found: dict[str, Any] = facts["steps"][node]
            except KeyError:
                continue
            error = found["error"]
            end = step_table(name, str(found["status"]), found["output"], None if error is None else error["message"])
            steps[node] = steps[name] = end
            if len(self._plan.rounds[node]) == len(token.at):  # in a loop, of its body
                ends.append(end)
        entries = self._state.sections["variables"]  # a view of the whole state would be copied for each question
        variables = {name: decode(data) for name, data in entries.items() if name != WHILE}
        failed = [end for end in ends if not end["success"]]
        context: dict[str, Value] = {
            "input": self._input,
            "workflow": self._name,
            "step": self._shown(self._node(asked)),
            "attempt": asked.attempt,
            "state": dict(variables),
            "steps": steps,
            "body_output": ends[-1]["output"] if ends else None,
            "body_success": not failed,
            "body_error": failed[0]["error"] if failed else None,
        }
        if token.at:
            index = facts["index"]
            context |= {"iteration": index, "index": index, "current_index": index, "current_item": facts["item"]}
        else:
            context |= {"iteration": 0}
        if self._built.branches:
            context["branch_results"] = result_of(self._built, "", "", ExecutionState(self._state), None)["branches"]
        return context

    def _node(self, asked: RunStep) -> str:
        return self._planner.kernel.tokens[asked.token_id].place.name

    def _shown(self, node: str) -> str:
        return self._built.steps.get(node, node)
