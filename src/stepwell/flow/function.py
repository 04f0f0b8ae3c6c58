"""Where a workflow's function is defined: two of one name are one workflow that was loaded again, or a mistake.

An execution finds its workflow by name. Were a second function to take the name silently, executions of the first would go on with
the code of the second.

Workflows and steps written as functions: what the decorators make of them, and where they are found by name.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from msgspec import UNSET

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput, NotFound
from stepwell.flow.governance import Governance
from stepwell.flow.retry import Retry
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.record import FunctionTrigger
from stepwell.model.value import DEFAULT_LIMITS, Value, canonical, decode, from_value, to_value

__all__ = [
    "Caller",
    "Step",
    "Workflow",
    "caller",
    "check_place",
    "on_registration",
    "registered",
    "registered_names",
    "registered_step",
    "registered_step_names",
    "registered_versions",
    "step",
    "workflow",
]


class HasFunction(Protocol):
    """A workflow that is a function."""

    name: str
    function: Callable[..., Any]


def check_place(found: HasFunction | None, made: HasFunction) -> None:
    """Refuse a workflow whose name another function has. A module that is loaded again and a function that is defined again, as in
    a notebook, take the place of what they were. What is defined inside of a function, as in tests of a program that changes, is
    that function's own affair. What nobody can reach any more gives its name away."""
    if found is None or _is_inner(made.function) or _is_same(found.function, made.function) or not _is_reachable(found):
        return
    raise InvalidInput(
        f"there are two workflows {made.name!r}, {_shown(found.function)} and {_shown(made.function)}; "
        "executions find their workflow by its name, so give one of them another with @workflow(name=...)"
    )


def _is_inner(function: Callable[..., Any]) -> bool:
    return "<locals>" in function.__qualname__


def _is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same name in the same module, or in the same file: a program is ``__main__`` when it is run and itself when imported."""
    is_named_alike = one.__qualname__ == other.__qualname__
    return is_named_alike and (one.__module__ == other.__module__ or _file(one) == _file(other) is not None)


def _is_reachable(found: HasFunction) -> bool:
    """Whether its module still has it; what is defined inside of a function, it never has."""
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
R = TypeVar("R")

_NO_RETRY = Retry(attempts=1)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NEWEST = 2**53
"""The greatest whole number that every store, and whatever reads what it wrote, can count up to."""

_PLAIN = (int, str, bool, float, type(None))
_NAMELESS = (*_VARIABLE, inspect.Parameter.POSITIONAL_ONLY)


class Caller(Protocol):
    """An execution that is running a workflow function: calls of steps and workflows inside it go through this."""

    def call_step(self, step: Step[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Run a step once, or answer from the record."""
        ...

    def call_workflow(self, workflow: Workflow[..., Any], value: Value) -> Any:
        """Run another workflow as a child execution."""
        ...


caller: ContextVar[Caller | None] = ContextVar("stepwell_caller", default=None)
"""Who is running the code of a workflow; None outside of one, and inside of a step."""


