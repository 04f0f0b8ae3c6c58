"""Lua scripts as steps: the worker's side. A script runs in a confined process; what it asks for is checked and done here.

The process is trusted with nothing. It is killed when the script has computed for longer than it may, when its attempt is
cancelled, and when it says something that is no message. Nothing that a script wrote is stored then, since its writes wait in this
process for the commit of its output.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.util import find_spec
from math import ceil
from typing import Any

import msgspec

from stepwell.errors import InvalidInput, LimitExceeded, NoScriptEngine, ProcessDied, ScriptFailed, StepwellError
from stepwell.flow.definition.document_writer import plain_definition
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.value import Value, canonical
from stepwell.runtime.steps.process_pool import ChildProcess, ProcessPool, Slot
from stepwell.runtime.steps.scripts import ScriptRun
from stepwell.script.inline_workflow import InlineWorkflow
from stepwell.script.lua_messages import HostReply, ProcessLimits, ScriptMessage, ScriptTask
from stepwell.script.lua_workflows import BuiltWorkflow, build_workflow, stored_name
from stepwell.script.workflow_results import result_of

__all__ = ["LuaEngine"]

log = logging.getLogger("stepwell.script")
"""What scripts print; `stepwell run` shows it."""

_SCRIPTS_PER_LIFE = 20
"""A process may use the CPU time of so many runaway scripts before the kernel ends it. It is replaced before that."""
_FRAME_BYTES = 16 * 1024 * 1024
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_decode = msgspec.json.Decoder(ScriptMessage).decode
_encode = msgspec.json.Encoder().encode


class LuaProcess(ChildProcess):
    """A confined process that runs the scripts of one workspace."""

    module = "stepwell.script.lua_process"

    def __init__(self, threads: ThreadPoolExecutor, owner: str, limits: Limits) -> None:
        super().__init__(threads, owner)
        self.longest_frame = max(_FRAME_BYTES, 4 * limits.value_bytes)
        self._limits, self._is_confined = limits, False
        self._life_seconds = ceil(limits.script_ms * _SCRIPTS_PER_LIFE / 1000)
        self._used_seconds = 0.0

    def environment(self) -> Mapping[str, str]:
        """Return nothing: the environment of a worker has secrets."""
        return {}

    async def start(self) -> None:
        """Start the process, and confine it."""
        await super().start()
        if not self._is_confined:
            limits = ProcessLimits(self._limits.script_memory_bytes, self._life_seconds + 1)
            await self.exchange(_encode(limits))
            self._is_confined = True

    async def say(self, data: bytes, seconds: float) -> tuple[ScriptMessage, float]:
        """Send a frame; return what the script says next, and how long it computed. Kill it if that takes too long."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                answer = await self.exchange(data)
        except TimeoutError:
            raise LimitExceeded.of("script_ms", self._limits.script_ms, None, "the time that the script computes") from None
        except ProcessDied as error:
            raise ProcessDied(error.message.replace("of the step", "of the script")) from None
        took = time.monotonic() - began
        self._used_seconds += took
        try:
            return _decode(answer), took
        except msgspec.MsgspecError:
            self.kill()
            raise ProcessDied("the process of the script said what no script says, and was ended") from None

    @property
    def is_worn(self) -> bool:
        """True if another script could use up the CPU time that the process has left."""
        return self._used_seconds + self._limits.script_ms / 1000 > self._life_seconds


