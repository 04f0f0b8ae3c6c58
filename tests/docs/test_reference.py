"""The reference says what the code says: every public name, rule, code, limit and option, and no others."""

from __future__ import annotations

import inspect
import re

import pytest
from tests.docs.pages import PAGES, ROOT, cells

import stepwell
from stepwell import AsyncStepwell, DataStore, ExecutionState, InvalidInput, Limits, Receipt, Stepwell, StepwellError, errors
from stepwell.app import ExecutionIndex
from stepwell.clock import SystemClock
from stepwell.faults import POINTS
from stepwell.model.status import TRANSITIONS
from stepwell.model.value import RULES
from stepwell.state.blocking import ScopedState, State
from stepwell.state.buffer import BufferedScope
from stepwell.state.transaction import StateTransaction, Transaction
from stepwell.stores.opening import store_of

REFERENCE = ROOT / "docs" / "reference"
SHORTHAND = {"dict", "function", "StepOutput", "LoopContext"}
"""Arguments that a page names by what they are."""


def _text(*names: str) -> str:
    return "\n".join((REFERENCE / name).read_text(encoding="utf-8") for name in names)


def _public(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]


def test_public_means_documented():
    text = _text(*(page.name for page in REFERENCE.glob("*.md")))
    assert stepwell.__all__ == sorted(stepwell.__all__)
    missing = [name for name in stepwell.__all__ if not re.search(rf"`{name}\b|^## {name}$", text, re.MULTILINE)]
    assert missing == []


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        (Stepwell, "stepwell.md"),
        (ExecutionIndex, "stepwell.md"),
        (Transaction, "transactions.md"),
        (StateTransaction, "transactions.md"),
        (BufferedScope, "transactions.md"),
        (ScopedState, "scoped-state.md"),
        (State, "scoped-state.md"),
        (ExecutionState, "records.md"),
        (DataStore, "records.md"),
    ],
)
def test_every_public_method_is_on_its_page(kind: type, page: str):
    inner = {"batch", "drop", "state_ops", "write_state"}  # between a transaction and its commit
    text = _text(page)
    missing = [name for name in _public(kind) if name not in inner and not re.search(rf"`(?:\w+\.)?{name}\b", text)]
    assert missing == []


def test_calls_on_the_pages_have_the_parameters_of_the_code():
    kinds = (Stepwell, ExecutionIndex, DataStore, Transaction, ScopedState, State, BufferedScope, ExecutionState)
    for name, arguments in re.findall(r"`(\w+)\(([^`]*)\)`", _text(*(page.name for page in REFERENCE.glob("*.md")))):
        methods = [found for kind in kinds if inspect.isfunction(found := inspect.getattr_static(kind, name, None))]
        written = {re.split("=", part.strip())[0] for part in arguments.split(",")} - {"", "*", *SHORTHAND}
        if methods:
            assert any(written <= set(inspect.signature(method).parameters) for method in methods), f"{name}({arguments})"


def test_both_faces_are_made_with_the_arguments_of_the_page():
    written = re.search(r"`Stepwell\((.*)\)`", _text("stepwell.md"))
    assert written is not None
    names = [re.split("=", part.strip())[0] for part in written[1].split(",") if part.strip() != "*"]
    for face in (Stepwell, AsyncStepwell):
        assert names == list(inspect.signature(face).parameters)


def test_attributes_of_a_receipt_are_on_its_page():
    text = _text("records.md")
    assert [name for name in (*Receipt.__struct_fields__, "mutations") if f"`{name}`" not in text] == []


def test_value_rules_are_those_of_the_code():
    written = cells(REFERENCE / "values.md", "kind")
    assert written == [[rule.kind, "yes" if rule.accepted else "no", rule.reason] for rule in RULES]


def test_error_codes_are_those_of_the_code():
    written = {name.strip("`"): (code, parent.strip("`")) for name, code, parent, _ in cells(REFERENCE / "errors.md", "error")}
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, StepwellError)]
    assert written == {kind.__name__: (kind.code, kind.__bases__[0].__name__) for kind in kinds}
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_limits_are_those_of_the_code():
    written = {name.strip("`"): int(number.replace(",", "")) for name, number, _ in cells(REFERENCE / "limits.md", "limit")}
    assert written == {name: getattr(Limits(), name) for name in Limits.__struct_fields__}


def test_status_transitions_are_those_of_the_code():
    written = {name.strip("`"): set(re.findall(r"`(\w+)`", after)) for name, after in cells(REFERENCE / "transactions.md", "from")}
    assert written == {str(before): {str(after) for after in afters} for before, afters in TRANSITIONS.items()}


def test_schemes_on_the_page_open_and_others_do_not():
    clock, limits = SystemClock(), Limits()
    schemes = [row[0].strip("`") for row in cells(REFERENCE / "stores.md", "scheme")]
    urls = {
        "memory": "memory://",
        "sqlite": "sqlite:///x.db",
        "postgresql": "postgresql://localhost/x",
        "redis": "redis://localhost/0",
    }
    for scheme, url in urls.items():
        if scheme in schemes:
            store_of(url, clock, limits)
        else:
            with pytest.raises(InvalidInput, match="no store has the scheme"):
                store_of(url, clock, limits)


def test_sqlite_options_on_the_page_are_taken_with_their_defaults():
    options = {row[0].strip("`"): row[2].strip("`") for row in cells(REFERENCE / "stores.md", "option")}
    query = "&".join(f"{name}={default}" for name, default in options.items())
    store_of(f"sqlite:///x.db?{query}", SystemClock(), Limits())
    with pytest.raises(InvalidInput, match=f"takes {' and '.join(options)}, not"):
        store_of("sqlite:///x.db?nonsense=1", SystemClock(), Limits())


def test_fault_points_named_in_the_docs_exist():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"[`\"]((?:store|commit)\.[a-z_]+)[`\"]", text))
    assert named - POINTS.keys() - {"store.write"} == set()
