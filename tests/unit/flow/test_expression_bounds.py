"""Expressions are bounded, whatever text they are made from."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.flow.expressions import value

from stepwell.flow import EvaluationFailed, MalformedExpression, compile_expression
from stepwell.flow.language import expression
from stepwell.flow.language.errors import BUDGET
from stepwell.flow.language.functions import FUNCTIONS
from stepwell.flow.language.parser import KEYWORDS, ROOTS


def test_a_long_or_deep_expression_is_refused() -> None:
    for text in (
        "1" * 20_000,
        "1 + " * 5000 + "1",
        "(" * 2000 + "1" + ")" * 2000,
        "not " * 1500 + "true",
        "-" * 1900 + "1",
        "[" * 1900,
    ):
        with pytest.raises(MalformedExpression, match=r"at most 10,000 are read|more than 2,000 words|64 deep|64 bits"):
            compile_expression(text)


def test_a_long_list_of_alternatives_is_not_deep() -> None:
    text = " or ".join(f"index == {number}" for number in range(300))
    assert value(text) is True


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The charges of evaluations, in order."""
    charges: list[int] = []

    class Recorded(expression._Run):
        def spend(self, units: int) -> None:
            charges.append(units)
            super().spend(units)

    monkeypatch.setattr(expression, "_Run", Recorded)
    return charges


@pytest.mark.parametrize(
    "text",
    [
        "replace(replace(variables.long, 'x', variables.long), 'x', variables.long)",
        "join(variables.many, variables.long)",
        "variables.long + variables.long",
        "len(" + " + ".join(["variables.many"] * 60) + ")",
        " + ".join(["sum(variables.many)"] * 60),
        " or ".join(["-1 in variables.many"] * 60),
        " or ".join(["variables.many == variables.other"] * 60),
        "variables.many | sort | unique | reverse | sort | unique | reverse | sort | unique | reverse | len",
    ],
)
def test_work_is_bounded_whatever_the_data(text: str, spent: list[int]) -> None:
    """It ends with the first charge that is too much, and all that was done before was within the budget."""
    many = list(range(100_000))
    facts = {"variables": {"long": "x" * 200_000, "many": many, "other": [*many[:-1], -1]}}
    with pytest.raises(EvaluationFailed, match=r"more than 1,000,000 items|at most 262,144 are allowed|over the limit"):
        value(text, facts)
    assert sum(spent[:-1]) <= BUDGET


words = st.sampled_from(
    [
        *ROOTS,
        *FUNCTIONS,
        *KEYWORDS,
        *"()[].,|+-*/%<>=!",
        "??",
        "==",
        "<>",
        "&&",
        "||",
        "1",
        "2.5",
        "'a'",
        '"',
        "'",
        "x-y",
        "{{",
        "0",
        "\\",
    ]
)


@given(st.lists(words, max_size=25), st.sampled_from(["", " "]))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_value_or_a_typed_error(parts: list[str], between: str) -> None:
    with contextlib.suppress(MalformedExpression, EvaluationFailed):
        value(between.join(parts))


numbers = st.integers(-9, 9).map(str)
sums = st.recursive(
    numbers,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "%"]), inner).map(" ".join) | inner.map("( {} )".format),
    max_leaves=8,
)
comparisons = st.tuples(sums, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), sums).map(" ".join)
decisions = st.recursive(
    comparisons,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join)
        | inner.map("not {}".format)
        | inner.map("( {} )".format)
    ),
    max_leaves=6,
)


@given(sums | decisions)
@settings(max_examples=200, deadline=None)
def test_precedence_is_that_of_python(text: str) -> None:
    try:
        expected = eval(text, {"__builtins__": {}})
    except ZeroDivisionError:
        with pytest.raises(EvaluationFailed, match="division by zero"):
            value(text)
    else:
        assert value(text) == expected


def test_the_same_text_is_compiled_once() -> None:
    assert compile_expression("index > 1") is compile_expression("index > 1")
