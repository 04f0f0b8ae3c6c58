"""Positions of calls in a workflow's code: the same in every run, however its tasks interleave.

A workflow's code is one branch; a task that it starts is a branch of its own, numbered in the order in which its parent started it.
Inside a branch calls are numbered one by one. A call's position is therefore the same in a run after a crash, provided that the
code makes its decisions only from its input and from what steps gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

from stepwell.runtime.unwinding import Unwinding

__all__ = ["CallSequence", "CallTree", "OutsideSequence", "branch", "follow_tasks", "is_before"]


class CallTree:
    """The branches of one workflow's code, as a tree."""

    def __init__(self, began: Callable[[str, str], None]) -> None:
        self.began = began
        """Called with the paths of a branch and of the branch that it starts."""
        self.tasks: set[asyncio.Future[Any]] = set()
        """Tasks that the code has started and that are not over."""

    def ended(self, task: asyncio.Future[Any]) -> None:
        """Note that a task is over. asyncio logs no error for one that was unwound with the code."""
        self.tasks.discard(task)
        # Asking for the exception marks it as seen. asyncio must still log any other exception that was not retrieved.
        if not task.cancelled() and _is_unwound(getattr(task, "_exception", None)):
            task.exception()


def _is_unwound(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):  # in a task group
        return error.split(Unwinding)[1] is None  # pyright: ignore[reportUnknownMemberType] - whatever else is in it
    return isinstance(error, Unwinding)


class CallSequence:
    """The calls of one branch, numbered one by one."""

    __slots__ = ("_calls", "_children", "_family", "_maps", "_names", "_undos", "path")

    def __init__(self, family: CallTree, path: str = "") -> None:
        self._family, self.path = family, path
        self._calls = self._children = self._maps = self._undos = 0
        self._names: dict[str, int] = {}

    def child(self) -> CallSequence:
        """Return the branch of a task that this branch starts now."""
        path = self.upcoming_branch()
        self._children += 1
        self._family.began(self.path, path)
        return CallSequence(self._family, path)

    def follow(self, task: asyncio.Future[Any]) -> None:
        """Note a task that this workflow's code has started."""
        self._family.tasks.add(task)
        task.add_done_callback(self._family.ended)

    def next_call(self, name: str) -> tuple[str, str]:
        """Return the position of the next call, and its key: the call's name, with a number from the second call on."""
        self._calls += 1
        return f"{self.path}{self._calls}", self._key(name)

    def next_undo(self, name: str) -> tuple[str, str]:
        """Return the same for a compensation. It has numbers of its own: it becomes a call only at the end, if at all."""
        self._undos += 1
        return f"{self.path}u{self._undos}", self._key(f"undo:{name}")

    def next_map(self, name: str) -> str:
        """Return the key of the next ``map``, which has numbers of its own: the calls are those of its items."""
        self._maps += 1
        return f"{self.path}map:{name}" + ("" if self._maps == 1 else f"#{self._maps}")

    def _key(self, name: str) -> str:
        count = self._names[name] = self._names.get(name, 0) + 1
        # A name that looks like a second call of another name always gets a number, so that no two calls share a key.
        return f"{self.path}{name}" if count == 1 and "#" not in name else f"{self.path}{name}#{count}"

    def upcoming(self) -> str:
        """Return the position of the next call."""
        return f"{self.path}{self._calls + 1}"

    def upcoming_branch(self) -> str:
        """Return the path of the next task's branch."""
        return f"{self.path}{self._children + 1}/"


def is_before(one: str, other: str) -> bool:
    """Return whether a call's position comes before another's; False for positions of different branches, which have no order."""
    path, _, number = one.rpartition("/")
    other_path, _, other_number = other.rpartition("/")
    return path == other_path and int(number or 0) < int(other_number or 0)


branch: ContextVar[CallSequence | None] = ContextVar("stepwell_branch", default=None)
"""The branch of the running code; None outside workflows."""


class OutsideSequence:
    """Leaves the branch during a call: tasks that a call starts are not the workflow's.

    If they were counted, the workflow's own tasks would have other numbers in a run that answers the call from the record.
    """

    __slots__ = ("_left",)

    def __enter__(self) -> None:
        self._left = branch.get()
        branch.set(None)

    def __exit__(self, *error: object) -> None:
        branch.set(self._left)


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Give every task that a workflow's code starts on this loop a branch of its own."""
    before = loop.get_task_factory()
    if getattr(before, "follows_branches", False):
        return

    def start(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Future[Any]:
        parent = branch.get()
        if parent is not None:
            context = options.get("context") or copy_context()
            context.run(branch.set, parent.child())
            options["context"] = context
        task = before(loop, coro, **options) if before is not None else asyncio.Task(coro, loop=loop, **options)
        if parent is not None:
            parent.follow(task)
        return task

    start.follows_branches = True  # pyright: ignore[reportFunctionMemberAccess] - marks our own factory
    loop.set_task_factory(start)  # pyright: ignore[reportArgumentType] - the protocol's options vary between versions
