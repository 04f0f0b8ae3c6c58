"""Hooks and observers of one process: functions of the user that are called before and after changes, and for events of runs.

A hook runs in a thread of its own, for a limited time, and outside of every transaction of a store: what it does can refuse a
change, but cannot leave half of one. A hook that keeps failing, or does not return, is cut off: it is not called for a
while, as health and the log say. Observers are called from a queue, so that no writer waits for them.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime
from time import monotonic
from typing import Any, cast

import msgspec

from stepwell.duration import Span, seconds_of
from stepwell.errors import ChangeCancelled, InvalidInput
from stepwell.flow.retry import error_text
from stepwell.model.limits import Limits
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import Scope, is_internal
from stepwell.model.scoped_operations import Clear, Copy, Delete, Increment, Merge, Put, StateOp
from stepwell.model.value import Value, canonical, decode
from stepwell.state.transaction_buffer import HasScope, scope_of

__all__ = ["Cancel", "ExecutionEvent", "Hook", "Hooks", "Modify", "ProposedChange", "StepEvent"]

log = logging.getLogger(__name__)

_MOST_FAILURES = 3
"""After so many failures in a row, a hook is cut off."""
_CUT_OFF_SECONDS = 30.0
"""Then it is tried again, with one call."""
_MOST_WAITING = 10_000
"""Events that wait for observers; what comes while there are so many is dropped, and counted."""

_ACTIONS: dict[type, str] = {
    Put: "set",
    Delete: "delete",
    Increment: "increment",
    Merge: "merge",
    Copy: "copy",
    Clear: "clear",
}


class ProposedChange(PlainRecord, frozen=True, kw_only=True):
    """A change of scoped state: before it is written, or after it has landed."""

    scope: Scope
    key: str
    """Empty for ``clear``."""
    action: str
    """``set``, ``delete``, ``increment``, ``merge``, ``copy`` (also a move) or ``clear``."""
    value: Value = None
    """The value to set or merge, the number to add; None for the others."""
    execution_id: str | None = None
    """The execution whose commit it is a part of."""


class Modify(PlainRecord, frozen=True):
    """Return this from a hook before a ``set`` to have another value written."""

    value: Value


class Cancel(PlainRecord, frozen=True):
    """Return this from a hook before a change to refuse it, and with it everything that would land together with it."""

    reason: str


class ExecutionEvent(PlainRecord, frozen=True, kw_only=True):
    """An execution has started or ended; the commit that says so has landed."""

    kind: str
    """``started`` or ``ended``."""
    execution_id: str
    workspace_id: str
    workflow_id: str
    status: str
    revision: int
    at: datetime


class StepEvent(PlainRecord, frozen=True, kw_only=True):
    """An attempt at a step begins in this process, or has ended. Its output is not recorded yet."""

    kind: str
    """``started`` or ``ended``."""
    execution_id: str
    workspace_id: str
    workflow_id: str
    step: str
    key: str
    """The name of the call in ``steps``."""
    attempt: int
    at: datetime
    error: str | None = None
    """The error of the attempt."""


class Hook:
    """A registered function. ``remove`` unregisters it."""

    def __init__(
        self, hooks: Hooks, kind: str, function: Callable[[Any], Any], timeout: float, scope: Scope | None, *, is_required: bool
    ) -> None:
        self._hooks, self.kind, self._function, self._timeout = hooks, kind, function, timeout
        self._scope, self.is_required = scope, is_required
        self.name: str = getattr(function, "__qualname__", None) or repr(function)
        self.calls = 0
        self.failures = 0
        self.last_error: str | None = None
        self._in_a_row = 0
        self._closed_until = 0.0
        self._lock = threading.Lock()
        self._thread: _HookThread | None = None

    def __repr__(self) -> str:
        return f"<Hook {self.kind} {self.name}{' cut off' * self.is_cut_off}>"

    @property
    def is_cut_off(self) -> bool:
        """Return whether it is not called now, since it failed too often."""
        return monotonic() < self._closed_until

    def remove(self) -> None:
        """Unregister it."""
        self._hooks.remove(self)

    def wants(self, change: ProposedChange) -> bool:
        """Return whether it was registered for the scope of a change."""
        return self._scope is None or self._scope == change.scope

    def call(self, argument: object) -> tuple[bool, Any]:
        """Call the function; return whether it returned in time, and its result. A hook that is cut off is not called."""
        with self._lock:
            if self.is_cut_off:
                return False, None
            if self._thread is None:
                self._thread = _HookThread(self.name)
            thread = self._thread
        self.calls += 1
        answer = thread.run(self._function, argument)
        try:
            found = answer.result(self._timeout)
        except TimeoutError as error:
            if answer.done():
                return self._fail(error)
            with self._lock:  # its thread is lost to it; the next call gets another
                if self._thread is thread:
                    self._thread = None
            thread.end()
            return self._fail(TimeoutError(f"it took longer than {self._timeout:g} s"))
        except BaseException as error:  # noqa: BLE001 - whatever a user's function raises is its own failure
            return self._fail(error)
        self._in_a_row = 0
        return True, found

    def fault(self, error: Exception) -> None:
        """Count a failure: what it returned is nothing that a hook returns."""
        self._fail(error)

    def _fail(self, error: BaseException) -> tuple[bool, None]:
        self.last_error = f"{type(error).__name__}: {error_text(error)}"
        self.failures += 1
        self._in_a_row += 1
        if self._in_a_row < _MOST_FAILURES:
            log.warning("hook %s (%s) failed: %s", self.name, self.kind, self.last_error)
            return False, None
        self._closed_until = monotonic() + _CUT_OFF_SECONDS
        log.error(
            "hook %s (%s) is cut off for %g s after %d failures in a row, the last: %s",
            *(self.name, self.kind, _CUT_OFF_SECONDS, self._in_a_row, self.last_error),
        )
        return False, None

    def close(self) -> None:
        """End its thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()


