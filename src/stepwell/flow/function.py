"""``@step`` and ``@workflow``: what the decorators return, and the registry that finds workflows and steps by name.

An execution finds its workflow by name. If a second function could silently take a name, executions of the first function would
continue with the code of the second, so ``check_place`` refuses that unless the module was reloaded.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from msgspec import UNSET

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput, NotFound
from stepwell.flow.governance import Governance, check_governance
from stepwell.flow.retry import Retry
from stepwell.model.ids import Id, check_key
from stepwell.model.limits import Limits
from stepwell.model.mutation import LARGEST_INPUT
from stepwell.model.record import FunctionTrigger, summary_line
from stepwell.model.redaction import Redaction
from stepwell.model.value import (
    DEFAULT_LIMITS,
    Value,
    canonical,
    check_kept,
    decode,
    encode_bounded,
    from_value,
    is_plain_type,
    shown_type,
    to_value,
)
from stepwell.name_hints import CALLS, hinted, missing_attribute

__all__ = [
    "CALL_OPTIONS",
    "Caller",
    "Result_co",
    "Step",
    "Workflow",
    "WorkflowCall",
    "WorkflowOf",
    "caller",
    "check_call_options",
    "check_place",
    "on_registration",
    "registered",
    "registered_alone",
    "registered_functions",
    "registered_names",
    "registered_step",
    "registered_step_names",
    "registered_versions",
    "registered_workflow",
    "step",
    "unregister",
    "workflow",
]


class HasFunction(Protocol):
    """A workflow or step made of a function."""

    name: str
    function: Callable[..., Any]


def check_place(found: HasFunction | None, made: HasFunction, kind: str = "workflow") -> None:
    """Raise ``InvalidInput`` if another function already has the name of a workflow or step.

    These may replace the function that has it: the same function after its module was reloaded or its notebook cell ran again, a
    function defined inside another function (as in tests), and any function if the registered one is no longer reachable.
    """
    if found is None or _is_inner(made.function) or _is_same(found.function, made.function) or not _is_reachable(found):
        return
    raise InvalidInput(
        f"there are two {kind}s {made.name!r}, {_shown(found.function)} and {_shown(made.function)}; "
        f"executions find their {kind} by its name, so give one of them another with @{kind}(name=...)"
    )


def _is_inner(function: Callable[..., Any]) -> bool:
    return "<locals>" in function.__qualname__


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether both are one function: the same qualified name in the same module or file.

    The file counts because a program is ``__main__`` when it is run and has its own module name when it is imported.
    """
    is_named_alike = one.__qualname__ == other.__qualname__
    return is_named_alike and (one.__module__ == other.__module__ or _file(one) == _file(other) is not None)


def _is_reachable(found: HasFunction) -> bool:
    """Return whether the function's module still holds it. A function defined inside another one is never reachable."""
    module = sys.modules.get(found.function.__module__)
    try:
        there = attrgetter(found.function.__qualname__)(module)
    except AttributeError:
        return False
    return there is found or there is found.function


def _file(function: Callable[..., Any]) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else code.co_filename


def _shown(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{function.__module__}.{function.__qualname__}{where}"


P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)
if TYPE_CHECKING:
    import typing_extensions

    Result_co = typing_extensions.TypeVar("Result_co", covariant=True, default=Any)
else:  # a default for type checkers, so that `Run` alone is `Run[Any]`; Python itself knows them from 3.13 on
    Result_co = TypeVar("Result_co", covariant=True)

# Compared by identity: a step registered with an equal policy has a policy of its own, which a definition's default must not
# replace.
_NO_RETRY = Retry(attempts=1)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NEWEST = 2**53
"""The largest integer that every store, and every reader of its JSON, represents exactly."""

_PLAIN = (int, str, bool, float, type(None))
_WHOLE = (*_PLAIN, dict, list)
"""Types that say all about a value which the canonical encoding accepts as it is."""
_NAMELESS = (*_VARIABLE, inspect.Parameter.POSITIONAL_ONLY)