class _Annotated:
    """The types that a function names for its parameters and its result; read late, since they may name things defined later."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._function)
        except (NameError, TypeError):
            return {}

    def encode(self, result: object, limits: Limits) -> bytes:
        """A result as canonical bytes: by its annotation if there is one, else only if it is a plain value."""
        is_typed = type(result) not in _PLAIN and self.hints.get("return", Any) is not Any
        return canonical(to_value(result) if is_typed else result, limits, what=f"what {self._function.__qualname__} gave")

    def decode(self, data: bytes) -> Any:
        """The result again, as its annotation says."""
        kind = self.hints.get("return", Any)
        value = decode(data)
        return value if kind is Any or kind is type(value) or kind is type(None) else from_value(value, kind)


class Step(Generic[P, R]):
    """A function whose output is recorded once in an execution. Called outside of a workflow, it is just the function."""

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        retry: Retry,
        timeout_seconds: float | None,
        *,
        process: bool = False,
        effect: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.name = function, check_key(name, "a step's name")
        self.retry, self.timeout_seconds = retry, timeout_seconds
        self.process, self.effect = process, None if effect is None else check_key(effect, "a kind of effect")
        self.is_async = inspect.iscoroutinefunction(function)
        self._annotated = _Annotated(function)

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        inside = caller.get()
        if inside is None:
            return self.function(*arguments, **keywords)
        return cast("R", inside.call_step(self, arguments, dict(keywords)))

    def encode_call(self, arguments: tuple[Any, ...], keywords: dict[str, Any], limits: Limits = DEFAULT_LIMITS) -> bytes:
        """The arguments of a call as canonical bytes, to be made in another process."""
        bound = inspect.signature(self.function).bind(*arguments, **keywords)
        plain = [[to_value(value) for value in bound.args], {name: to_value(value) for name, value in bound.kwargs.items()}]
        return canonical(plain, limits, what=f"the arguments of step {self.name!r}")

    def decode_call(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments again, decoded to their annotations."""
        values, named = decode(data)
        bound = inspect.signature(self.function).bind(*values, **named)
        for name, value in bound.arguments.items():
            kind = self._annotated.hints.get(name, Any)
            if kind is not Any and bound.signature.parameters[name].kind.name not in ("VAR_POSITIONAL", "VAR_KEYWORD"):
                bound.arguments[name] = from_value(value, kind)
        return bound.args, bound.kwargs

    def bind(self, value: Value) -> dict[str, Any]:
        """The arguments by name that one value comes to, as a declared workflow gives it: an object whose keys are names of the
        parameters is given by name; anything else is the first parameter's, if there is any."""
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
        """The policy of retries that it was registered with; None: none of its own."""
        return None if self.retry is _NO_RETRY else self.retry

    def encode(self, result: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """An output as canonical bytes; ``InvalidInput`` for one that would not come back as it was."""
        return self._annotated.encode(result, limits)

    def decode(self, data: bytes) -> R:
        """A recorded output, as the step's annotation says."""
        return self._annotated.decode(data)

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


class Workflow(Generic[P, R]):
    """A function that runs as a durable execution. Called inside of another workflow, it runs as its child."""

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        version: int,
        *,
        timeout_seconds: float | None = None,
        governance: Governance | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.name, self.version = function, check_key(name, "a workflow's name"), version
        self.timeout_seconds, self.governance = timeout_seconds, governance
        self.is_async = inspect.iscoroutinefunction(function)
        self._annotated = _Annotated(function)
        self._parameters = list(inspect.signature(function).parameters.values())
        self._names = [parameter.name for parameter in self._parameters]

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R:
        inside = caller.get()
        if inside is None:
            return self.function(*arguments, **keywords)
        return cast("R", inside.call_workflow(self, self.value_of(arguments, dict(keywords))))

    def value_of(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Value:
        """The input of a call as one value: the argument of a single parameter, or a mapping by name."""
        bound = inspect.signature(self.function).bind(*arguments, **keywords)
        if len(self._parameters) == 1:
            given = bound.arguments.get(self._parameters[0].name, UNSET)
            return self._none() if given is None else None if given is UNSET else to_value(given)
        return {name: to_value(value) for name, value in bound.arguments.items()}

    def _none(self) -> Value:
        """None for a single parameter: where that has another default, a trigger of its own, since null means no input."""
        others = [
            each.name for each in self._parameters if each.default is not inspect.Parameter.empty and each.default is not None
        ]
        return FunctionTrigger({others[0]: None}) if len(self._parameters) == len(others) == 1 else None

    def input_of(self, value: object) -> Value:
        """What is given to start it, or ``UNSET``, as its input. None is one where the parameter takes it."""
        if value is not None:
            return None if value is UNSET else value
        none = self._none()
        try:
            self.bind(none)
        except InvalidInput:  # what it is without an input
            return None
        return none

    def encode_input(self, value: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """An input as canonical bytes, checked against the parameters' types before anything is stored."""
        plain = to_value(value)
        if plain not in (None, {}) and not self._parameters:  # a call as a child gives all its arguments by name: none
            raise InvalidInput(f"workflow {self.name!r} has no parameter, so it takes no input; give its function one")
        self.bind(plain)
        return canonical(plain, limits, what=f"the input of workflow {self.name!r}")

    def bind(self, value: Value) -> dict[str, Any]:
        """The arguments by name that an input comes to, decoded to their annotations."""
        names = self._names
        if isinstance(value, FunctionTrigger):
            return {name: self._convert(name, each) for name, each in value.arguments.items()}
        if not names or (value is None and all(p.default is not inspect.Parameter.empty for p in self._parameters)):
            return {}
        if len(names) == 1:
            return {names[0]: self._convert(names[0], value)}
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
            # What it says before the colon is about stored values, and nothing of this is stored.
            told = error.message.partition(": ")[2]
            wanted = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
            raise InvalidInput(
                f"the input of workflow {self.name!r} does not fit its parameter {name!r} of type {wanted}: {told}"
            ) from None

    def encode(self, result: object, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """The workflow's result as canonical bytes."""
        return self._annotated.encode(result, limits)

    def decode(self, data: bytes) -> R:
        """The result again, as the workflow's annotation says."""
        return self._annotated.decode(data)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} version {self.version}>"


def _shown_value(value: Value) -> str:
    return f"one with {', '.join(cast('Mapping[str, Value]', value))}" if isinstance(value, Mapping) else type(value).__name__


def _check_function(target: object, what: str) -> None:
    if isinstance(target, type) or not callable(target) or not hasattr(target, "__name__"):
        raise InvalidInput(f"a {what} is a function, def or async def, not {target!r}")
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise InvalidInput(f"{what} {target.__name__!r} yields; it gives back one value, such as a list")


_workflows: dict[str, Workflow[..., Any]] = {}
_steps: dict[str, Step[..., Any]] = {}
_watchers: dict[object, Callable[[], object]] = {}


def _tell() -> None:
    for call in list(_watchers.values()):
        call()


def on_registration(call: Callable[[], object]) -> Callable[[], None]:
    """Have a function called whenever a workflow or step is registered; the function that is returned ends it."""
    key = object()
    _watchers[key] = call
    return lambda: _watchers.pop(key, None) and None


def registered(name: str) -> Workflow[..., Any]:
    """The workflow of this process with a name."""
    found = _workflows.get(name)
    if found is None:
        raise NotFound(f"this process has no workflow {name!r}; import the module that defines it")
    return found


def registered_step(name: str) -> Step[..., Any] | None:
    """The step of this process with a name, if it has one. Of two with the same name, the later."""
    return _steps.get(name)


def registered_step_names() -> tuple[str, ...]:
    """The names of all steps of this process."""
    return tuple(_steps)


def registered_names() -> tuple[str, ...]:
    """The names of all workflows of this process."""
    return tuple(_workflows)


def registered_versions() -> dict[str, int]:
    """The version of each workflow of this process: it can run that one and those before it."""
    return {name: each.version for name, each in _workflows.items()}


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    process: bool = False,
    effect: str | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...
def step(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    process: bool = False,
    effect: str | None = None,
) -> Step[P, R] | Callable[[Callable[P, R]], Step[P, R]]:
    """Make a function a step: its output is recorded once per call in an execution, and answered from the record after a crash.

    With ``process`` it is run in a process of its own, for work that keeps a processor busy or may crash. ``effect`` names the kind
    of effect that it has, for ``Governance``.
    """
    limit = None if timeout_seconds is None else seconds_of(timeout_seconds, "timeout_seconds")

    if retry is not None and not isinstance(retry, Retry):
        raise InvalidInput(f"retry is a stepwell.Retry(...), not {retry!r}")

    def make(target: Callable[P, R]) -> Step[P, R]:
        _check_function(target, "step")
        if process and "<locals>" in target.__qualname__:
            raise InvalidInput(f"step {target.__qualname__!r} cannot run in a process: define it at the top of a module")
        made = Step(target, target.__name__ if name is None else name, retry or _NO_RETRY, limit, process=process, effect=effect)
        _steps[made.name] = made
        _tell()
        return made

    return make if function is None else make(function)


@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *, name: str | None = None, version: int = 1, timeout: Span | None = None, governance: Governance | None = None
) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...
def workflow(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    timeout: Span | None = None,
    governance: Governance | None = None,
) -> Workflow[P, R] | Callable[[Callable[P, R]], Workflow[P, R]]:
    """Make a function a workflow: started with ``well.start``, it runs to its end whatever crashes in between.

    ``timeout`` is for a whole run, waits among it. ``governance`` is for runs that are started without one of their own.
    """
    limit = None if timeout is None else seconds_of(timeout, "timeout")

    if type(version) is not int or not 1 <= version <= _NEWEST:
        raise InvalidInput(f"version is a whole number from 1 to 2**53, not {version!r}")

    def make(target: Callable[P, R]) -> Workflow[P, R]:
        _check_function(target, "workflow")
        if any(each.kind in _NAMELESS for each in inspect.signature(target).parameters.values()):
            raise InvalidInput(f"workflow {target.__name__!r} gets its input by the names of its parameters; give it no *, ** or /")
        made = Workflow(target, target.__name__ if name is None else name, version, timeout_seconds=limit, governance=governance)
        check_place(_workflows.get(made.name), made)
        _workflows[made.name] = made
        _tell()
        return made

    return make if function is None else make(function)
