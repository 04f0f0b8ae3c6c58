"""Find the step that brings down its workers, without blaming runs that only ran beside it, or whose store was away.

Normally nothing is written when a step begins, so the record cannot say which step was under way when a worker died. An execution
whose last session ended without giving it back is therefore *suspected*: before each step its session commits a mark, which says
which step begins now, and how often it has begun without an end. A step that ends, however it ends, or a session that rests clears
the mark. Only marks count as crashes. Executions that have marks run their steps one at a time on each worker, so that the guilty
one uses up its own marks and not those of others. After a first crash there are no marks yet, and all executions resume at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from stepwell.clock import Clock
from stepwell.model.draft import Draft, Planned
from stepwell.model.execution_state import ONLY, State
from stepwell.model.mutation import SetMetadata
from stepwell.model.record import OWN_METADATA
from stepwell.model.value import decode, recode
from stepwell.runtime.sessions.execution_writer import ExecutionWriter

__all__ = ["CrashSuspicion", "cleared_marks", "crash_message"]

_MARKS = OWN_METADATA[1]
"""The key of the marks in an execution's metadata."""
_CODE = ""
"""Marks the workflow's own code, until its first step begins."""
_MOST = 3
_ALONE_SECONDS = 30.0
"""How long a suspected step waits for another one to end: one that never ends must not hold up the others."""


def _marks(state: State) -> dict[str, Any]:
    data = state.sections["metadata"].get(ONLY, b"{}")
    if _MARKS.encode() not in data:
        return {}
    marks = decode(data).get(_MARKS)
    return cast("dict[str, Any]", marks) if isinstance(marks, dict) else {}


def _marked(marks: Mapping[str, Any] | None) -> Planned:
    """Return the change that sets or clears the marks, beside what a transaction has put into the metadata meanwhile."""

    def change(draft: Draft) -> SetMetadata:
        metadata = {key: value for key, value in decode(draft.get("metadata", ONLY) or b"{}").items() if key != _MARKS}
        return SetMetadata(msgspec.Raw(recode(metadata if marks is None else {**metadata, _MARKS: marks})))

    return change


def cleared_marks(state: State) -> list[Planned]:
    """Return the mutation that clears the marks of an execution, if it has any."""
    return [_marked(None)] if _marks(state) else []


def crash_message(state: State) -> str | None:
    """Return why an execution is not run again: which step, how often, and what was seen; None if it may be run."""
    marks = _marks(state)
    counts: dict[str, int] = marks.get("counts", {})
    name, count = max(counts.items(), key=lambda each: each[1], default=("", 0))
    if count < _MOST:
        return None
    what = "the workflow's own code" if name == _CODE else f"step {name!r}"
    return (
        f"{what} brought down its worker again and again: {count} times in a row it was under way when its worker died or lost its "
        f"lease, the last time on worker {marks.get('holder')}, begun at {marks.get('began_at')}"
    )


class CrashSuspicion:
    """The suspicion against one execution, for the length of a session.

    Args:
        slot: held while a marked step runs, one for each worker.
        is_forgiven: whether this worker knows that the sessions before did not crash.
    """

    def __init__(self, writer: ExecutionWriter, holder: str, clock: Clock, slot: asyncio.Lock, *, is_forgiven: bool) -> None:
        self._writer, self._holder, self._clock, self._slot = writer, holder, clock, slot
        self._counts: dict[str, int] = {} if is_forgiven else dict(_marks(writer.state).get("counts", {}))
        self._had_marks = bool(self._counts)
        self._has_slot = self._is_over = False

    @staticmethod
    def has_marks(state: State) -> bool:
        """Return whether a step of the execution began, and no session came to its end."""
        return bool(_marks(state))

    async def begin_code(self) -> None:
        """Mark that the workflow's own code begins."""
        await self._mark(_CODE)

    async def begin(self, key: str) -> bool:
        """Mark that a step begins, when no other suspected step is under way; False if the suspicion is over by then."""
        if self._is_over:
            return False
        if self._had_marks:
            if self._slot.locked():
                await self._clear_code()  # else waiting for others, which may crash the worker, counts as the code's own crashes
            await self._wait_for_slot()
        if not self._is_over:
            self._counts.pop(_CODE, None)
            try:
                await self._mark(key)
            except BaseException:
                self._release()
                raise
            return True
        self._release()
        return False

    async def _clear_code(self) -> None:
        if self._counts.pop(_CODE, None) is not None:
            await self._write_marks()

    async def _wait_for_slot(self) -> None:
        try:
            async with asyncio.timeout(_ALONE_SECONDS):
                await self._slot.acquire()
            self._has_slot = True
        except TimeoutError:
            pass

    def end(self) -> None:
        """Note that a step has ended in any way: its worker is alive. The marks are cleared by the commit of its outcome."""
        self._is_over = True
        self._writer.buffer(*cleared_marks(self._writer.state))
        self._release()

    def _release(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._slot.release()

    async def _mark(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1
        await self._write_marks()

    async def _write_marks(self) -> None:
        marks = {"counts": self._counts, "holder": self._holder, "began_at": self._clock.now().isoformat(timespec="seconds")}
        await self._writer.commit([_marked(marks)])
