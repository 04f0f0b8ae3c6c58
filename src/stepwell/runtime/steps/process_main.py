"""Main program of a step process: read a step's name and arguments from the parent, run the step, and send its output or error.

Messages are frames of JSON on the standard streams, each after its length. Input is never executed: a name that is no step of a
module is refused. When the parent is gone, the process ends.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import queue
import runpy
import signal
import sys
import threading
from functools import cache
from operator import attrgetter
from typing import IO, Any

import msgspec

from stepwell.errors import InvalidInput
from stepwell.flow.function import Step, caller
from stepwell.model.limits import Limits
from stepwell.model.mutation import WriteState
from stepwell.model.record import Metadata
from stepwell.runtime.steps.context import StepContext, here
from stepwell.runtime.steps.frames import read_frame, write_frame
from stepwell.runtime.steps.outcome import error_names, error_value
from stepwell.telemetry import inside_of

__all__ = ["StepReply", "Task", "main"]


class Task(msgspec.Struct, frozen=True):
    """A step to be run."""

    module: str
    path: str | None
    """The file of a program that cannot be imported by name."""
    name: str
    identity: Metadata
    key: str
    attempt: int
    call: msgspec.Raw
    limits: Limits
    step: str
    """The name of the step."""
    started_by: msgspec.Raw
    """The trigger as it is stored; null if there is none."""
    span: tuple[str, str, int] | None = None
    """The trace id, span id and flags of the attempt's span, if there is one."""


class StepReply(msgspec.Struct, frozen=True):
    """The result of a step: an output with the writes that land with it, or an error."""

    output: msgspec.Raw = msgspec.Raw(b"null")
    mutations: list[WriteState] = []
    spent: float = 0
    error: dict[str, Any] | None = None
    names: list[str] = []


def main() -> None:
    """Serve the parent until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to the whole process group; the parent decides
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Redirect a step's prints, which must not mix with the frames.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(incoming, tasks), daemon=True).start()
    write_frame(outgoing, b"ready")
    while True:
        write_frame(outgoing, msgspec.json.encode(_reply(msgspec.json.decode(tasks.get(), type=Task))))


def _receive(incoming: IO[bytes], tasks: queue.SimpleQueue[bytes]) -> None:
    while (data := read_frame(incoming)) is not None:
        tasks.put(data)
    # Even in the middle of a step: the process that wanted its output is dead.
    os._exit(0)


def _reply(task: Task) -> StepReply:
    started_by = bytes(task.started_by)
    context = StepContext(
        task.identity, task.key, task.attempt, task.limits, started_by=None if started_by == b"null" else started_by, name=task.step
    )
    try:
        step = _found(task.module, task.path, task.name)
        arguments, keywords = step.decode_call(bytes(task.call))
        caller.set(None)
        here.set(context)
        with inside_of(task.span):
            result = step.function(*arguments, **keywords)
            output = step.encode(asyncio.run(result) if step.is_async else result, task.limits)
        batch = context.buffer.batch()
        landing = [each for each in batch if isinstance(each, WriteState)]
        if len(landing) < len(batch):
            raise InvalidInput("a step in a process can write scoped state by values, not by functions, and enqueue nothing")
        return StepReply(msgspec.Raw(output), landing, context.buffer.spent)
    except Exception as error:  # noqa: BLE001 - the parent decides what it means
        return StepReply(spent=context.buffer.spent, error=error_value(error), names=error_names(error))


@cache
def _program(path: str) -> Any:
    return runpy.run_path(path, run_name="__stepwell_process__")


def _found(module: str, path: str | None, name: str) -> Step[..., Any]:
    first, _, rest = name.partition(".")
    place: Any = _program(path)[first] if path is not None else getattr(importlib.import_module(module), first)
    found = attrgetter(rest)(place) if rest else place
    if not isinstance(found, Step):
        raise InvalidInput(f"{name!r} of {path or module} is no step")
    return found  # pyright: ignore[reportUnknownVariableType] - of any parameters


if __name__ == "__main__":
    sys.exit(main())
