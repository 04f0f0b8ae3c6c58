"""Find the workflow that a command line names: a definition file, a script, a Python file, a module, or a registered name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tokenize
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from stepwell.errors import InvalidDefinition, InvalidInput, NotFound, Problem
from stepwell.flow.function import Workflow, registered_names

if TYPE_CHECKING:
    from stepwell.app.blocking import Stepwell
    from stepwell.flow.definition.findings import Findings
    from stepwell.flow.definition.node import Definition
    from stepwell.runtime.definitions import Startable

__all__ = [
    "DOCUMENTS",
    "definitions_of",
    "find_workflow",
    "functions_of",
    "import_source",
    "is_document",
    "known_workflow",
    "read_text",
    "source_problems_of",
]

DOCUMENTS = (".yaml", ".yml", ".json")
"""File suffixes of definitions."""


def is_document(target: str) -> bool:
    """Return whether a target is a definition file, by its suffix."""
    return target.lower().endswith(DOCUMENTS)


def find_workflow(target: str) -> Startable:
    """Return the workflow of ``file.yaml``, ``file.lua``, ``file.py``, ``file.py:name`` or ``module:name``; any other target is
    returned as a name.
    """
    if is_document(target):
        return _read_document(target)
    if _is_script(target):
        return _script_workflow(target)
    place, _, name = target.rpartition(":")
    if place and name.isidentifier():
        return _attribute(import_source(place), target, name)
    if target.endswith(".py"):
        return _only_workflow(import_source(target), target)
    return target


def _is_script(target: str) -> bool:
    return target.lower().endswith(".lua")


def _script_workflow(target: str) -> Definition:
    from stepwell.flow.definition.actions import script
    from stepwell.flow.definition.builder import define

    try:
        code = read_text(target).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{target!r} is not a text in UTF-8") from None
    return define(Path(target).stem, script(code, name="main"))


def known_workflow(well: Stepwell, target: str, found: Startable) -> Startable:
    """Return what ``find_workflow`` found, ready to be started in a well.

    Raise ``NotFound`` for a name that neither this process nor the store has. A script gets the version that it is stored by, or
    the next one if it was changed since: a stored version never changes, and a script has no place to say its version.
    """
    from stepwell.flow.definition.node import Definition

    if not _is_script(target) or not isinstance(found, Definition):
        _check_name(well, found)
        return found
    try:
        stored = well.definitions.get(found.name)
    except NotFound:
        return found
    version = stored.version if stored.root == found.root else stored.version + 1
    return msgspec.structs.replace(found, version=version)


def _check_name(well: Stepwell, found: Startable) -> None:
    if not isinstance(found, str) or found in registered_names():
        return
    try:
        well.definitions.get(found)
    except NotFound:
        raise NotFound(
            f"there is no workflow {found!r} here ({_known()}) or in the store; name a file.yaml, a file.py, module:workflow, "
            "or import its module with -m MODULE"
        ) from None


def import_source(name: str) -> ModuleType:
    """Import a module by name, or a Python file by path. Raise ``InvalidInput`` with the position of an error in it."""
    path = Path(name)
    try:
        if name.endswith(".py"):
            return _import_file(path)
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(
                0, str(Path.cwd())
            )  # `python -m` adds the current folder to sys.path; an installed program must do it itself
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound(f"there is no module {name!r}; run this from its folder, or name the file (file.py)") from error
        raise _not_importable(name, error) from error
    except (Exception, SystemExit) as error:
        raise _not_importable(name, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"there is no file {str(path)!r}; check the path")
    path = path.resolve()
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    sys.path.insert(0, str(path.parent))  # `python file.py` adds the file's folder, so that it can import its neighbours
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _not_importable(name: str, error: BaseException) -> Exception:
    if isinstance(error, (InvalidInput, NotFound)):
        return error
    place, trace = "", error.__traceback__
    while trace is not None:
        place, trace = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})", trace.tb_next
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}:{error.lineno}:{error.offset})"
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return InvalidInput(f"{name!r} cannot be imported: {type(error).__name__}: {message}{place}")


def _attribute(module: ModuleType, target: str, name: str) -> Workflow[..., Any] | Definition:
    found: object = getattr(module, name, None)
    if _is_workflow(found):
        return found
    named = [each for each in _workflows_of(module) if each.name == name]
    if named:
        return named[0]
    names = ", ".join(sorted(key for key, value in vars(module).items() if _is_workflow(value))) or "none"
    raise NotFound(f"{target!r} is not a workflow; those of {module.__name__!r} are: {names}")


def _only_workflow(module: ModuleType, target: str) -> Workflow[..., Any] | Definition:
    found = _workflows_of(module)
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"{target!r} has no workflow; decorate a function with @workflow")
    names = ", ".join(sorted(each.name for each in found))
    raise InvalidInput(f"{target!r} has several workflows ({names}); say which, as {target}:{found[0].name}")


def _workflows_of(module: ModuleType) -> list[Workflow[..., Any] | Definition]:
    """Return the workflows that a module defines itself, without imported ones."""
    found = [value for value in vars(module).values() if _is_workflow(value)]
    own: list[Workflow[..., Any] | Definition] = [
        each for each in found if not isinstance(each, Workflow) or each.function.__module__ == module.__name__
    ]
    return list({id(each): each for each in own}.values())


def _is_workflow(value: object) -> TypeGuard[Workflow[..., Any] | Definition]:
    from stepwell.flow.definition.node import Definition

    return isinstance(value, Workflow | Definition)


def _known() -> str:
    names = sorted(registered_names())
    return f"known: {', '.join(names[:10])}" if names else "no module with workflows is imported"


def read_text(target: str) -> bytes:
    """Return the content of a file."""
    try:
        return Path(target).read_bytes()
    except FileNotFoundError:
        raise NotFound(f"there is no file {target!r}; check the path") from None
    except OSError as error:
        raise InvalidInput(f"{target!r} cannot be read: {error.strerror}") from None


def _read_document(target: str) -> Definition:
    from stepwell.flow.definition.document import parse

    return parse(read_text(target), source=target)


def source_problems_of(target: str) -> list[Problem]:
    """Return the faults in the code of a module's workflow functions, with file, line and column; none for other files."""
    from stepwell.flow.source_checks import check_source

    if is_document(target):
        return []
    place, _, name = target.rpartition(":")
    only = name if place and name.isidentifier() else None
    source = place if only else target
    path = Path(source) if source.endswith(".py") else Path(import_source(source).__file__ or "")
    if path.suffix != ".py":
        return []
    with tokenize.open(path) as file:
        faults = check_source(file.read())
    return [
        Problem(InvalidInput.code, each.message, f"{path}:{each.line}:{each.column}")
        for each in faults
        if only in (None, each.workflow)
    ]


