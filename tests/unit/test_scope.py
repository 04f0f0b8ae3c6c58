"""Scopes: an encoding in which no two addresses ever meet."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sample import keys
from tests.unit.test_ids import ODD_BUT_SAFE

from stepwell.errors import InvalidInput, LimitExceeded, StepwellError
from stepwell.model.scope import DEFAULT_WORKSPACE, Scope, internal_path

nasty = st.sampled_from(ODD_BUT_SAFE) | keys
scopes = st.one_of(
    st.just(Scope.globals()),
    st.builds(Scope.of_workspace, nasty),
    st.builds(Scope.of_workflow, nasty, nasty),
    st.builds(Scope.of_step, nasty, nasty, nasty),
    st.builds(Scope.of_conversation, nasty, nasty),
    st.builds(Scope.of_user, nasty, nasty),
    st.builds(Scope.custom, nasty, nasty),
)


@given(scopes)
@settings(max_examples=300, deadline=None)
def test_path_leads_back_to_the_scope(scope: Scope) -> None:
    """T46."""
    assert Scope.parse(scope.path) == scope


@given(scopes, scopes)
@settings(max_examples=300, deadline=None)
def test_two_scopes_have_one_path_only_if_they_are_one(a: Scope, b: Scope) -> None:
    """T46."""
    assert (a.path == b.path) == (a == b)


@given(st.text("ab/:%2F", min_size=1, max_size=6), st.text("ab/:%2F", min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_separators_inside_names_never_make_another_scope(a: str, b: str) -> None:
    """T46: the few characters that a careless encoding would trip over."""
    near = [
        Scope.of_step(a, b),
        Scope.of_workflow(f"{a}/{b}"),
        Scope.of_workflow(a, b),
        Scope.custom(f"{a}:{b}"),
        Scope.of_workspace(a),
    ]
    assert len({scope.path for scope in near}) == len(set(near))


@given(scopes)
@settings(max_examples=200, deadline=None)
def test_path_has_only_safe_characters(scope: Scope) -> None:
    assert scope.path.isascii()
    assert not set(scope.path) & set("\0\n '\"*[]{}:;")
    assert scope.path.count("/") == 1 + len(scope.names)


def test_key_of_a_workflow_never_meets_the_scope_of_a_step() -> None:
    """T46: `workflow:{a}` with the key `step:b:x` is not step b of workflow a with the key x."""
    addresses = {
        (Scope.of_workflow("a").path, "step:b:x"),
        (Scope.of_step("a", "b").path, "x"),
        (Scope.of_workflow("a:step:b").path, "x"),
        (Scope.of_workflow("a/b").path, "x"),
        (Scope.custom("workflow:a").path, "step:b:x"),
    }
    assert len(addresses) == 5


def test_no_scope_is_a_prefix_that_shows_another() -> None:
    """T47: `1` and `10`, `al` and `alice`, a custom scope with the name of another kind."""
    assert Scope.of_workflow("1").path != Scope.of_workflow("10").path
    assert Scope.custom("workflow/default/w1").path != Scope.of_workflow("w1").path
    assert Scope.of_workspace("default").path != Scope.of_workflow("default").path


def test_the_global_scope_is_in_no_workspace() -> None:
    assert Scope.globals().workspace == ""
    assert Scope.globals() != Scope.of_workspace("global")
    assert Scope.of_workflow("w").workspace == DEFAULT_WORKSPACE


@pytest.mark.parametrize("name", ["", "a\0", "\ud800", None, 5])
def test_bad_names_are_refused(name: str) -> None:
    """T46."""
    for make in (Scope.of_workspace, Scope.of_workflow, Scope.custom, Scope.of_conversation, lambda n: Scope.of_step("w", n)):
        with pytest.raises(InvalidInput):
            make(name)
    with pytest.raises(InvalidInput):
        Scope.of_workflow("w", name)


def test_long_names_are_refused() -> None:
    with pytest.raises(LimitExceeded):
        Scope.custom("x" * 513)


@pytest.mark.parametrize(
    ("kind", "names"), [("planet", ()), ("workflow", ()), ("step", ("a",)), ("global", ("a",)), ("custom", ("a", "b"))]
)
def test_kinds_have_their_number_of_names(kind: str, names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"there is no scope|is no kind of scope|the global scope"):
        Scope(kind, "acme", names)


@pytest.mark.parametrize(
    "arguments",
    [
        ("global", "acme"),
        ("global", None),
        ("workspace", 5),
        (["workspace"], "acme"),
        (None, "acme"),
        ("workflow", "acme", "a"),
        ("workflow", "acme", ["a"]),
        ("workflow", "acme", None),
        ("workflow", "acme", (5,)),
    ],
)
def test_a_scope_without_a_meaning_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput):
        Scope(*arguments)


INTERNAL = [
    internal_path("definition", "default"),
    internal_path("schedule", "default"),
    internal_path("worker", "default"),
    internal_path("inbox", "default", "run"),
    internal_path("engine_choice", "default"),
    internal_path("engine_payload", "default", "run"),
    internal_path("conversation_record", "default", "c"),
    internal_path("conversation_index", "default", "ada"),
]


@pytest.mark.parametrize("path", INTERNAL)
def test_no_scope_is_one_of_stepwells_own_records(path: str) -> None:
    kind, workspace, *names = path.split("/")
    with pytest.raises(InvalidInput, match="is no kind of scope"):
        Scope.parse(path)
    with pytest.raises(InvalidInput, match="is no kind of scope"):
        Scope(kind, workspace, tuple(names))


NO_PATHS = [
    "",
    "workflow",
    "workflow/a",
    "workflow/a/b/c",
    "x/y",
    "step/a/b",
    "workflow//b",
    "custom/a/%00",
    "global/x",
    "global//",
]
NO_ESCAPES = ["custom/a/%ZZ", "custom/a/%", "custom/a/%F", "custom/a/%FF", "custom/%GG/b"]


@pytest.mark.parametrize("path", [*NO_PATHS, *NO_ESCAPES, None, 5, b"global"])
def test_text_that_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(StepwellError):
        Scope.parse(path)


def test_scope_of_a_workspace_asked_by_the_name_of_a_field_is_refused_with_the_right_call() -> None:
    for arguments in (("acme",), ()):
        with pytest.raises(InvalidInput, match=r"Scope\.of_workspace\("):
            Scope.workspace(*arguments)  # type: ignore[operator]
    assert Scope.of_workspace("acme").workspace == "acme"
