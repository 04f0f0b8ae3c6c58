"""The reference says what the code says: every public name, rule, code, limit and option, and no others."""

from __future__ import annotations

import inspect
import re
import types

import pytest
from tests.docs.pages import PAGES, ROOT, cells

import stepwell
from stepwell import (
    AsyncRun,
    AsyncStepwell,
    DataStore,
    ExecutionState,
    InvalidInput,
    Limits,
    Metadata,
    Receipt,
    Retry,
    Run,
    Scope,
    Stepwell,
    StepwellError,
    errors,
    flow,
)
from stepwell.app.blocking import (
    Access,
    CachedState,
    Conversations,
    ExecutionIndex,
    Lock,
    Locks,
    Queue,
    QueueItem,
    Retention,
    Schedules,
    ScopedState,
    State,
    StateTransaction,
    Transaction,
    UsageMeter,
    Webhooks,
    Workspaces,
)
from stepwell.clock import SystemClock
from stepwell.fault_points import POINTS
from stepwell.model.status import TRANSITIONS
from stepwell.model.value import RULES
from stepwell.runtime.steps.context import ExecutionContext, StepContext, WorkflowContext
from stepwell.runtime.steps.scoped_state import StepState
from stepwell.state.locks import HeldLock
from stepwell.state.transaction_buffer import BufferedScope
from stepwell.stores.url import store_of

REFERENCE = ROOT / "docs" / "reference"
SERVERS = {"sqlite": "sqlite:///x.db", "postgresql": "postgresql://localhost/x", "redis": "redis://localhost/0"}
SHORTHAND = {"...", "dict", "function", "StepOutput", "LoopContext"}
"""Arguments that a page names by what they are."""
FUNCTIONS = {
    name: getattr(stepwell, name)
    for name in ("check", "explore", "map", "migration", "patched", "sleep", "step", "verify_proof", "wait_signal", "workflow")
}
"""Functions of ``stepwell`` that the reference shows with their parameters."""
BUILDERS = {name: found for name in flow.__all__ if inspect.isfunction(found := getattr(flow, name))}
"""Functions of ``stepwell.flow``."""


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
        (CachedState, "scoped-state.md"),
        (Lock, "locks.md"),
        (HeldLock, "locks.md"),
        (Conversations, "locks.md"),
        (State, "scoped-state.md"),
        (StepState, "workflows.md"),
        (Run, "workflows.md"),
        (AsyncRun, "workflows.md"),
        (ExecutionState, "records.md"),
        (DataStore, "records.md"),
        (QueueItem, "queue.md"),
        (Queue, "queue.md"),
        (Workspaces, "queue.md"),
        (Schedules, "queue.md"),
        (Access, "http.md"),
        (Locks, "http.md"),
        (Webhooks, "http.md"),
        (UsageMeter, "limits.md"),
        (Retention, "stepwell.md"),
    ],
)
def test_every_public_method_is_on_its_page(kind: type, page: str):
    inner = {"add", "batch", "drop", "state_ops", "write_state", "wait", "wait_async", "wake"}  # for other parts of Stepwell
    text = _text(page)
    missing = [name for name in _public(kind) if name not in inner and not re.search(rf"`(?:\w+\.)?{name}\b", text)]
    assert missing == []


@pytest.mark.parametrize("name", [name for name in stepwell.__all__ if hasattr(getattr(stepwell, name), "__struct_fields__")])
def test_every_field_of_a_public_record_is_on_a_page(name: str):
    text = _text(*(page.name for page in REFERENCE.glob("*.md")))
    table = re.search(rf"^\| attributes? of `{name}`.*?\n\n", text, re.MULTILINE | re.DOTALL)
    fields = [field for field in getattr(stepwell, name).__struct_fields__ if not field.startswith("_")]
    assert [field for field in fields if not re.search(rf"`{field}\b", table[0] if table else text)] == []