def functions_of(target: str) -> list[Workflow[..., Any]]:
    """Return the workflow functions of a Python file or module, or the one that is named; none for other files."""
    if is_document(target) or _is_script(target):
        return []
    place, _, name = target.rpartition(":")
    found = (
        [_attribute(import_source(place), target, name)] if place and name.isidentifier() else _workflows_of(import_source(target))
    )
    return [each for each in found if isinstance(each, Workflow)]


def definitions_of(
    target: str, *, steps: Collection[str] | None, further: Callable[[Definition], Findings] | None = None
) -> list[Definition]:
    """Return the definitions of a file or of a Python module. Raise ``InvalidDefinition`` with every fault.

    ``steps`` are known names; any other name is then a fault. ``further`` is another check for definitions without faults.
    """
    from stepwell.flow.definition.checker import checked
    from stepwell.flow.definition.document import parse
    from stepwell.flow.definition.findings import shown_path
    from stepwell.flow.definition.node import Definition

    if is_document(target):
        return [parse(read_text(target), source=target, steps=steps, further=further)]
    place, _, name = target.rpartition(":")
    if place and name.isidentifier():
        found = [_attribute(import_source(place), target, name)]
    else:
        found = _workflows_of(import_source(target))
    definitions = [checked(each, steps=steps) for each in found if isinstance(each, Definition)]
    problems = [
        Problem(InvalidDefinition.code, finding.message, f"{each.name}: {shown_path(finding.path)}")
        for each in definitions
        for finding in (further(each) if further else ())
    ]
    if problems:
        raise InvalidDefinition(problems)
    return definitions