class LuaEngine:
    """Runs Lua scripts for one worker, in processes that are kept for the next script of the same workspace."""

    def __init__(self, limits: Limits) -> None:
        if sys.platform == "win32":
            raise NoScriptEngine("scripts in Lua need a system with resource limits for processes: Linux or macOS")
        if find_spec("lupa") is None:
            raise NoScriptEngine("scripts in Lua need lupa; install it with: pip install 'stepwell[lua]'")
        self._limits = limits
        self._pool = ProcessPool(lambda threads, owner: LuaProcess(threads, owner, limits))

    async def run(self, code: str, value: Value, run: ScriptRun) -> Value:
        """Run a script and return its output.

        Raises:
            ScriptFailed: the script raised an error or is not written correctly.
            LimitExceeded: it computed too long, used too much memory or made too many calls.
            ProcessDied: its process ended.
        """
        async with self._pool.borrow(run.identity.workspace_id) as (process, slot):
            try:
                script = _Script(process, slot, run, self._limits)
                try:
                    said = await script.last_message(code, value)
                finally:
                    script.close()
            except BaseException:
                process.kill()  # the script has not ended by itself
                raise
            if process.is_worn:
                process.kill()
        return self._output_of(said)

    def _output_of(self, said: ScriptMessage) -> Value:
        match said.kind, said.name:
            case "done", _:
                return said.value
            case _, "memory":
                most = self._limits.script_memory_bytes
                raise LimitExceeded.of("script_memory_bytes", most, None, "the memory that the script uses, in bytes,")
            case _, "syntax":
                raise ScriptFailed(f"the script is not written correctly: {said.value}")
            case _, "value":
                raise ScriptFailed(f"the script returned what cannot be stored: {said.value}")
            case _:
                raise ScriptFailed(str(said.value))

    def close(self) -> None:
        """End all processes."""
        self._pool.close()