class Caller(Protocol):
    """The session that runs a workflow function. Calls of steps and workflows inside the function go through it."""

    def call_step(
        self,
        step: Step[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        call_key: str | None = None,
        summary: str | None = None,
    ) -> Any:
        """Run a step, or return its recorded output; with a key, that of the execution's first call with it."""
        ...

    @property
    def is_async(self) -> bool:
        """True if the workflow is ``async def``, so that its calls are awaited."""
        ...

    def call_workflow(self, workflow: Workflow[..., Any], value: Value) -> Any:
        """Run another workflow as a child execution, or return its recorded result."""
        ...


caller: ContextVar[Caller | None] = ContextVar("stepwell_caller", default=None)
"""The session whose workflow code runs here; None outside a workflow and inside a step."""


class _Annotated:
    """The annotations of a function, resolved on first use, because they may name types that are defined later.

    Args:
        what: what the function returns, for messages.
    """

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        self._function, self._what = function, what

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function)
        except (NameError, TypeError):
            return {}

    @functools.cached_property
    def returned(self) -> Any:
        """The type of the result; ``Any`` for a function that returns anything or, by its annotation, nothing."""
        kind = self.hints.get("return", Any)
        return Any if kind is object or kind is type(None) else kind

    @functools.cached_property
    def is_plain(self) -> bool:
        """True if the type of the result is made of JSON types only, so that the result needs no conversion to become JSON."""
        return is_plain_type(self.returned)

    def encode(self, result: object, limits: Limits) -> bytes:
        """Return a result as canonical bytes: converted by its annotation, or as it is if that has JSON types only.

        Raise ``InvalidInput`` if decoding would fail, since what is recorded stays for good.
        """
        kind, given = self.returned, type(result)
        # Plain values skip the conversion: most results are plain, and this is on the path of every step.
        is_typed = given not in _PLAIN and not self.is_plain
        data = canonical(to_value(result, what=self._what) if is_typed else result, limits, what=self._what)
        if not (kind is Any or (kind is given and kind in _WHOLE)):
            back = from_value(decode(data), kind, what=self._what)
            if is_typed:
                check_kept(result, back, what=self._what)
        return data

    def decode(self, data: bytes) -> Any:
        """Return the result, converted to its annotated type."""
        kind, value = self.returned, decode(data)
        return value if kind is Any or kind is type(value) else from_value(value, kind, what=self._what)


def _positional_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters that may be given by their position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, each in inspect.signature(function).parameters.items() if each.kind in kinds)


