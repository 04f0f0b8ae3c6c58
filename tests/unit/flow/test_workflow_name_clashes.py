"""Two workflows of one name: the same one loaded again, or a mistake that is told with both places."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import InvalidDefinition, InvalidInput, Stepwell, step, workflow
from stepwell.flow import call, subworkflow
from stepwell.flow.function import registered

PROGRAM = "from stepwell import workflow\n\n\n@workflow(name='{name}')\ndef {function}() -> str:\n    return '{text}'\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules can be imported, and are forgotten at the end."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, module: str, name: str, text: str = "", function: str = "ship") -> Path:
    path = folder / f"{module}.py"
    path.write_text(PROGRAM.format(name=name, text=text, function=function))
    importlib.invalidate_caches()
    return path


def test_second_workflow_of_a_name_is_refused_with_both_places(folder: Path) -> None:
    first, second = write(folder, "twin_one", "place.twin", "one"), write(folder, "twin_two", "place.twin", "two")
    importlib.import_module("twin_one")
    with pytest.raises(InvalidInput) as caught:
        importlib.import_module("twin_two")
    for place in (f"twin_one.ship ({first}:4)", f"twin_two.ship ({second}:4)", "there are two workflows 'place.twin'"):
        assert place in str(caught.value)
    assert registered("place.twin").function() == "one", "the first keeps the name"


def test_second_step_of_a_name_is_refused_with_both_places(folder: Path) -> None:
    for module in ("step_one", "step_two"):
        path = write(folder, module, "place.step")
        path.write_text(path.read_text().replace("workflow", "step"))
    importlib.import_module("step_one")
    with pytest.raises(InvalidInput, match=r"there are two steps 'place\.step', step_one\.ship .*, and|and step_two\.ship"):
        importlib.import_module("step_two")


def test_two_functions_of_one_module_cannot_share_a_name(folder: Path) -> None:
    path = write(folder, "twins", "place.twins", "one")
    path.write_text(path.read_text() + path.read_text().replace("def ship", "def send"))
    with pytest.raises(InvalidInput, match=r"twins\.ship .*twins\.send"):
        importlib.import_module("twins")


def test_module_that_is_loaded_again_takes_its_own_place(folder: Path) -> None:
    write(folder, "again", "place.again", "one")
    module = importlib.import_module("again")
    write(folder, "again", "place.again", "two, changed")
    importlib.reload(module)
    assert registered("place.again").function() == "two, changed"


def test_function_that_is_defined_again_takes_its_own_place() -> None:
    """As in a notebook, where a cell is run twice."""
    cell: dict[str, object] = {"__name__": "__main__"}
    for text in ("one", "two"):
        exec(PROGRAM.format(name="place.cell", text=text, function="ship"), cell)
    assert registered("place.cell").function() == "two"


def test_program_that_is_run_and_imported_is_one_place(folder: Path) -> None:
    path = write(folder, "program_run_and_imported", "place.program", "one")
    importlib.import_module("program_run_and_imported")
    runpy.run_path(str(path), run_name="__main__")
    assert registered("place.program").function() == "one"


def test_what_nobody_can_reach_any_more_gives_its_name_away(folder: Path) -> None:
    write(folder, "gone", "place.gone", "one")
    importlib.import_module("gone")
    del sys.modules["gone"]
    write(folder, "come", "place.gone", "two")
    importlib.import_module("come")
    assert registered("place.gone").function() == "two"


def test_workflows_inside_of_functions_may_take_turns() -> None:
    """As in tests of a program that changes."""

    @workflow(name="place.local")
    def before() -> str:
        return "before"

    @workflow(name="place.local")
    def after() -> str:
        return "after"

    assert before is not after
    assert registered("place.local").function() == "after"


def test_replaced_function_cannot_be_called_or_started() -> None:
    """The name belongs to another function, which would run instead."""

    def make(text: str) -> tuple[object, object]:
        return step(name="place.made")(lambda: text), workflow(name="place.made")(lambda: text)

    (old_step, old_workflow), (new_step, new_workflow) = make("old"), make("new")
    with pytest.raises(InvalidDefinition, match=r"another function is registered as step 'place\.made'"):
        call(old_step)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidDefinition, match=r"another function is registered as workflow 'place\.made'"):
        subworkflow(old_workflow)  # pyright: ignore[reportArgumentType]
    assert (call(new_step).uses, subworkflow(new_workflow).workflow) == ("place.made", "place.made")  # pyright: ignore[reportArgumentType]
    with Stepwell("memory://") as well:
        with pytest.raises(InvalidInput, match=r"another function was registered as workflow 'place\.made'"):
            well.start(old_workflow)  # pyright: ignore[reportArgumentType]
        assert well.start(new_workflow).result(timeout=10) == "new"  # pyright: ignore[reportArgumentType]


def test_step_is_no_workflow_and_workflow_is_no_step() -> None:
    with pytest.raises(InvalidDefinition, match=r"'place\.one' is a workflow and no step; run it as a child with subworkflow"):
        call(workflow(name="place.one")(lambda: 1))
    with pytest.raises(InvalidDefinition, match=r"'place\.two' is a step and no workflow; run it with call"):
        subworkflow(step(name="place.two")(lambda: 1))
