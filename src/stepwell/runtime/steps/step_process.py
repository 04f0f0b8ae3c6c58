"""Steps in processes of their own: the parent's side. A process is a fresh interpreter that imports a step by module and name."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from stepwell.errors import InvalidInput
from stepwell.flow.function import Step
from stepwell.runtime.steps.context import StepContext
from stepwell.runtime.steps.outcome import Told
from stepwell.runtime.steps.process_main import StepReply, Task
from stepwell.runtime.steps.process_pool import ChildProcess
from stepwell.telemetry import span_of_caller

__all__ = ["StepProcess"]


class StepProcess(ChildProcess):
    """A process that runs steps, one after another."""

    module = "stepwell.runtime.steps.process_main"

    def environment(self) -> Mapping[str, str]:
        """Return this process's own, since steps are the program's code."""
        return os.environ

    async def call(self, step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bytes:
        """Run a step there, and return its output as canonical bytes. A caller that gives up waiting kills the process."""
        task = msgspec.json.encode(_task(step, context, arguments, keywords))
        reply = msgspec.json.decode(await self.exchange(task), type=StepReply)
        context.buffer.spent += reply.spent
        if reply.error is not None:
            raise Told(reply.error["message"], reply.error, reply.names)
        context.buffer.extend(reply.mutations)
        return bytes(reply.output)


def _task(step: Step[..., Any], context: StepContext, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Task:
    main = sys.modules["__main__"]
    module, path = step.function.__module__, None
    if module == "__main__":
        spec = getattr(main, "__spec__", None)
        module, path = (spec.name, None) if spec is not None else ("", getattr(main, "__file__", None))
        if not module and path is None:
            raise InvalidInput(f"step {step.name!r} cannot run in a process: it is not in a file that another process can import")
    return Task(
        module,
        path,
        step.function.__qualname__,
        context.identity,
        context.step,
        context.attempt,
        msgspec.Raw(step.encode_call(arguments, keywords, context.buffer.limits)),
        context.buffer.limits,
        step.name,
        msgspec.Raw(context.started_by or b"null"),
        span_of_caller(),
    )