class _Script:
    """One script, from its first frame to its last."""

    def __init__(self, process: LuaProcess, slot: Slot, run: ScriptRun, limits: Limits) -> None:
        self._process, self._slot, self._run, self._limits = process, slot, run, limits
        self._left = limits.script_ms / 1000
        self._inside: list[InlineWorkflow] = []
        """Workflows that run inside of the script, each but the first begun by a function that the one before it asked."""
        self._calls: dict[str, Callable[..., Coroutine[Any, Any, Value]]] = {
            "state.get": self._get,
            "state.set": self._set,
            "state.delete": self._delete,
            "state.list": self._list,
            "state.get_of": self._get_of,
            "state.list_of": self._list_of,
            "tool.call": self._call_tool,
            "tool.exists": self._tool_exists,
            "tool.list": self._tools,
            "workflow.check": self._check,
            "workflow.run": self._run_workflow,
            "workflow.answer": self._answer_workflow,
            "workflow.exists": self._workflow_exists,
            "workflow.list": self._workflows,
        }

    async def last_message(self, code: str, value: Value) -> ScriptMessage:
        """Run the script until it says how it ended, doing what it calls."""
        said = await self._say(self._task(code, value))
        while said.kind == "ask":
            async with self._slot.lent():
                answer = await self._answer(said)
            said = await self._say(answer)
        return said

    def close(self) -> None:
        """Stop the workflows that run inside of the script."""
        while self._inside:
            self._inside.pop().close()

    async def _say(self, message: ScriptTask | HostReply) -> ScriptMessage:
        said, took = await self._process.say(_encode(message), self._left)
        self._left = max(self._left - took, 0.0)
        for level, text in said.printed:
            shown = self._run.without_secrets(text).expandtabs(4)  # print puts tabs between what it is given
            for line in shown.splitlines() or [""]:
                log.log(_LEVELS.get(level, logging.INFO), "%s %s: %s", self._run.identity.execution_id, self._run.step, line)
        return said

    def _task(self, code: str, value: Value) -> ScriptTask:
        identity, run = self._run.identity, self._run
        seed = sha256(f"{identity.execution_id}\0{run.step}".encode()).digest()
        return ScriptTask(
            code,
            value,
            identity.workflow_id,
            identity.execution_id,
            run.step,
            run.attempt,
            run.now.timestamp(),
            int.from_bytes(seed[:7], "big"),
            self._limits.script_memory_bytes,
            self._limits.depth,
        )

    async def _answer(self, said: ScriptMessage) -> HostReply:
        self._run.count()
        call = self._calls.get(said.name)
        if call is None:
            raise ProcessDied(f"the process of the script asked for {said.name[:40]!r}, which there is not, and was ended")
        try:
            return HostReply(await call(*said.arguments))
        except StepwellError as error:
            return HostReply(error=f"{type(error).__name__}: {error.message}")
        except TypeError as error:
            return HostReply(error=f"{said.name}: {error}")
        except Exception as error:  # noqa: BLE001 - of a tool; it is an error at the script's line, which may catch it
            return HostReply(error=f"{type(error).__name__}: {error}")

    # The functions that a script can call. Arguments come from its process and may be of any type.

    async def _get(self, scope: Value, key: Value = None) -> Value:
        return await self._run.state(_text(scope, "a scope")).get(_text(key, "a key"))

    async def _set(self, scope: Value, key: Value = None, value: Value = None) -> Value:
        state = self._run.state(_text(scope, "a scope"))
        # Checked here, so that it is refused at the script's line and not at the commit.
        name = check_key(_text(key, "a key"), "a state key", self._limits.key_bytes)
        if value is None:
            state.delete(name)
        else:
            canonical(value, self._limits, what=f"state key {name!r}")
            state.set(name, value)
        return True

    async def _delete(self, scope: Value, key: Value = None) -> Value:
        state = self._run.state(_text(scope, "a scope"))
        was_there = await state.exists(_text(key, "a key"))
        state.delete(_text(key, "a key"))
        return was_there

    async def _list(self, scope: Value) -> Value:
        return await self._run.state(_text(scope, "a scope")).keys()

    async def _get_of(self, workflow: Value, key: Value = None) -> Value:
        """Return a value of another workflow's state; null if it is not for this script to read."""
        scope = f"workflow:{_text(workflow, 'a workflow')}"
        return await self._get(scope, key) if self._run.may_read(scope) else None

    async def _list_of(self, workflow: Value) -> Value:
        scope = f"workflow:{_text(workflow, 'a workflow')}"
        return await self._list(scope) if self._run.may_read(scope) else []

    async def _call_tool(self, name: Value, value: Value = None) -> Value:
        return await self._run.call_tool(_text(name, "a tool's name"), {} if value is None else value)

    async def _tool_exists(self, name: Value) -> Value:
        return _text(name, "a tool's name") in self._run.tool_names()

    async def _tools(self) -> Value:
        return self._run.tool_names()

    async def _check(self, spec: Value) -> Value:
        stored = stored_name(spec)
        if stored is not None:
            return {"name": stored, "definition": None}
        built = build_workflow(spec)
        definition = plain_definition(built.definition)
        return {"name": built.definition.name, "definition": definition, "codes": list(built.codes)}

    async def _run_workflow(self, spec: Value, value: Value = None) -> Value:
        given: Value = {} if value is None else value
        child_id, stored = self._run.next_child(), stored_name(spec)
        if stored is not None:
            output, state = await self._run.run_workflow(stored, given, child_id)
            return result_of(None, stored, child_id, state, output)
        built = build_workflow(spec, self._run.identity, self._run.tool_names())
        if built.is_inside:
            self._inside.append(InlineWorkflow(built, given, self._run, child_id))
            return await self._next_question()
        return await self._run_child(built, given, child_id)

    async def _run_child(self, built: BuiltWorkflow, value: Value, child_id: str) -> Value:
        for each in built.inner.values():
            await self._run.store_workflow(each.definition)
        output, state = await self._run.run_workflow(built.definition, value, child_id)
        return result_of(built, built.name, child_id, state, output)

    async def _answer_workflow(self, number: Value, is_fine: Value, value: Value = None) -> Value:
        """Take the script's answer to a question of the workflow inside of it with this number, and wait for the next one."""
        if type(number) is not int or not 0 < number <= len(self._inside):
            raise InvalidInput("no workflow inside of the script has asked that")
        while len(self._inside) > number:  # a function left a workflow that it had begun
            self._inside.pop().close()
        self._inside[-1].answer(value, is_error=is_fine is not True)
        return await self._next_question()

    async def _next_question(self) -> Value:
        """Return the next question of the innermost workflow inside of the script, or its result."""
        inside = self._inside[-1]
        question = await inside.next_question()
        if question is not None:
            return {"$ask": {**question, "number": len(self._inside)}}
        self._inside.pop()
        return inside.result()

    async def _workflow_exists(self, name: Value) -> Value:
        return await self._run.has_workflow(_text(name, "a workflow's name"))

    async def _workflows(self) -> Value:
        return self._run.workflow_names()


def _text(value: Value, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is a text, not {'nil' if value is None else value!r}")
    return value