def test_calls_on_the_pages_have_the_parameters_of_the_code():
    kinds = (
        Stepwell,
        ExecutionIndex,
        DataStore,
        Transaction,
        ScopedState,
        State,
        BufferedScope,
        StepState,
        ExecutionState,
        Conversations,
        Lock,
        Run,
        StepContext,
        QueueItem,
        Queue,
        Workspaces,
        Schedules,
        Access,
        Locks,
        UsageMeter,
        Retention,
        Webhooks,
    )
    for name, arguments in re.findall(r"`(\w+)\(([^`]*)\)`", _text(*(page.name for page in REFERENCE.glob("*.md")))):
        methods = [found for kind in kinds if inspect.isfunction(found := inspect.getattr_static(kind, name, None))]
        methods += [functions[name] for functions in (FUNCTIONS, BUILDERS) if name in functions]
        written = {re.split("=", part.strip(" *"))[0] for part in arguments.split(",")} - {"", "/", *SHORTHAND}
        if methods:
            assert any(written <= set(inspect.signature(method).parameters) for method in methods), f"{name}({arguments})"


def test_both_faces_are_made_with_the_arguments_of_the_page():
    written = re.search(r"`Stepwell\((.*)\)`", _text("stepwell.md"))
    assert written is not None
    names = [re.split("=", part.strip())[0] for part in written[1].split(",") if part.strip() != "*"]
    for face in (Stepwell, AsyncStepwell):
        assert names == list(inspect.signature(face).parameters)


def test_policy_of_retries_is_that_of_the_code():
    written = {name.strip("`"): default for name, default, _ in cells(REFERENCE / "workflows.md", "field")}
    assert written == {name: repr(getattr(Retry(), name)) for name in Retry.__struct_fields__}
    call = re.search(r"`Retry\((.*?)\)`", _text("workflows.md"))
    assert call is not None
    assert call[1].split(", ") == [f"{name}={default}" for name, default in written.items()]


def _is_given(context: ExecutionContext, name: str) -> bool:
    """Whether this context has what it is asked for: no context lacks a name, so that types need no casts."""
    arguments: dict[str, tuple[object, ...]] = {"spend": (1,), "state": (Scope.globals(),)}
    try:
        found = getattr(context, name)
        if name in arguments:
            found(*arguments[name])
    except InvalidInput:
        return False
    return True


def test_contexts_are_on_the_page_with_what_they_have():
    table = cells(REFERENCE / "workflows.md", "of the context")
    rows = {name: row for row in table for name in re.findall(r"`(\w+)", row[0])}
    identity = Metadata("e", "w", "f", 1, SystemClock().now())
    contexts = (WorkflowContext(identity, types.SimpleNamespace(is_replaying=False)), StepContext(identity, "k", 1, Limits()))
    for column, context in enumerate(contexts, start=1):
        has = {name for name in dir(context) if not name.startswith("_") and _is_given(context, name)} - {
            "attempt_log",
            "buffer",
            "given",
            "grants",
            "recorded_as",
            "started_by",
        }
        assert has == {name for name, row in rows.items() if row[column] != "no"}


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
    assert set(schemes) == {"memory", *SERVERS}
    for url in ("memory://", *SERVERS.values()):
        store_of(url, clock, limits)
    for url in ("mysql://localhost/x", "http://localhost", "file.db", ""):
        with pytest.raises(InvalidInput, match="no store has the scheme"):
            store_of(url, clock, limits)


@pytest.mark.parametrize(("scheme", "url"), SERVERS.items())
def test_url_options_on_the_page_are_taken_with_their_defaults(scheme: str, url: str):
    rows = [(name, row[2].strip("`")) for row in cells(REFERENCE / "stores.md", f"{scheme} option") for name in _quoted(row[0])]
    store_of(f"{url}?" + "&".join(f"{name}={default}" for name, default in rows if default), SystemClock(), Limits())
    if scheme != "postgresql":  # which hands on what it does not know
        with pytest.raises(InvalidInput) as refused:
            store_of(f"{url}?nonsense=1", SystemClock(), Limits())
        assert set(re.findall(r"\w+", refused.value.message)) >= {name for name, _ in rows}


def _quoted(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_fault_points_named_in_the_docs_exist():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"[`\"]((?:store|commit)\.[a-z_]+)[`\"]", text))
    assert named - POINTS.keys() - {"store.write"} == set()
