"""Versions of stored values: the registered migrations, and how they bring a value from one version to another.

All values of a *line* share one numbering: those of one scope's kind or namespace in every workspace, or the context and variables
of one workflow's executions. Values begin at version 1. A process uses one version of each line: the newest that its migrations
lead to. Values of earlier versions are brought forward when they are read. Values of later versions are refused, unless a migration
that is ``ahead`` says how to bring them back.

The registry is one for the process, as for workflows and steps. While no migration is registered, every look at it is one
comparison.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from stepwell.errors import InvalidInput, MigrationFailed, StateNewer, ValidationFailed
from stepwell.model.ids import check_key
from stepwell.model.scope import Scope
from stepwell.model.value import Value, canonical, decode, recode

__all__ = [
    "EXECUTION",
    "FIRST_VERSION",
    "MigrationLine",
    "check_writable",
    "converted",
    "current_version",
    "line_name",
    "line_of_path",
    "line_of_workflow",
    "lines",
    "migration",
    "registered_alone",
]

FIRST_VERSION = 1
"""The version of values that no migration has touched. It is not stored."""
EXECUTION = "execution"
"""The kind of the lines of workflows; no scope has it."""
_LAST_VERSION = 2**31 - 1

Convert = Callable[..., Value]
C = TypeVar("C", bound=Convert)


class HasName(Protocol):
    """A workflow."""

    name: str


class _Step:
    """One migration: the function from a version to the next, and the way back."""

    def __init__(self, line: str, before: int, forward: Convert, back: Convert | None, *, is_ahead: bool) -> None:
        self.line, self.before, self.forward, self.back, self.is_ahead = line, before, forward, back, is_ahead

    def convert(self, value: Value, key: str, *, is_back: bool) -> Value:
        """Return a value in the next version, or in the one before."""
        function = self.back if is_back else self.forward
        assert function is not None  # noqa: S101 - asked for only where there is one
        return function(value, key) if _takes_key(function) else function(value)


class MigrationLine:
    """The migrations of one line, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps: dict[int, _Step] = {}
        self._current: int | None = None
        self._ways: dict[tuple[int, int], tuple[_Step, ...]] = {}
        """The migrations from one version to another, for those that were asked for."""

    def add(self, step: _Step) -> None:
        """Add a migration. Raise ``InvalidInput`` if another has its place."""
        found = self._steps.get(step.before)
        if found is not None and not _is_same(found.forward, step.forward):
            raise InvalidInput(
                f"there are two migrations of {self.name!r} from version {step.before}, {_shown(found.forward)} and "
                f"{_shown(step.forward)}; keep one of them"
            )
        self._steps[step.before] = step
        self._current = None
        self._ways.clear()

    @property
    def current(self) -> int:
        """The version that this process uses. Raise ``InvalidInput`` if the migrations do not make one chain."""
        if self._current is None:
            self._current = self._checked()
        return self._current

    @property
    def first(self) -> int:
        """The earliest version that can be brought forward."""
        return min(self._steps)

    @property
    def last(self) -> int:
        """The newest version that can be read."""
        return max(self._steps) + 1

    def _checked(self) -> int:
        present = sorted(self._steps)
        gaps = [each for each in range(present[0], present[-1]) if each not in self._steps]
        if gaps:
            raise InvalidInput(
                f"the migrations of {self.name!r} have a gap: none leads from version {gaps[0]} to {gaps[0] + 1}; add it, or "
                "remove those before it if no value of their versions is left"
            )
        used = [each for each in present if not self._steps[each].is_ahead]
        if used and used[-1] != present[0] + len(used) - 1:
            raise InvalidInput(f"of the migrations of {self.name!r}, one that is ahead comes before one that is not; change either")
        return used[-1] + 1 if used else present[0]

    def can_convert(self, version: int, to: int) -> bool:
        """Return whether a value can be brought from one version to another."""
        if version <= to:
            return all(each in self._steps for each in range(version, to))
        return all(each in self._steps and self._steps[each].back is not None for each in range(to, version))

    def convert(self, data: bytes, key: str, version: int, to: int) -> bytes:
        """Return the canonical bytes of a value in another version.

        Raise ``StateNewer`` if there is no way back to an earlier one, and ``MigrationFailed`` if a migration is missing or fails.
        """
        value = self._converted(data, key, version, to)
        try:
            return canonical(value, what="the migrated value")
        except ValidationFailed as error:
            raise MigrationFailed(f"the migration of {self.name!r} to version {to} gives no value: {error.message}") from None

    def convert_again(self, data: bytes, key: str, version: int, to: int) -> bytes:
        """Return the same as a call of ``convert`` that has succeeded, if the migrations are pure."""
        try:
            return recode(self._converted(data, key, version, to))
        except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):  # no value this time
            return b""

    def _converted(self, data: bytes, key: str, version: int, to: int) -> Value:
        value = decode(data)
        for step in self._ways.get((version, to)) or self._way(key, version, to):
            value = self._made(step, value, key, is_back=version > to)
        return value

    def _way(self, key: str, version: int, to: int) -> tuple[_Step, ...]:
        """Return the migrations from one version to another, in order. Raise if there is no way."""
        if version > to and not self.can_convert(version, to):
            raise _newer(self.name, key, version, to)
        if not self.can_convert(version, to):
            raise MigrationFailed(
                f"a value of {self.name!r} is at version {version}, and no migration of this process starts there; the first is "
                f"from version {self.first}: import the earlier ones"
            )
        befores = range(version, to) if version < to else range(version - 1, to - 1, -1)
        found = self._ways[version, to] = tuple(self._steps[each] for each in befores)
        return found

    def _made(self, step: _Step, value: Value, key: str, *, is_back: bool) -> Value:
        try:
            made = step.convert(value, key, is_back=is_back)
        except (Exception, SystemExit) as error:  # it may run in the thread that writes for all callers
            way = f"{step.before + 1} to {step.before}" if is_back else f"{step.before} to {step.before + 1}"
            raise MigrationFailed(
                f"the migration of {self.name!r} from version {way} failed: {type(error).__name__}: {error}"
            ) from error
        return made


