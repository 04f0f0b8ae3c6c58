"""The public face: what it exports, that both colours are one, and that importing it is light."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import stepwell
import stepwell.app.awaited
import stepwell.app.blocking
import stepwell.flow
import stepwell.state.transaction_buffer

HEAVY = {
    "apsw",
    "psycopg",
    "redis",
    "temporalio",
    "starlette",
    "lupa",
    "pydantic",
    "hypothesis",
    "pytest",
    "attr",
    "attrs",
}

# What an awaited class gives without a wait: it only points at something, or says what is known already.
KNOWN_ALREADY = {"BufferedScope", "Durability", "Value"}


def face_modules() -> list[ModuleType]:
    packages = (stepwell.app.awaited, stepwell.app.blocking)
    names = [module.name for each in packages for module in pkgutil.iter_modules(each.__path__, f"{each.__name__}.")]
    return [importlib.import_module(name) for name in names]


def pairs() -> dict[str, tuple[type, type]]:
    """Every public class of a face with its awaited twin, by its name."""
    classes = {
        name: thing
        for module in face_modules()
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and thing.__module__ == module.__name__ and not name.startswith("_")
    }
    twins = {name: (thing, classes[f"Async{name}"]) for name, thing in classes.items() if f"Async{name}" in classes}
    without_twin = {name for name in classes if name.startswith("Async")} - {f"Async{name}" for name in twins}
    assert not without_twin, f"{without_twin} have no blocking twin"
    return twins


PAIRS = pairs()


def test_the_pairs_are_found() -> None:
    assert set(PAIRS) >= {"Stepwell", "ExecutionIndex", "ScopedState", "State", "Transaction", "StateTransaction"}


def test_all_is_sorted_and_complete() -> None:
    assert stepwell.__all__ == sorted(stepwell.__all__)
    assert len(set(stepwell.__all__)) == len(stepwell.__all__)
    assert all(hasattr(stepwell, name) for name in stepwell.__all__)
    told = {name.name for import_from in imports_for_type_checkers() for name in import_from.names}
    assert told == set(stepwell.__all__)


def imports_for_type_checkers() -> list[ast.ImportFrom]:
    """Return the imports for type checkers, which do not see names that are fetched late."""
    [block] = [node for node in ast.parse(Path(stepwell.__file__).read_text()).body if isinstance(node, ast.If)]
    return [node for node in block.body if isinstance(node, ast.ImportFrom)]


@pytest.mark.parametrize("name", stepwell.__all__)
def test_everything_public_says_what_it_is(name: str) -> None:
    assert (getattr(stepwell, name).__doc__ or "").strip()


def members(kind: type) -> dict[str, object]:
    """The public names of a class, inherited ones included."""
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", PAIRS)
def test_both_faces_have_the_same_names(name: str) -> None:
    blocking, awaited = PAIRS[name]
    assert set(members(blocking)) == set(members(awaited))


def signature(function: object) -> list[tuple[str, object, object, str]]:
    parameters = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default, colourless(each.annotation)) for each in parameters]


def colourless(annotation: object) -> str:
    """The annotation without what tells that it is awaited."""
    return re.sub(r"\bAsync(?=[A-Z])", "", str(annotation))


def functions(kind: type) -> dict[str, object]:
    found = {name: member.fget if isinstance(member, property) else member for name, member in members(kind).items()}
    return {name: member for name, member in found.items() if inspect.isfunction(member)}


@pytest.mark.parametrize("name", PAIRS)
def test_both_faces_take_the_same_arguments_and_give_the_same(name: str) -> None:
    blocking, awaited = (functions(kind) for kind in PAIRS[name])
    assert set(blocking) == set(awaited)
    for each, function in blocking.items():
        assert signature(function) == signature(awaited[each]), each
        assert colourless(inspect.signature(function).return_annotation) == colourless(
            inspect.signature(awaited[each]).return_annotation
        ), each


@pytest.mark.parametrize("name", ["Stepwell"])
def test_both_faces_are_made_from_the_same_arguments(name: str) -> None:
    blocking, awaited = PAIRS[name]
    assert signature(blocking.__init__) == signature(awaited.__init__)


@pytest.mark.parametrize("name", PAIRS)
def test_every_public_method_of_a_face_is_documented(name: str) -> None:
    for kind in PAIRS[name]:
        assert [each for each, function in functions(kind).items() if not function.__doc__] == []


# Methods of public classes that other parts of Stepwell call, and no user.
INNER = {
    "BufferedScope.add",
    "Entry.of",
    "ErasureReceipt.signed",
    "ErrorRecord.of",
    "ExecutionSummary.of",
    "Exploration.findings",
    "Hook.call",
    "Hook.fault",
    "Hook.wants",
    "ItemSummary.of",
    "Place.form",
    "Receipt.found",
    "Receipt.of",
    "Receipt.read",
    "RunLogFilter.filter",
    "ScheduleSummary.of",
    "StateChange.of",
    "StateChange.seen_at",
} | {f"{name}.{each}" for name in ("Transaction", "AsyncTransaction") for each in ("add", "write_state")}
INNER |= {f"{name}.wait_async" for name in ("CachedState", "AsyncCachedState")}


def callables() -> dict[str, object]:
    """Every public function and method, by its name."""
    names = {name: getattr(module, name) for module in (stepwell, stepwell.flow) for name in module.__all__}
    names |= {kind.__name__: kind for pair in PAIRS.values() for kind in pair}
    found = {name: thing for name, thing in names.items() if inspect.isfunction(thing)}
    objects = {name: type(thing) for name, thing in names.items() if not inspect.isclass(thing)}
    found |= {name: call for name, kind in objects.items() if inspect.isfunction(call := vars(kind).get("__call__"))}
    names |= objects
    for name, kind in names.items():
        if inspect.isclass(kind) and not issubclass(kind, Exception):
            for each, member in members(kind).items():
                function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
                if inspect.isfunction(function) and (function.__module__ or "").startswith("stepwell"):
                    found[f"{name}.{each}"] = function
    return {name: function for name, function in found.items() if name not in INNER}


def test_docstrings_name_every_parameter() -> None:
    missing = {}
    for name, function in callables().items():
        parameters = set(inspect.signature(function).parameters) - {"self", "cls"}
        named = set(re.findall(r"``(\w+)``", inspect.getdoc(function) or ""))
        if parameters - named:
            missing[name] = sorted(parameters - named)
    assert missing == {}


@pytest.mark.parametrize("name", ["Stepwell", "ExecutionIndex", "ScopedState", "State", "Transaction", "StateTransaction"])
def test_what_does_io_is_awaited_and_what_does_none_is_not(name: str) -> None:
    buffered = set(dir(stepwell.state.transaction_buffer.Buffer)) | {"rollback"} if "Transaction" in name else set()
    for each, function in functions(PAIRS[name][1]).items():
        gives = str(inspect.signature(function).return_annotation)
        points_at_something = (gives.startswith("Async") and not gives.startswith("AsyncIterator")) or gives in KNOWN_ALREADY
        is_awaited = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        is_plain = each in buffered or isinstance(members(PAIRS[name][1])[each], property)
        assert not is_awaited if is_plain else is_awaited or points_at_something, each
    for each, function in functions(PAIRS[name][0]).items():
        assert not inspect.iscoroutinefunction(function), each


def test_both_are_context_managers() -> None:
    for name in ("Stepwell", "Transaction", "StateTransaction"):
        blocking, awaited = PAIRS[name]
        assert hasattr(blocking, "__enter__")
        assert hasattr(blocking, "__exit__")
        assert hasattr(awaited, "__aenter__")
        assert hasattr(awaited, "__aexit__")
        assert not hasattr(awaited, "__enter__")


def test_importing_stepwell_is_light() -> None:
    """By listing modules, not by time: a driver is loaded when its URL is opened."""
    code = "import sys; from stepwell import *; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "stepwell" in loaded
    assert loaded & HEAVY == set()


def modules_loaded_by(line: str) -> set[str]:
    """The modules that a line adds to those of a bare interpreter."""
    code = f"import sys; before = set(sys.modules); {line}; print('\\n'.join(sys.modules.keys() - before))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_line_that_everybody_writes_loads_fewer_than_nine_modules_for_five_of_asyncio() -> None:
    asked = modules_loaded_by("from stepwell import Stepwell, step, workflow")
    assert len(asked) < 1.8 * len(modules_loaded_by("import asyncio"))
    # What runs is loaded when a well is opened: neither a store, nor a worker, nor an event loop.
    late = (
        "asyncio",
        "stepwell.stores",
        "stepwell.contract",
        "stepwell.pipeline",
        "stepwell.runtime",
        "stepwell.queue",
        "stepwell.state",
    )
    assert {name for name in asked for prefix in late if name == prefix or name.startswith(f"{prefix}.")} == set()


def test_opening_memory_loads_no_driver() -> None:
    code = "import sys; import stepwell; stepwell.Stepwell('memory://').create('a'); print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} & HEAVY == set()


def test_package_is_typed_and_says_its_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", stepwell.__version__)
    assert importlib.resources.files("stepwell").joinpath("py.typed").is_file()


def test_no_two_public_classes_share_a_name() -> None:
    """One word has one meaning. The blocking classes are generated twins, and have no other names."""
    package = Path(stepwell.__file__).parent
    places: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        if "blocking" in path.parts:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(package).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