class Step(Generic[P, R_co]):
    """A function whose output an execution records once. Called outside a workflow, it runs as an ordinary function."""

    def __init__(
        self,
        function: Callable[P, R_co],
        name: str,
        retry: Retry,
        timeout_seconds: float | None,
        *,
        process: bool = False,
        effect: str | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.secrets = secrets
        self.function, self.name = function, check_key(name, "a step's name")
        self.retry, self.timeout_seconds = retry, timeout_seconds
        self.process, self.effect = process, None if effect is None else check_key(effect, "a kind of effect")
        self.is_async = inspect.iscoroutinefunction(function)
        self._annotated = _Annotated(function, f"the output of step {name!r}")
        self._positional = _positional_names(function)

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R_co:
        inside = caller.get()
        if inside is None:
            return self.function(*arguments, **keywords)
        return cast("R_co", inside.call_step(self, arguments, dict(keywords)))

    def aio(self, *arguments: P.args, **keywords: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call a ``def`` step from ``async def`` code, so that type checkers know that the call is awaited.

        In an ``async def`` workflow it is the same as ``await resize(image)``; outside workflows it runs the function.

        Raise ``InvalidInput`` in a ``def`` workflow, which calls the step without ``aio``.

        Example:

            small = await resize.aio(image)
        """
        inside = _caller_of_colour(self.name, "aio", is_async=True)
        if inside is None:
            return _awaited(self.function, arguments, keywords)
        return inside.call_step(self, arguments, dict(keywords))  # not wrapped, so that a forgotten await is noticed

    def sync(self: Step[P, Coroutine[Any, Any, T]], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call an ``async def`` step from a ``def`` workflow, so that type checkers know that the call blocks.

        In a ``def`` workflow it is the same as ``charge(order)``; outside workflows it runs the function in an event loop of its
        own.

        Raise ``InvalidInput`` in an ``async def`` workflow, which awaits the step, and where an event loop runs already.

        Example:

            payment = charge.sync(order)
        """
        _caller_of_colour(self.name, "sync", is_async=False)
        return _blocking(self.name, self(*arguments, **keywords))

    def with_key(self, key: Id) -> StepCall[P, R_co]:
        """Return the step to be called under a key of your own, such as the id of a payment.

        The same key again in one execution, in any place of its code, gives the result of the first call and runs nothing.
        Calling it raises ``Conflict`` if the key was used for another step or other arguments. Outside a workflow it runs the
        function.

        - ``key``: the key, unique to what the call does.

        Raise ``InvalidInput`` for a key that is no text or ``UUID``, and ``LimitExceeded`` for one that is too long.

        Example:

            payment = await charge.with_key(f"charge-{order.id}")(order)
        """
        return StepCall(self).with_key(key)

    def with_summary(self, text: str) -> StepCall[P, R_co]:
        """Return the step to be called with one line about this call, for people who look at the run.

        It is recorded with the step, and shown by ``run.steps()``, ``stepwell show``, the dashboard and pictures. It changes
        nothing else. It goes with a key: ``charge.with_key(order.id).with_summary("lamp for ada")(order)``.

        - ``text``: the line. Line breaks become spaces, and what is over 200 characters is cut.

        Raise ``InvalidInput`` for anything but a text.

        Example:

            payment = await charge.with_summary(f"{order.item} for {order.name}")(order)
        """
        return StepCall(self).with_summary(text)

    def encode_call(self, arguments: tuple[Any, ...], keywords: dict[str, Any], limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Return the arguments of a call as canonical bytes for another process."""
        bound = inspect.signature(self.function).bind(*arguments, **keywords)
        plain = [[to_value(value) for value in bound.args], {name: to_value(value) for name, value in bound.kwargs.items()}]
        return canonical(plain, limits, what=f"the arguments of step {self.name!r}")

    def shown_input(self, arguments: tuple[Any, ...], keywords: dict[str, Any], limits: Limits) -> bytes | None:
        """Return the arguments of a call by name as canonical bytes, for people who look at the run.

        None if they are larger than 16 KiB or do not become JSON: a step of a function may be called with any object.
        """
        try:
            given = dict(zip(self._positional, arguments, strict=False)) | keywords
            if len(arguments) > len(self._positional):
                given |= {"*": arguments[len(self._positional) :]}
            return encode_bounded(given, LARGEST_INPUT, limits)
        except Exception:  # noqa: BLE001 - objects of the user's own may raise anything when they are turned into JSON
            return None

    def decode_call(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments from ``encode_call``, converted to their annotated types.

        What an annotation calls a JSON type is as it was: an integer for a ``float`` stays one, as in a call without JSON.
        """
        values, named = decode(data)
        bound = inspect.signature(self.function).bind(*values, **named)
        for name, value in bound.arguments.items():
            kind = self._annotated.hints.get(name, Any)
            if not is_plain_type(kind) and bound.signature.parameters[name].kind.name not in ("VAR_POSITIONAL", "VAR_KEYWORD"):
                bound.arguments[name] = from_value(value, kind)
        return bound.args, bound.kwargs

    def bind(self, value: Value) -> dict[str, Any]:
        """Return the arguments by name for the one value that a declared workflow passes.

        An object whose keys are parameter names is passed by name. Any other value becomes the first parameter. Raise
        ``InvalidInput`` if other parameters have no default then.
        """
        signature = inspect.signature(self.function).parameters
        parameters = {name: each for name, each in signature.items() if each.kind not in _VARIABLE}
        needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
        if not parameters:
            return {}
        given: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
        if not (given and given.keys() <= parameters.keys() and needed <= given.keys()):
            first = next(iter(parameters))
            if needed - {first}:
                raise InvalidInput(f"step {self.name!r} takes an object with {', '.join(parameters)}, not {_shown_value(value)}")
            given = {first: cast("Any", value)}
        hints = self._annotated.hints
        return {name: each if hints.get(name, Any) is Any else from_value(each, hints[name]) for name, each in given.items()}

    @property
    def policy(self) -> Retry | None:
        """The retry policy it was registered with, or None."""
        return None if self.retry is _NO_RETRY else self.retry

    def encode(self, result: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Return an output as canonical bytes. Raise ``InvalidInput`` if it could not be decoded by its annotation."""
        return self._annotated.encode(result, limits)

    def decode(self, data: bytes) -> R_co:
        """Return a recorded output, converted to the annotated type."""
        return self._annotated.decode(data)

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, CALLS)


class StepCall(Generic[P, R_co]):
    """A step with a key or a summary for its next call, as ``Step.with_key`` and ``Step.with_summary`` return it."""

    __slots__ = ("_key", "_step", "_summary")

    def __init__(self, step: Step[P, R_co], key: str | None = None, summary: str | None = None) -> None:
        self._step, self._key, self._summary = step, key, summary

    def with_key(self, key: Id) -> StepCall[P, R_co]:
        """Return the same call under a key of your own; see ``Step.with_key``."""
        call_key = check_key(f"key:{check_key(key, 'the key of a call')}", "the key of a call")
        return StepCall(self._step, call_key, self._summary)

    def with_summary(self, text: str) -> StepCall[P, R_co]:
        """Return the same call with one line about it; see ``Step.with_summary``."""
        if not isinstance(text, str):
            raise InvalidInput(f"a summary is a line of text, not {text!r}")
        return StepCall(self._step, self._key, summary_line(text))

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R_co:
        inside = caller.get()
        if inside is None:
            return self._step.function(*arguments, **keywords)
        return cast("R_co", inside.call_step(self._step, arguments, dict(keywords), self._key, self._summary))

    def aio(self, *arguments: P.args, **keywords: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call a ``def`` step from ``async def`` code; see ``Step.aio``."""
        inside = _caller_of_colour(self._step.name, "aio", is_async=True)
        if inside is None:
            return _awaited(self._step.function, arguments, keywords)
        return inside.call_step(self._step, arguments, dict(keywords), self._key, self._summary)

    def sync(self: StepCall[P, Coroutine[Any, Any, T]], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call an ``async def`` step from a ``def`` workflow; see ``Step.sync``."""
        _caller_of_colour(self._step.name, "sync", is_async=False)
        return _blocking(self._step.name, self(*arguments, **keywords))

    def __repr__(self) -> str:
        return f"<call of {self._step!r}>"


CALL_OPTIONS: Mapping[str, str] = {"summary": "with_summary", "key": "with_key", "idempotency_key": "with_key"}
"""Keywords that people give to a call of a step, and what they mean."""


def check_call_options(step: Step[..., Any], keywords: Mapping[str, Any]) -> None:
    """Raise ``InvalidInput`` for an option of a call that was given as an argument which the step does not have."""
    parameters = inspect.signature(step.function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    for name in keywords:
        if name in CALL_OPTIONS and name not in parameters:
            called = f"{step.function.__name__}.{CALL_OPTIONS[name]}(...)(...)"
            raise InvalidInput(f"step {step.name!r} has no parameter {name!r}; write {called}")


class Workflow(Generic[P, R_co]):
    """A function that runs as a durable execution. Called inside another workflow, it runs as a child execution."""

    def __init__(
        self,
        function: Callable[P, R_co],
        name: str,
        version: int,
        *,
        timeout_seconds: float | None = None,
        governance: Governance | None = None,
        grants: tuple[str, ...] = (),
        secrets: tuple[str, ...] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.grants, self.secrets = grants, secrets
        self.function, self.name, self.version = function, check_key(name, "a workflow's name"), version
        self.timeout_seconds, self.governance = timeout_seconds, governance
        self.is_async = inspect.iscoroutinefunction(function)
        self._annotated = _Annotated(function, f"the result of workflow {name!r}")
        self._parameters = list(inspect.signature(function).parameters.values())
        self._names = [parameter.name for parameter in self._parameters]

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R_co:
        inside = caller.get()
        if inside is None:
            return self.function(*arguments, **keywords)
        return cast("R_co", inside.call_workflow(self, self.value_of(arguments, dict(keywords))))

    def aio(self, *arguments: P.args, **keywords: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call a ``def`` workflow as a child of an ``async def`` one, so that type checkers know that the call is awaited.

        It is the same as ``await packing(order)``; outside workflows it runs the function. Raise ``InvalidInput`` in a ``def``
        workflow, which calls the child without ``aio``.

        Example:

            parcel = await packing.aio(order)
        """
        inside = _caller_of_colour(self.name, "aio", is_async=True)
        if inside is None:
            return _awaited(self.function, arguments, keywords)
        return inside.call_workflow(self, self.value_of(arguments, dict(keywords)))

    def sync(self: Workflow[P, Coroutine[Any, Any, T]], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call an ``async def`` workflow as a child of a ``def`` one, so that type checkers know that the call blocks.

        It is the same as ``checkout(order)``; outside workflows it runs the function in an event loop of its own. Raise
        ``InvalidInput`` in an ``async def`` workflow, which awaits the child, and where an event loop runs already.

        Example:

            receipt = checkout.sync(order)
        """
        _caller_of_colour(self.name, "sync", is_async=False)
        return _blocking(self.name, self(*arguments, **keywords))

    @overload
    def with_input(self: Workflow[P, Coroutine[Any, Any, T]], *arguments: P.args, **keywords: P.kwargs) -> WorkflowCall[T]: ...
    @overload
    def with_input(self, *arguments: P.args, **keywords: P.kwargs) -> WorkflowCall[R_co]: ...
    def with_input(self, *arguments: Any, **keywords: Any) -> WorkflowCall[Any]:
        """Return a call of this workflow to start or enqueue, with arguments that type checkers compare with its parameters.

        Raise ``InvalidInput`` for arguments that its function does not take.

        Example:

            run = well.start(checkout.with_input("lamp", cents=4200), execution_id="order-7")
        """
        try:
            bound = inspect.signature(self.function).bind(*arguments, **keywords)
        except TypeError as error:
            raise InvalidInput(f"the input of workflow {self.name!r}: {error}") from None
        if len(self._parameters) == 1:
            return WorkflowCall(self, bound.arguments.get(self._names[0], UNSET))
        return WorkflowCall(self, dict(bound.arguments) or UNSET)

    @property
    def takes_input(self) -> bool:
        """True if its function has a parameter."""
        return bool(self._parameters)

    def value_of(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Value:
        """Return the input of a call as one value: the argument of a single parameter, or an object by name."""
        bound = inspect.signature(self.function).bind(*arguments, **keywords)
        if len(self._parameters) == 1:
            given = bound.arguments.get(self._parameters[0].name, UNSET)
            return self._none() if given is None else None if given is UNSET else self._value_of(bound.arguments)[self._names[0]]
        return self._value_of(bound.arguments)

    def _value_of(self, arguments: Mapping[str, Any]) -> dict[str, Value]:
        plain: dict[str, Value] = {name: to_value(value) for name, value in arguments.items()}
        typed = {name: value for name, value in arguments.items() if type(value) not in _PLAIN and name in self._names}
        self._check_kept(typed, {name: self._convert(name, plain[name]) for name in typed})
        return plain

    def _check_kept(self, given: Mapping[str, object], bound: Mapping[str, object]) -> None:
        """Raise ``InvalidInput`` for an argument of which a part would reach the function as something else."""
        for name in given.keys() & bound.keys():
            check_kept(given[name], bound[name], what=f"the input of workflow {self.name!r}, parameter {name!r}")

    def _none(self) -> Value:
        """Return the input that passes None to a single parameter.

        A stored null means "no input". If the parameter has another default, None must be distinguishable from that.
        """
        others = [
            each.name for each in self._parameters if each.default is not inspect.Parameter.empty and each.default is not None
        ]
        return FunctionTrigger({others[0]: None}) if len(self._parameters) == len(others) == 1 else None

    def input_of(self, value: object) -> Value:
        """Return the input to start with; ``UNSET`` is no input, and None is passed if the parameter accepts it."""
        if value is not None:
            return None if value is UNSET else value
        none = self._none()
        try:
            self.bind(none)
        except InvalidInput:  # the parameter refuses None, so it means "no input"
            return None
        return none

    def encode_input(self, value: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Return an input as canonical bytes. Raise ``InvalidInput`` if it does not match the parameters' types."""
        plain = to_value(value)
        if plain not in (None, {}) and not self._parameters:  # a child without arguments has the input {}
            raise InvalidInput(f"workflow {self.name!r} has no parameter, so it takes no input; give its function one")
        bound = self.bind(plain)
        if type(value) not in _PLAIN:
            given: object = {self._names[0]: value} if len(self._names) == 1 else value
            self._check_kept(cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {}, bound)
        return canonical(plain, limits, what=f"the input of workflow {self.name!r}")

    def bind(self, value: Value) -> dict[str, Any]:
        """Return the arguments by name for an input, converted to their annotated types."""
        names = self._names
        if isinstance(value, FunctionTrigger):
            return self._bind_by_name(value.arguments)
        if not names or (value is None and all(p.default is not inspect.Parameter.empty for p in self._parameters)):
            return {}
        if len(names) == 1:
            return {names[0]: self._convert(names[0], value)}
        return self._bind_by_name(value)

    def _bind_by_name(self, value: Value) -> dict[str, Any]:
        names = self._names
        if not isinstance(value, Mapping):
            raise InvalidInput(f"workflow {self.name!r} takes a dict with {', '.join(names)}, not {type(value).__name__}")
        given = cast("Mapping[str, Value]", value)
        missing = [p.name for p in self._parameters if p.name not in given and p.default is inspect.Parameter.empty]
        unknown = sorted(given.keys() - set(names))
        if missing or unknown:
            raise InvalidInput(f"the input of workflow {self.name!r}: missing {missing}, unknown {unknown}")
        return {name: self._convert(name, given[name]) for name in names if name in given}

    def _convert(self, name: str, value: Value) -> Any:
        kind = self._annotated.hints.get(name, Any)
        try:
            return value if kind is Any or kind is type(value) else from_value(value, kind)
        except InvalidInput as error:
            # The text before the colon is about stored values, and an input is refused before it is stored.
            told = error.message.partition(": ")[2]
            raise InvalidInput(
                f"the input of workflow {self.name!r} does not fit its parameter {name!r} of type {shown_type(kind)}: {told}"
            ) from None

    def encode(self, result: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """Return the workflow's result as canonical bytes. Raise ``InvalidInput`` if it could not be decoded by its annotation."""
        return self._annotated.encode(result, limits)

    def decode(self, data: bytes) -> R_co:
        """Return the result, converted to the annotated type."""
        return self._annotated.decode(data)

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, CALLS)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} version {self.version}>"


WorkflowOf: TypeAlias = Workflow[Concatenate[A, ...], T]
"""A workflow that can be called with one value: the type of ``well.start``'s first parameter, for type checkers.

No protocol says this: pyright refuses a workflow for the protocol if an overload with another one was tried first.
"""


class WorkflowCall(Generic[T]):
    """A workflow with its input, as ``Workflow.with_input`` returns it for ``well.start`` and ``well.enqueue``."""

    __slots__ = ("value", "workflow")

    def __init__(self, workflow: Workflow[..., Any], value: Any) -> None:
        self.workflow, self.value = workflow, value

    def __repr__(self) -> str:
        return f"<call of {self.workflow!r}>"

    @staticmethod
    def unpack(workflow: Any, value: Any) -> tuple[Any, Any]:
        """Return a workflow and its input, whether they were given apart or as a call. Raise ``InvalidInput`` for both."""
        if not isinstance(workflow, WorkflowCall):
            return workflow, value
        call = cast("WorkflowCall[Any]", workflow)
        if value is not UNSET:
            raise InvalidInput(f"{call!r} has its input already; give no other beside it")
        return call.workflow, call.value


def _caller_of_colour(name: str, called: str, *, is_async: bool) -> Caller | None:
    """Return the session whose code runs here; raise ``InvalidInput`` if its workflow has the other colour."""
    inside = caller.get()
    if inside is not None and inside.is_async != is_async:
        instead = f"{name}(...)" if is_async else f"await {name}(...)"
        kind = "a def workflow" if is_async else "an async def workflow"
        raise InvalidInput(f"{name}.{called}() does not belong into {kind}; write {instead} there")
    return inside


async def _awaited(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    done = function(*arguments, **keywords)
    return await done if inspect.isawaitable(done) else done


def _blocking(name: str, done: Any) -> Any:
    """Return what a call gave; outside workflows an ``async def`` function gave a coroutine, which runs in a loop of its own."""
    if not inspect.iscoroutine(done):
        return done
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(done)
    done.close()
    raise InvalidInput(f"an event loop runs here, so await {name}(...) instead of calling {name}.sync(...)")


def _shown_value(value: Value) -> str:
    return f"one with {', '.join(cast('Mapping[str, Value]', value))}" if isinstance(value, Mapping) else type(value).__name__


def _check_function(target: object, what: str) -> None:
    if isinstance(target, type) or not callable(target) or not hasattr(target, "__name__"):
        raise InvalidInput(f"a {what} is a function, def or async def, not {target!r}")
    if _is_method(target):
        raise InvalidInput(
            f"{what} {target.__qualname__!r} is a method, and nothing records the object that it belongs to; make it a function "
            f"and pass what it needs as arguments"
        )
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise InvalidInput(f"{what} {target.__name__!r} is a generator; return one value, such as a list")


def _is_method(target: Callable[..., Any]) -> bool:
    """Return whether a function is defined in a class and gets its object, or is bound to one."""
    first = next(iter(inspect.signature(target).parameters), "")
    outer = target.__qualname__.rpartition(".")[0]
    return inspect.ismethod(target) or (outer != "" and not outer.endswith("<locals>") and first in ("self", "cls"))


_workflows: dict[str, Workflow[..., Any]] = {}
_steps: dict[str, Step[..., Any]] = {}
_declared_secrets: dict[str, None] = {}
"""Names that some step has declared as secret."""
_watchers: dict[object, Callable[[], object]] = {}


def _notify_watchers() -> None:
    for call in list(_watchers.values()):
        call()


def on_registration(call: Callable[[], object]) -> Callable[[], None]:
    """Call a function after each registration of a workflow or step; return a function that stops this."""
    key = object()
    _watchers[key] = call
    return lambda: _watchers.pop(key, None) and None


def registered(name: str) -> Workflow[..., Any]:
    """Return the workflow of this process with a name. Raise ``NotFound`` if its module was not imported."""
    found = _workflows.get(name)
    if found is None:
        raise NotFound(f"this process has no workflow {name!r}; import the module that defines it")
    return found


def registered_workflow(name: str) -> Workflow[..., Any] | None:
    """Return the workflow of this process with a name, or None."""
    return _workflows.get(name)


def registered_step(name: str) -> Step[..., Any] | None:
    """Return the step of this process with a name, or None."""
    return _steps.get(name)


@contextmanager
def registered_alone(*functions: Workflow[..., Any] | Step[..., Any]) -> Generator[None]:
    """Have only these workflows and steps registered, and bring back those of before at the end.

    For tests of several programs in one process, and for programs that must not serve a workflow for ever.
    """
    workflows, steps = dict(_workflows), dict(_steps)
    _workflows.clear()
    _steps.clear()
    for each in functions:
        if isinstance(each, Workflow):
            _workflows[each.name] = each
        else:
            _steps[each.name] = each
    try:
        yield
    finally:
        _workflows.clear()
        _workflows.update(workflows)
        _steps.clear()
        _steps.update(steps)


def unregister(*functions: Workflow[..., Any] | Step[..., Any]) -> None:
    """Forget workflows and steps, as in a process that has not imported them. For tests."""
    for each in functions:
        registry = _workflows if isinstance(each, Workflow) else _steps
        registry.pop(each.name, None)


def registered_functions() -> tuple[Workflow[..., Any] | Step[..., Any], ...]:
    """Return all workflows and steps of this process."""
    return (*_workflows.values(), *_steps.values())


def declared_secrets() -> tuple[str, ...]:
    """Return the names of secret keys and fields that steps of this process declare."""
    if not _declared_secrets:  # hardly any program has some, and each start asks
        return ()
    return tuple(dict.fromkeys(name for each in _steps.values() for name in each.secrets))


def secrets_of(own: tuple[str, ...], *more: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of what is secret in a run: those of its workflow, of all steps of this process, and others."""
    of_steps = declared_secrets()
    if not (own or of_steps or any(more)):
        return ()
    return tuple(dict.fromkeys((*chain.from_iterable(more), *own, *of_steps)))


def workflow_secrets() -> tuple[str, ...]:
    """Return the names of secret keys and fields that workflows of this process declare."""
    return tuple(dict.fromkeys(name for each in _workflows.values() for name in each.secrets))


def registered_step_names() -> tuple[str, ...]:
    """Return the names of all steps of this process."""
    return tuple(_steps)


def registered_names() -> tuple[str, ...]:
    """Return the names of all workflows of this process."""
    return tuple(_workflows)


def registered_versions() -> dict[str, int]:
    """Return the version of each workflow. This process can run that version and all earlier ones."""
    return {name: each.version for name, each in _workflows.items()}


@overload
def step(function: Callable[P, T], /) -> Step[P, T]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    process: bool = False,
    effect: str | None = None,
    secrets: Sequence[str] = (),
) -> Callable[[Callable[P, T]], Step[P, T]]: ...
@hinted
def step(
    function: Callable[P, T] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    process: bool = False,
    effect: str | None = None,
    secrets: Sequence[str] = (),
) -> Step[P, T] | Callable[[Callable[P, T]], Step[P, T]]:
    """Turn a function into a step, whose output is recorded once per call in an execution.

    After a crash, the recorded output is returned and the function does not run again. Outside a workflow, a call just runs
    it.

    - ``function``: a ``def`` or ``async def`` function.
    - ``name``: the name in the record; the function's name by default.
    - ``retry``: the retry policy; one attempt by default.
    - ``timeout_seconds``: how long one attempt may take, as seconds or a span such as ``"30s"``.
    - ``process``: run in a separate process, for CPU-bound code or code that may crash the interpreter. The function must be
      at the top level of a module.
    - ``effect``: the kind of effect it has, which ``Governance(effects=...)`` can allow or refuse.
    - ``secrets``: names of keys and fields whose values are shown nowhere, such as ``"password"`` or ``"*_token"``.

    Raise ``InvalidInput`` for anything but a function, for a generator function, and for invalid arguments.

    Example:

        @step(retry=Retry(attempts=5), timeout_seconds="30s")
        async def charge(card: str, cents: int) -> str: ...
    """
    hidden = Redaction(secrets).names
    limit = None if timeout_seconds is None else seconds_of(timeout_seconds, "timeout_seconds")

    if retry is not None and not isinstance(retry, Retry):
        raise InvalidInput(f"retry is a stepwell.Retry(...), not {retry!r}")

    def make(target: Callable[P, T]) -> Step[P, T]:
        _check_function(target, "step")
        if process and "<locals>" in target.__qualname__:
            raise InvalidInput(f"step {target.__qualname__!r} cannot run in a process: define it at the top of a module")
        made = Step(
            target,
            target.__name__ if name is None else name,
            retry or _NO_RETRY,
            limit,
            process=process,
            effect=effect,
            secrets=hidden,
        )
        check_place(_steps.get(made.name), made, "step")
        _steps[made.name] = made
        _declared_secrets.update(dict.fromkeys(hidden))
        _notify_watchers()
        return made

    return make if function is None else make(function)


@overload
def workflow(function: Callable[P, T], /) -> Workflow[P, T]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: int = 1,
    timeout: Span | None = None,
    governance: Governance | None = None,
    grants: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> Callable[[Callable[P, T]], Workflow[P, T]]: ...
@hinted
def workflow(
    function: Callable[P, T] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    timeout: Span | None = None,
    governance: Governance | None = None,
    grants: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> Workflow[P, T] | Callable[[Callable[P, T]], Workflow[P, T]]:
    """Turn a function into a workflow, which ``well.start`` and ``well.enqueue`` run as a durable execution.

    - ``function``: a ``def`` or ``async def`` function.
    - ``name``: the name by which executions find it; the function's name by default.
    - ``version``: a process runs executions of this version and of earlier ones.
    - ``timeout``: how long a run may take, including its waits.
    - ``governance``: budgets and permissions of runs that are started without their own.
    - ``grants``: names of other workflows whose scoped state its steps may read.
    - ``secrets``: names of keys and fields whose values are shown nowhere, such as ``"password"`` or ``"*_token"``.

    Raise ``InvalidInput`` if another function has the name, and for parameters that have no names (``*``, ``**`` or ``/``).

    Example:

        @workflow(timeout="1h")
        async def checkout(order: dict) -> str:
            return await charge(order["card"], order["cents"])
    """
    hidden = Redaction(secrets).names
    limit = None if timeout is None else seconds_of(timeout, "timeout")
    budget = check_governance(governance)

    if not isinstance(grants, list | tuple) or not all(isinstance(each, str) for each in grants):
        raise InvalidInput(f"grants is a list of names of workflows, not {grants!r}")
    others = tuple(check_key(each, "a workflow's name in grants") for each in grants)

    if type(version) is not int or not 1 <= version <= _NEWEST:
        raise InvalidInput(f"version is a whole number from 1 to 2**53, not {version!r}")

    def make(target: Callable[P, T]) -> Workflow[P, T]:
        _check_function(target, "workflow")
        if any(each.kind in _NAMELESS for each in inspect.signature(target).parameters.values()):
            raise InvalidInput(f"workflow {target.__name__!r} gets its input by the names of its parameters; give it no *, ** or /")
        made = Workflow(
            target,
            target.__name__ if name is None else name,
            version,
            timeout_seconds=limit,
            governance=budget,
            grants=others,
            secrets=hidden,
        )
        check_place(_workflows.get(made.name), made)
        _workflows[made.name] = made
        _notify_watchers()
        return made

    return make if function is None else make(function)