_lines: dict[str, MigrationLine] = {}


def lines() -> tuple[MigrationLine, ...]:
    """Return all lines with their migrations, by name."""
    return tuple(_lines[name] for name in sorted(_lines))


@contextmanager
def registered_alone() -> Generator[None]:
    """Begin with no migration, and bring back those of before at the end. For tests of several programs in one process."""
    before = dict(_lines)
    _lines.clear()
    try:
        yield
    finally:
        _lines.clear()
        _lines.update(before)


def migration(
    *,
    scope: str | Scope | None = None,
    workflow: str | HasName | None = None,
    from_version: int,
    to_version: int,
    back: Convert | None = None,
    ahead: bool = False,
) -> Callable[[C], C]:
    """Register a function that brings stored values from one version to the next.

    The function gets a value and returns it in the new version; with a second parameter, it gets the key, too. It must be pure: the
    same value gives the same result, and nothing else is read or changed. It is called when a value is read, when a write builds on
    the stored value, and by ``well.migrate_state``. It may be called many times for one value.

    - ``scope``: the values of which scopes, in every workspace: ``"custom/prices"``, ``"workflow/checkout"``,
      ``"step/checkout/charge"``, ``"workspace"``, ``"global"``; or a kind for all its scopes: ``"user"``, ``"conversation"``.
    - ``workflow``: instead of a scope: the executions of a workflow, by name. The value is
      ``{"context": {...}, "variables": {...}}``.
    - ``from_version``, ``to_version``: the versions, one apart; a value that was never migrated is at version 1.
    - ``back``: a function that brings a value back to ``from_version``.
    - ``ahead``: True in code that does not use the new version yet: it goes on writing ``from_version``, and brings values that
      newer code has written back. It needs ``back``.

    Raise ``InvalidInput`` for arguments that do not fit, for two migrations of one step, and for a function that is async or a
    generator.

    Example:

        @stepwell.migration(scope="custom/prices", from_version=1, to_version=2)
        def in_cents(value):
            return {"cents": round(value["euros"] * 100)}
    """
    name = line_name(scope, workflow)
    _check_versions(name, from_version, to_version)
    if ahead and back is None:
        raise InvalidInput(f"a migration of {name!r} that is ahead needs back=..., which reads what newer code has written")
    if back is not None:
        _check_function(back, "back")

    def register(function: C) -> C:
        _check_function(function, "a migration")
        _check_apart(name)
        line = _lines.get(name) or MigrationLine(name)
        line.add(_Step(name, from_version, function, back, is_ahead=ahead))
        _lines[name] = line
        return function

    return register


def line_name(scope: str | Scope | None, workflow: str | HasName | None) -> str:
    """Return the name of the line that a scope or a workflow names."""
    if (scope is None) is (workflow is None):
        raise InvalidInput('a migration is of a scope or of a workflow; give scope="custom/prices" or workflow="checkout"')
    if workflow is not None:
        return workflowline_name(check_key(workflow if isinstance(workflow, str) else workflow.name, "a workflow's name"))
    path = scope.path if isinstance(scope, Scope) else scope
    if not isinstance(path, str):
        raise InvalidInput(f"the scope of a migration is a text or a Scope, not {scope!r}")
    if isinstance(scope, Scope):
        return _unplaced(path)
    kind, _, rest = path.partition("/")
    workspace = "" if kind == "global" else "default"
    if kind in _KINDS_AS_ONE and not rest:
        return kind
    try:
        return _unplaced(Scope.parse(f"{kind}/{workspace}/{rest}" if rest else f"{kind}/{workspace}").path)
    except InvalidInput:
        raise InvalidInput(
            f"{scope!r} is no scope of a migration; use global, workspace, workflow/NAME, step/WORKFLOW/STEP, conversation, user "
            "or custom/NAME, with %2F for a slash inside a name; or workflow=... for the executions of a workflow"
        ) from None


