"""The suite as a product: nothing of it is lost on the way, it is light for those who do not test, and its example works."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections import Counter
from importlib import import_module
from pathlib import Path

import stepwell.testing.conformance as suite


def own_tests(role: str) -> dict[str, object]:
    """The tests that a role defines itself."""
    module = import_module(f"stepwell.testing.conformance.{role}")
    own = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    return {name: test for name, test in own.items() if inspect.getmodule(test) is module}


def test_every_test_of_every_role_is_exported_and_no_two_have_one_name() -> None:
    names = Counter(name for role in (*suite.ROLES, *suite.QUEUE_ROLES) for name in own_tests(role))
    assert [name for name, count in names.items() if count > 1] == []
    assert {name for role in suite.ROLES for name in own_tests(role)} == {
        name for name in suite.__all__ if name.startswith("test_")
    }


def test_every_module_with_tests_is_a_role() -> None:
    folder = Path(suite.__file__).parent
    found = {path.stem for path in folder.glob("*.py") if "\ndef test_" in path.read_text(encoding="utf-8")}
    assert found == {*suite.ROLES, *suite.QUEUE_ROLES}


def test_how_to_page_and_our_own_tests_name_every_role_of_the_queue() -> None:
    here = Path(__file__).parent
    for path in (here / "test_queue.py", here.parents[1] / "docs" / "how-to" / "conformance.md"):
        text = path.read_text(encoding="utf-8")
        assert [role for role in suite.QUEUE_ROLES if f"conformance.{role} import" not in text] == []


def test_no_exported_name_is_hidden_by_a_module_of_the_package() -> None:
    """A package's modules are its attributes, too: a fixture of the same name would be lost."""
    assert [name for name in suite.__all__ if inspect.ismodule(getattr(suite, name))] == []


def test_importing_stepwell_does_not_load_the_suite() -> None:
    loaded = "[name for name in sys.modules if name.startswith(('stepwell.testing', 'pytest', 'hypothesis'))]"
    code = f"import sys, stepwell; print({loaded})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_example_of_the_docstring_runs(tmp_path: Path) -> None:
    doc = inspect.getdoc(suite) or ""
    lines = doc.split("::\n", 1)[1].split("\n``make_store``", 1)[0]
    example = textwrap.dedent(lines).replace("from mystore import MyStore", "from stepwell.stores.sqlite.store import SQLiteStore")
    example = example.replace('MyStore(tmp_path / "well.db"', 'SQLiteStore(f"sqlite:///{tmp_path}/well.db"')
    (tmp_path / "test_mine.py").write_text(example, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "signature or least_time", str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout
