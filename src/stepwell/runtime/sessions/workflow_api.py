"""Calls of a workflow's code beside its steps: sleep, wait_signal, map, patched, and recorded time and randomness."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from datetime import datetime
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload
from uuid import UUID, uuid4

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput
from stepwell.flow.function import Step, Workflow, caller
from stepwell.model.ids import check_key
from stepwell.runtime.sessions.approval import ApprovalRequest, ApprovalResult, people_of
from stepwell.runtime.sessions.function_session import FunctionSession

__all__ = ["compensate", "map", "now", "patched", "random", "sleep", "uuid", "wait_approval", "wait_signal"]

secure_random = SystemRandom()

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:

    class Outputs(list[T]):
        """The result of ``map`` over a ``def`` function: a list in a ``def`` workflow, an awaitable list in an ``async def`` one.

        Only type checkers see this class, since a function's type does not say which workflow calls it.
        """

        def __await__(self) -> Generator[Any, None, list[T]]: ...

    class Slept(Coroutine[Any, Any, None]):
        """The result of ``sleep``: a coroutine, which only an ``async def`` workflow awaits, so that no checker asks for it."""

    class Decided(ApprovalResult, Coroutine[Any, Any, ApprovalResult]):  # pyright: ignore[reportGeneralTypeIssues] - two metaclasses
        """The result of ``wait_approval``: a value in a ``def`` workflow, a coroutine for it in an ``async def`` one."""


def sleep(span: Span) -> Slept:
    """Wait durably for a span of time. The wait holds no thread, and continues after a crash with the time that is left.

    In an ``async def`` workflow it is awaited; in a ``def`` workflow it blocks. Raise ``InvalidInput`` outside workflow code.

    - ``span``: seconds, a ``timedelta``, or a text such as ``"2h"``.

    Example:

        await stepwell.sleep("2h")
    """
    return _session("sleep").sleep(seconds_of(span, "the time to sleep"))


class SignalWait:
    """Wait durably for a signal: called in any workflow, with ``sync`` typed for a ``def`` workflow."""

    @overload
    def __call__(self, name: str, *, timeout: Span | None = None) -> Any: ...
    @overload
    def __call__(self, name: str, *, type: type[T], timeout: Span | None = None) -> Coroutine[Any, Any, T]: ...
    def __call__(self, name: str, *, type: Any = None, timeout: Span | None = None) -> Any:
        """Wait durably for a signal, and return its value. In an ``async def`` workflow it is awaited.

        - ``name``: the signal's name, as in ``run.signal(name, value)``. A signal that came earlier is taken at once.
        - ``type``: return the value as an instance of this dataclass, msgspec, attrs or pydantic class.
        - ``timeout``: how long to wait; None without a limit.

        Raise ``TimeoutError`` if the signal does not come in time, and ``InvalidInput`` for a value that does not fit the class,
        and outside workflow code.

        Example:

            decision = await stepwell.wait_signal("approved", type=Approval, timeout="3d")
        """
        return _signal(_session("wait_signal"), name, type, timeout)

    @overload
    def sync(self, name: str, *, timeout: Span | None = None) -> Any: ...
    @overload
    def sync(self, name: str, *, type: type[T], timeout: Span | None = None) -> T: ...
    def sync(self, name: str, *, type: Any = None, timeout: Span | None = None) -> Any:
        """Wait durably for a signal in a ``def`` workflow, so that type checkers know that the call blocks.

        It is the same as ``stepwell.wait_signal(name, type=Approval)`` there.

        - ``name``, ``type``, ``timeout``: as of ``stepwell.wait_signal``.

        Raise what ``stepwell.wait_signal`` raises, and ``InvalidInput`` in an ``async def`` workflow.

        Example:

            decision = stepwell.wait_signal.sync("approved", type=Approval, timeout="3d")
        """
        session = _session("wait_signal.sync")
        if session.is_async:
            instead = "await stepwell.wait_signal(...)"
            raise InvalidInput(f"stepwell.wait_signal.sync() does not belong into an async def workflow; write {instead} there")
        return _signal(session, name, type, timeout)


wait_signal = SignalWait()
"""Wait durably for a signal, and return its value."""


def _signal(session: FunctionSession, name: str, kind: Any, timeout: Span | None) -> Any:
    limit = None if timeout is None else seconds_of(timeout, "timeout")
    return session.wait_signal(check_key(name, "a signal's name"), limit, kind)


def wait_approval(
    title: str,
    *,
    details: Any = None,
    approvers: Sequence[str] = (),
    needed: int = 1,
    timeout: Span | None = None,
    escalate_to: Sequence[str] = (),
    name: str = "approval",
) -> Decided:
    """Ask people for a decision, wait durably for their answers, and return how they decided.

    In an ``async def`` workflow it is awaited; in a ``def`` workflow it blocks. An answer is a signal with the name of the call,
    ``approval`` or ``approval#2`` for the second one, and the value ``{"by": "ada", "is_approved": True}`` with any other fields.

    - ``title``: what is asked; ``details``: a value that is shown with it.
    - ``approvers``: the people who may answer; empty for all.
    - ``needed``: how many must agree. It is refused once that number can no longer be reached.
    - ``timeout``: how long to wait; None without a limit.
    - ``escalate_to``: the people who are asked after that, once and for as long again.
    - ``name``: the name of the call.

    Raise ``TimeoutError`` if it is not decided in time, and ``InvalidInput`` outside workflow code.

    Example:

        answer = await stepwell.wait_approval("Refund 900 cents?", approvers=["ada", "bob"], timeout="3d")
        if answer.is_approved: ...
    """
    limit = None if timeout is None else seconds_of(timeout, "timeout")
    asked = ApprovalRequest(
        check_key(title, "the title of an approval"),
        check_key(name, "the name of an approval"),
        details,
        people_of(approvers, needed, "approvers"),
        needed,
        limit,
        people_of(escalate_to, needed, "escalate_to"),
    )
    if escalate_to and limit is None:
        raise InvalidInput("escalate_to needs a timeout, after which these people are asked")
    return _session("wait_approval").wait_approval(asked)


@overload
def map(
    step: Callable[[A], Coroutine[Any, Any, T]],
    items: Iterable[A],
    *,
    concurrency: int = 10,
    return_exceptions: Literal[False] = False,
    label: Callable[[A], str] | None = None,
) -> Coroutine[Any, Any, list[T]]: ...
@overload
def map(
    step: Callable[[A], Coroutine[Any, Any, T]],
    items: Iterable[A],
    *,
    concurrency: int = 10,
    return_exceptions: Literal[True],
    label: Callable[[A], str] | None = None,
) -> Coroutine[Any, Any, list[T | Exception]]: ...
@overload
def map(
    step: Callable[[A], T],
    items: Iterable[A],
    *,
    concurrency: int = 10,
    return_exceptions: Literal[False] = False,
    label: Callable[[A], str] | None = None,
) -> Outputs[T]: ...
@overload
def map(
    step: Callable[[A], T],
    items: Iterable[A],
    *,
    concurrency: int = 10,
    return_exceptions: Literal[True],
    label: Callable[[A], str] | None = None,
) -> Outputs[T | Exception]: ...
def map(
    step: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    concurrency: int = 10,
    return_exceptions: bool = False,
    label: Callable[[Any], str] | None = None,
) -> Any:
    """Call a step, workflow or function once for each item, and return the outputs in the order of the items.

    In an ``async def`` workflow it is awaited. A function may itself call steps; those of different items run side by side. After
    a crash, recorded calls do not run again.

    - ``step``: what to call; it gets one item.
    - ``items``: the items.
    - ``concurrency``: how many calls run at once.
    - ``return_exceptions``: return the error of a failed call in its place, instead of raising the first one.
    - ``label``: returns the name of an item for people, which ``run.progress()`` shows while the item is under way.

    Raise the error of a failed call, and ``InvalidInput`` outside workflow code.

    Example:

        sizes = await stepwell.map(resize, images, concurrency=4)
    """
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidInput(f"concurrency is a whole number, 1 or more, not {concurrency!r}")
    owner: Any = getattr(step, "__self__", None)  # of resize.aio and charge.sync
    if isinstance(owner, Step | Workflow):
        step = cast("Callable[..., Any]", owner)
    return _session("map").map(step, list(items), concurrency, is_total=return_exceptions, label=label)


def compensate(step: Step[P, Any], *arguments: P.args, **keywords: P.kwargs) -> None:
    """Register a step to run if this execution fails or is cancelled later. The step registered last runs first.

    Call it right after the step that it compensates, or right before, if that step may have an effect and still fail. It is
    not awaited.

    - ``step``: the compensating step; its output is recorded like that of any step.
    - ``arguments``, ``keywords``: its arguments.

    Raise ``InvalidInput`` if ``step`` is no step, and outside workflow code.

    Example:

        seat = await book_seat(trip)
        stepwell.compensate(cancel_seat, seat)
    """
    if not isinstance(step, Step):
        raise InvalidInput(f"stepwell.compensate() takes a step and its arguments, not {step!r}")
    _session("compensate").compensate(step, arguments, keywords)


def patched(name: str) -> bool:
    """Return whether to take the new branch at a changed place of a workflow's code. It is not awaited.

    True for executions that reach this place for the first time, False for those that passed it before the change. The answer
    is recorded. Raise ``InvalidInput`` outside workflow code.

    - ``name``: a name for the change, unique in the workflow.

    Example:

        if stepwell.patched("check-stock"):
            await check_stock(order)
    """
    return _session("patched").patched(check_key(name, "a patch's name"))


def now() -> datetime:
    """Return the time, aware and in UTC: when the code came here first, also when it runs again. It is not awaited.

    Raise ``InvalidInput`` outside workflow code.

    Example:

        due = stepwell.now() + timedelta(days=30)
    """
    session = _session("now")
    return datetime.fromisoformat(session.recorded("now", lambda: session.clock.now().isoformat()))


def random() -> float:
    """Return a random number from 0 to 1, the same one when the code runs again. It is not awaited.

    Raise ``InvalidInput`` outside workflow code.

    Example:

        is_sampled = stepwell.random() < 0.01
    """
    return _session("random").recorded("random", secure_random.random)


def uuid() -> UUID:
    """Return a random UUID, the same one when the code runs again. It is not awaited.

    Raise ``InvalidInput`` outside workflow code.

    Example:

        order_id = str(stepwell.uuid())
    """
    return UUID(_session("uuid").recorded("uuid", lambda: str(uuid4())))


def _session(what: str) -> FunctionSession:
    inside = caller.get()
    if not isinstance(inside, FunctionSession):
        raise InvalidInput(f"stepwell.{what}() is for the code of a workflow; elsewhere use the plain way to do it")
    return inside