_KINDS_AS_ONE = ("global", "workspace", "workflow", "step", "conversation", "user", "custom")
"""Kinds that may be named without a name, for all their scopes."""


def workflowline_name(workflow: str) -> str:
    """Return the name of the line of a workflow's executions."""
    return f"{EXECUTION}/{workflow}"


def _unplaced(path: str) -> str:
    """Return a scope's path without its workspace."""
    kind, _, rest = path.partition("/")
    names = rest.partition("/")[2]
    return f"{kind}/{names}" if names else kind


def _check_versions(name: str, before: object, after: object) -> None:
    for version in (before, after):
        if type(version) is not int or not FIRST_VERSION <= version <= _LAST_VERSION:
            raise InvalidInput(f"versions of {name!r} are whole numbers from 1 on, not {version!r}")
    assert isinstance(before, int)  # noqa: S101 - checked above
    assert isinstance(after, int)  # noqa: S101 - checked above
    if after <= before:
        raise InvalidInput(
            f"a migration of {name!r} leads to a newer version, not from {before} to {after}, which would make a cycle; give the "
            "way back as back=..."
        )
    if after != before + 1:
        raise InvalidInput(f"a migration of {name!r} leads to the next version, {before + 1}, not from {before} to {after}")


def _check_apart(name: str) -> None:
    """Raise if a value would be in two lines: of a kind, and of one of its names."""
    kind = name.partition("/")[0]
    other = next((each for each in _lines if each != name and kind == each.partition("/")[0] and kind in (name, each)), None)
    if other is not None and kind != EXECUTION:
        raise InvalidInput(f"there are migrations of {other!r} and of {name!r}, which share values; use one of the two")


def _check_function(function: object, what: str) -> None:
    if not callable(function) or isinstance(function, type):
        raise InvalidInput(f"{what} is a function from a value to a value, not {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            f"{what} is a plain function that returns a value, not {_shown(function)}, which is async or a generator"
        )
    if not 1 <= len(_parameters(function)) <= 2:
        raise InvalidInput(f"{what} takes a value, or a value and its key; {_shown(function)} takes something else")


def _parameters(function: Convert) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each for each in inspect.signature(function).parameters.values() if each.kind in kinds]


_takes_keys: dict[Any, bool] = {}


def _takes_key(function: Convert) -> bool:
    found = _takes_keys.get(function)
    if found is None:
        found = _takes_keys[function] = len(_parameters(function)) > 1
    return found


def _is_same(one: Convert, other: Convert) -> bool:
    """Return whether both are one function: the same code, or the same name of a module that was loaded again."""
    names = [(getattr(each, "__module__", None), getattr(each, "__qualname__", None)) for each in (one, other)]
    return one is other or (names[0] == names[1] and "<l" not in str(names[0][1]))


def _shown(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


def _newer(name: str, key: str, stored: int, known: int) -> StateNewer:
    where = f"key {key!r} of {name!r}" if key else f"the state of {name!r}"
    return StateNewer(
        f"{where} is at version {stored}, and this process uses version {known}: newer code has written it; update this process. "
        "Nothing was written",
        stored=stored,
        known=known,
    )


# Looking up.


def line_of_path(path: str) -> MigrationLine | None:
    """Return the line of a scope's values, if it has migrations."""
    kind, _, rest = path.partition("/")
    return _lines.get(kind) or _lines.get(f"{kind}/{rest.partition('/')[2]}")


def line_of_workflow(workflow: str) -> MigrationLine | None:
    """Return the line of a workflow's executions, if it has migrations."""
    return _lines.get(workflowline_name(workflow)) if _lines else None


def current_version(path: str) -> int:
    """Return the version that this process writes into a scope."""
    if not _lines:
        return FIRST_VERSION
    line = line_of_path(path)
    return FIRST_VERSION if line is None else line.current


def converted(path: str, key: str, data: bytes, version: int) -> tuple[bytes, int]:
    """Return a stored value, and its version, as this process uses it. Raise ``StateNewer`` or ``MigrationFailed`` if it cannot."""
    line = line_of_path(path)
    if line is None:
        if version > FIRST_VERSION:
            raise _newer(_unplaced(path), key, version, FIRST_VERSION)
        return data, version
    if line.current == version:
        return data, version
    return line.convert(data, key, version, line.current), line.current


def check_writable(path: str, key: str, stored: int) -> None:
    """Raise ``StateNewer`` unless this process may overwrite a value of a newer version: it can read what it loses."""
    line = line_of_path(path)
    known = FIRST_VERSION if line is None else line.current
    if line is None or not line.can_convert(stored, known):
        raise _newer(_unplaced(path), key, stored, known)
