"""What a workflow's code calls beside its steps: sleep, wait_signal, map, patched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput
from stepwell.flow.function import Step, caller
from stepwell.model.ids import check_key
from stepwell.runtime.sessions.function_session import FunctionSession

__all__ = ["compensate", "map", "patched", "sleep", "wait_signal"]


def sleep(span: Span) -> Any:
    """Wait durably: ``await stepwell.sleep("2h")``. It holds no thread, and what is left of it goes on after a crash."""
    return _session("sleep").sleep(seconds_of(span, "the time to sleep"))


def wait_signal(name: str, *, timeout: Span | None = None) -> Any:
    """Wait durably for a signal and give its value; ``TimeoutError`` if it does not come in time."""
    limit = None if timeout is None else seconds_of(timeout, "timeout")
    return _session("wait_signal").wait_signal(check_key(name, "a signal's name"), limit)


def map(step: Callable[[Any], Any], items: Iterable[Any], *, concurrency: int = 10) -> Any:
    """Call a step once for each item, ``concurrency`` at a time; the outputs in the order of the items."""
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidInput(f"concurrency is a whole number, 1 or more, not {concurrency!r}")
    return _session("map").map(step, list(items), concurrency)


def compensate(step: Step[..., Any], *arguments: Any, **keywords: Any) -> None:
    """Have a step made if this run fails or is cancelled later: the last one asked for first, each recorded like any step.

    Say it right after what it undoes, or right before, if that may have an effect and fail all the same.
    """
    if not isinstance(step, Step):
        raise InvalidInput(f"stepwell.compensate() takes a step and its arguments, not {step!r}")
    _session("compensate").compensate(step, arguments, keywords)


def patched(name: str) -> bool:
    """Whether to go the new way at a changed place: yes for new executions, no for those that passed here before the change."""
    return _session("patched").patched(check_key(name, "a patch's name"))


def _session(what: str) -> FunctionSession:
    inside = caller.get()
    if not isinstance(inside, FunctionSession):
        raise InvalidInput(f"stepwell.{what}() is for the code of a workflow; elsewhere use the plain way to do it")
    return inside