class _HookThread:
    """A thread that calls one hook. It does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._waiting: deque[tuple[Callable[[Any], Any], object, Future[Any]]] = deque()
        self._woken = threading.Semaphore(0)
        self._is_ended = False
        threading.Thread(target=self._work, name=f"stepwell-hook {name}", daemon=True).start()

    def run(self, function: Callable[[Any], Any], argument: object) -> Future[Any]:
        answer: Future[Any] = Future()
        self._waiting.append((function, argument, answer))
        self._woken.release()
        return answer

    def end(self) -> None:
        self._is_ended = True
        self._woken.release()

    def _work(self) -> None:
        while True:
            self._woken.acquire()
            if not self._waiting:
                if self._is_ended:
                    return
                continue
            function, argument, answer = self._waiting.popleft()
            if self._is_ended:
                answer.set_exception(TimeoutError("the call before it did not return"))
                continue
            try:
                answer.set_result(function(argument))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is read
                answer.set_exception(error)


class Hooks:
    """The hooks of one well, in this process: ``well.hooks``. Writes of other processes do not pass them.

    Every registration returns a ``Hook``; it can be used as a decorator.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._hooks: tuple[Hook, ...] = ()
        self.is_used = False
        """Whether there is any hook: most processes have none, and every commit asks."""
        self._lock = threading.Lock()
        self._events: deque[tuple[str, object]] = deque()
        self._woken = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.dropped = 0
        """The number of events that were dropped, since too many waited."""

    # Registering.

    def before_change(
        self, function: Callable[[ProposedChange], Any], *, scope: Scope | None = None, timeout: Span = 1, is_required: bool = False
    ) -> Hook:
        """Call a function before scoped state changes, by a call or within a commit.

        - ``function``: takes a ``ProposedChange``. Returns None to go on, ``Modify(value)`` to have another value set, or
          ``Cancel(reason)``: then nothing is written, and the writer gets ``ChangeCancelled``.
        - ``scope``: only changes of this scope; None for all.
        - ``timeout``: how long it may take.
        - ``is_required``: True to refuse changes while it fails or is cut off; else they go on without it.

        Example:

            @well.hooks.before_change
            def no_negative_stock(change):
                if change.key == "stock" and change.action == "set" and change.value < 0:
                    return Cancel("stock is never negative")
        """
        return self._add("before_change", function, timeout, scope, is_required=is_required)

    def after_change(self, function: Callable[[ProposedChange], object], *, scope: Scope | None = None, timeout: Span = 5) -> Hook:
        """Call a function after a change of scoped state has landed. The writer does not wait for it.

        - ``scope``: only changes of this scope; None for all.
        - ``timeout``: how long it may take.
        """
        return self._add("after_change", function, timeout, scope)

    def on_execution(self, function: Callable[[ExecutionEvent], object], *, timeout: Span = 5) -> Hook:
        """Call a function when a commit of this process has started or ended an execution. The commit does not wait for it."""
        return self._add("on_execution", function, timeout, None)

    def on_step(self, function: Callable[[StepEvent], object], *, timeout: Span = 5) -> Hook:
        """Call a function when an attempt at a step begins or has ended in this process. The step does not wait for it."""
        return self._add("on_step", function, timeout, None)

    def list(self) -> Sequence[Hook]:
        """Return all hooks, in the order in which they are called."""
        return self._hooks

    def _add(
        self, kind: str, function: object, timeout: Span, scope: Scope | HasScope | None, *, is_required: bool = False
    ) -> Hook:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise InvalidInput(f"a hook is a plain function of one argument, not {function!r}; it runs in a thread of its own")
        of = None if scope is None else scope_of(scope)
        seconds = seconds_of(timeout, "timeout", least=0.001, most=60)
        hook = Hook(self, kind, cast("Callable[[Any], Any]", function), seconds, of, is_required=is_required)
        with self._lock:
            self._hooks, self.is_used = (*self._hooks, hook), True
        return hook

    def remove(self, hook: Hook) -> None:
        """Unregister a hook."""
        with self._lock:
            self._hooks = tuple(each for each in self._hooks if each is not hook)
            self.is_used = bool(self._hooks)
        hook.close()

    def close(self) -> None:
        """Tell no observer of anything any more, and end all threads."""
        with self._woken:
            self._is_closed = True
            self._woken.notify_all()
        for hook in self._hooks:
            hook.close()

    @property
    def trouble(self) -> str | None:
        """Return which hooks are cut off, and why; None if none is."""
        cut = [f"hook {each.name} ({each.kind}) is cut off: {each.last_error}" for each in self._hooks if each.is_cut_off]
        if self.dropped:
            cut.append(f"{self.dropped:,} events were dropped, since observers are too slow")
        return "; ".join(cut) or None

    # Before a change.

    def has(self, kind: str) -> bool:
        """Return whether there are hooks of a kind."""
        return any(each.kind == kind for each in self._hooks)

    def before(self, ops: Sequence[StateOp], execution_id: str | None = None) -> list[StateOp]:
        """Return the operations as the hooks leave them. Raise ``ChangeCancelled`` if one refuses a change."""
        return [self._decided(op, execution_id) for op in ops]

    def _decided(self, op: StateOp, execution_id: str | None) -> StateOp:
        change = _change_of(op, execution_id)
        if change is None:
            return op
        for hook in self._hooks:
            if hook.kind != "before_change" or not hook.wants(change):
                continue
            has_answered, answer = hook.call(change)
            if has_answered and isinstance(answer, Modify) and isinstance(op, Put):
                op = self._modified(op, hook, answer)
                change = msgspec.structs.replace(change, value=decode(bytes(op.value)))
            elif has_answered and isinstance(answer, Cancel):
                raise ChangeCancelled(f"hook {hook.name} refused to {change.action} {_named(change)}: {answer.reason}")
            elif has_answered and answer is not None:
                hook.fault(TypeError(f"a hook before {change.action!r} returns None, Modify (for set) or Cancel, not {answer!r}"))
                has_answered = False
            if not has_answered and hook.is_required:
                raise ChangeCancelled(
                    f"hook {hook.name}, which every change has to pass, failed ({hook.last_error}); nothing was written"
                )
        return op

    def _modified(self, op: Put, hook: Hook, answer: Modify) -> Put:
        data = canonical(answer.value, self._limits, what=f"what hook {hook.name} makes of state key {op.key!r}")
        return msgspec.structs.replace(op, value=msgspec.Raw(data))

    # Afterwards.

    def tell_of_changes(self, ops: Sequence[StateOp], execution_id: str | None = None) -> None:
        """Tell observers of changes that have landed."""
        if self.has("after_change"):
            for op in ops:
                change = _change_of(op, execution_id)
                if change is not None:
                    self.tell("after_change", change)

    def tell(self, kind: str, event: object) -> None:
        """Tell observers of an event, later and from another thread."""
        if not self.has(kind):
            return
        with self._woken:
            if len(self._events) >= _MOST_WAITING:
                self.dropped += 1
                return
            self._events.append((kind, event))
            if self._thread is None:
                self._thread = threading.Thread(target=self._tell_all, name="stepwell-observers", daemon=True)
                self._thread.start()
            self._woken.notify()

    def _tell_all(self) -> None:
        while True:
            with self._woken:
                while not self._events and not self._is_closed:
                    self._woken.wait()
                if self._is_closed:
                    return
                kind, event = self._events.popleft()
            for hook in self._hooks:
                if hook.kind == kind and (not isinstance(event, ProposedChange) or hook.wants(event)):
                    hook.call(event)


def _change_of(op: StateOp, execution_id: str | None) -> ProposedChange | None:
    """Return the change that an operation makes; None for Stepwell's own records, and for the restart of a TTL."""
    action = _ACTIONS.get(type(op))
    if action is None or is_internal(op.scope):
        return None
    scope = Scope.parse(op.scope)
    match op:
        case Put() | Merge():
            return ProposedChange(scope=scope, key=op.key, action=action, value=decode(bytes(op.value)), execution_id=execution_id)
        case Increment():
            return ProposedChange(scope=scope, key=op.key, action=action, value=op.by, execution_id=execution_id)
        case Clear():
            return ProposedChange(scope=scope, key="", action=action, execution_id=execution_id)
        case _:
            return ProposedChange(scope=scope, key=op.key, action=action, execution_id=execution_id)


def _named(change: ProposedChange) -> str:
    return f"key {change.key!r} of scope {change.scope.path!r}" if change.key else f"scope {change.scope.path!r}"
