"""Expressions: what they mean, and that every fault says where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.unit.flow.expressions import FACTS, value

from stepwell.errors import InvalidDefinition, InvalidInput
from stepwell.flow import EvaluationFailed, MalformedExpression, MissingPath, compile_expression
from stepwell.flow.language.functions import FUNCTIONS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # paths
        ("trigger.input.total", 120),
        ("variables.a-b", 2),
        ("variables.'odd key'", 1),
        ('variables."odd key"', 1),
        ("variables['odd key']", 1),
        ("variables.0", "zero"),
        ("variables.nested[0][1]", 2),
        ("variables.nested.1.0", 3),
        ("variables.nested[-1]", [3]),
        ("steps.charge.output.lines[1].sku", "b"),
        ("steps.charge.output.lines[index - 3].sku", "b"),
        ("steps.charge.output.lines[len(trigger.input.tags) - 1].n", 2),
        ("index", 4),
        # literals
        ("'it''s'", "it's"),
        (r"'a\'b\n\u00e9'", "a'b\né"),
        ('"a""b"', 'a"b'),
        ("[1, 2.5, 'x', true, null]", [1, 2.5, "x", True, None]),
        ("[]", []),
        ("1e3", 1000.0),
        ("TRUE", True),
        ("None", None),
        # arithmetic
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 / 2", 3.5),
        ("6 / 2", 3.0),
        ("7 % 3", 1),
        ("-variables.count + 1", -2),
        ("10 - 2 - 3", 5),
        ("variables.count -1", 2),
        ("'a' + 'b'", "ab"),
        ("[1] + [2]", [1, 2]),
        # comparisons, in both spellings
        ("trigger.input.total > 100", True),
        ("trigger.input.total >= 120 and variables.count < 4", True),
        ("trigger.input.country = 'CH' AND NOT variables.count <> 3", True),
        ("trigger.input.country == 'LI' || variables.count != 4 && true", True),
        ("!trigger.input.express", False),
        ("not trigger.input.express or true", True),
        ("1 == 1.0", True),
        ("1 == true", False),
        ("'1' == 1", False),
        ("null == false", False),
        ("[1, [2]] == [1.0, [2]]", True),
        ("[1] == [true]", False),
        ("trigger.input == variables", False),
        ("'a' < 'b'", True),
        ("'vip' in trigger.input.tags", True),
        ("'vip' NOT IN ('a', 'b')", True),
        ("variables.count in (1, 2, 3)", True),
        ("'a' in ('a')", True),
        ("'a' in (trigger.input.tags)", False),
        ("1 in [true]", False),
        ("trigger.input.tags contains 'new'", True),
        ("trigger.input.country not contains 'x'", True),
        ("'H' in trigger.input.country", True),
        ("'total' in trigger.input", True),
        # missing and null
        ("variables.gone ?? 5", 5),
        ("variables.gone.deeper ?? variables.gone ?? 'x'", "x"),
        ("trigger.input.note ?? 'none'", "none"),
        ("variables.gone ?? 5 > 3", True),
        ("1 + 1 ?? 5", 2),
        ("variables.gone | default(7)", 7),
        ("variables.gone | default('Bob') | upper", "BOB"),
        ("default(variables.gone, 1)", 1),
        ("coalesce(variables.gone, trigger.input.note, variables.count)", 3),
        ("exists(variables.count)", True),
        ("exists(variables.gone)", False),
        ("variables.gone exists", False),
        ("exists(trigger.input.note)", True),
        ("trigger.input.note is null", True),
        ("variables.gone IS NULL", True),
        ("variables.count is not null", True),
        ("exists(variables.gone) and variables.gone > 3", False),
        ("state.global.x ?? 1", 1),
    ],
)
def test_an_expression_means_what_it_says(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("len('abc') + len([1]) + len(trigger)", 5),
        ("lower('ÀB')", "àb"),
        ("upper('a')", "A"),
        ("trim('  a ')", "a"),
        ("starts_with('abc', 'ab')", True),
        ("ends_with('abc', 'ab')", False),
        ("contains([1, 2], 2)", True),
        ("replace('a-b-c', '-', '+')", "a+b+c"),
        ("split('a,b', ',')", ["a", "b"]),
        ("split(' a  b ')", ["a", "b"]),
        ("join(['a', 1, true, null], '-')", "a-1-true-null"),
        ("[1, 2] | join(', ')", "1, 2"),
        ("min([3, 1, 2]) + min(5, 4)", 5),
        ("max('a', 'b')", "b"),
        ("sum([1, 2.5])", 3.5),
        ("sum([])", 0),
        ("avg([1, 2])", 1.5),
        ("round(2.567, 1)", 2.6),
        ("round(2.5)", 2),
        ("floor(-1.5)", -2),
        ("ceil(1.2)", 2),
        ("abs(-3)", 3),
        ("keys(steps.charge)", ["output", "status"]),
        ("first(values(trigger)).total", 120),
        ("first([1, 2])", 1),
        ("last('abc')", "c"),
        ("slice([1, 2, 3], 1)", [2, 3]),
        ("slice('abcdef', 1, -1)", "bcde"),
        ("reverse([1, 2])", [2, 1]),
        ("sort([3, 1.5, 2])", [1.5, 2, 3]),
        ("unique([1, 1, 1.0, 'a', 'a'])", [1, 1.0, "a"]),
        ("sum(pluck(steps.charge.output.lines, 'n'))", 3),
        ("all([true, false])", False),
        ("any([true, false])", True),
        ("number(' 12.5 ') + number(1)", 13.5),
        ("text(12) + text('a') + text([1, null])", "12a[1,null]"),
        (
            "join([type(null), type(true), type(1), type('a'), type([]), type(trigger)], ' ')",
            "null boolean number text list object",
        ),
        ("is_null(null)", True),
    ],
)
def test_functions_do_what_they_say(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_every_function_is_tried_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in FUNCTIONS if f"{name}(" not in source and f"| {name}" not in source] == []


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "the expression ends where a value should stand"),
        ("1 +", 3, "the expression ends where a value should stand"),
        ("1 2", 2, "expected an operator or the end here, not '2'"),
        ("(1", 2, "expected ')' here"),
        ("[1, 2", 5, "expected ']' here"),
        ("'abc", 0, "the text that begins here has no closing quote"),
        (r"'a\x'", 2, "there is no such escape"),
        (r"'\ud800'", 1, "there is no such escape"),
        ("1 ~ 2", 2, "'~' has no meaning here"),
        ("2 ** 3", 3, "expected a value here, not '*'"),
        ("1 < 2 < 3", 6, "comparisons cannot be chained; join them with 'and'"),
        ("total > 3", 0, "unknown name 'total'; a path begins with trigger, variables"),
        ("variable.x", 0, "unknown name 'variable'"),
        ("index-1", 0, "unknown name 'index-1'"),
        ("lenn('a')", 0, "there is no function 'lenn'; did you mean 'len'?"),
        ("len()", 0, "len takes 1 argument, not 0"),
        ("min()", 0, "min takes at least 1 arguments, not 0"),
        ("round(1, 2, 3)", 0, "round takes 1 to 2 arguments, not 3"),
        ("variables.", 10, "expected a key after '.'"),
        ("variables[1.5]", 10, "an index is a whole number or a text"),
        ("variables.x | 3", 14, "expected the name of a function after '|'"),
        ("1 not 2", 6, "expected 'in' or 'contains' after 'not'"),
        ("1 is 2", 5, "expected 'null' or 'not null' after 'is'"),
        ("9223372036854775808", 0, "the number needs more than 64 bits"),
        ("1e999", 0, "the number is too large"),
        ("__import__('os')", 0, "there is no function '__import__'"),
        ("steps.x.__class__()", 17, "expected an operator or the end here, not '('"),
        ("lambda: 1", 6, "':' has no meaning here"),
        ("trigger := 1", 8, "':' has no meaning here"),
    ],
)
def test_what_is_written_wrong_is_refused_with_its_place(text: str, position: int, reason: str) -> None:
    with pytest.raises(MalformedExpression) as caught:
        compile_expression(text)
    assert isinstance(caught.value, InvalidDefinition)
    assert caught.value.position == position
    assert caught.value.reason.startswith(reason)
    assert caught.value.message.endswith(f"    {text}\n    {' ' * position}^")


@pytest.mark.parametrize("ask", ["first", "last", "min", "max", "avg"])
def test_what_an_empty_list_does_not_have_is_missing(ask: str) -> None:
    assert value(f"{ask}([]) ?? 1") == 1
    assert value(f"[] | {ask} | default(2)") == 2
    assert value(f"coalesce({ask}([]), {ask}([3]))") == 3
    assert value(f"exists({ask}([]))") is False
    assert value(f"{ask}([]) is null") is True
    with pytest.raises(MissingPath):
        value(f"{ask}([])")
    with pytest.raises(EvaluationFailed, match="must be a list"):
        value(f"{ask}(5) ?? 1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("'a' + 1", "cannot add a number to a text; use text(...) to make a text"),
        ("[1] + 1", "cannot add a number to a list"),
        ("'a' - 1", "arithmetic needs numbers, not a text"),
        ("-'a'", "arithmetic needs numbers, not a text"),
        ("true + 1", "cannot add a number to a boolean"),
        ("1 < 'a'", "cannot order a number and a text"),
        ("[1] < [2]", "cannot order a list and a list"),
        ("true < false", "cannot order a boolean and a boolean"),
        ("1 and true", "'and' takes true or false, not a number; compare it with something"),
        ("not 'a'", "'not' takes true or false, not a text"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("9223372036854775807 + 1", "the result needs more than 64 bits"),
        ("9223372036854775807 * 9223372036854775807", "the result needs more than 64 bits"),
        ("1e308 * 10", "the result is too large"),
        ("sum([1e308, 1e308])", "the result is too large"),
        ("floor(1e300)", "the result needs more than 64 bits"),
        ("1 in 2", "only a text, a list or an object contains something, not a number"),
        ("1 in 'a'", "what a text may contain must be a text, not a number"),
        ("len(1)", "len takes a text, a list or an object, not a number"),
        ("first([])", "the list or text is empty"),
        ("min([])", "an empty list has no smallest and no largest item"),
        ("max([1, 'a'])", "cannot order a text and a number"),
        ("sort([1, 'a'])", "cannot order a number and a text"),
        ("number('abc')", "'abc' is not a number"),
        ("number('1_0')", "'1_0' is not a number"),
        ("split('a', '')", "the separator is empty"),
        ("replace('a', '', 'b')", "the text to replace is empty"),
        ("pluck([1], 'a')", "an item of the list is a number without the key 'a'"),
        ("round(1, 99)", "the number of digits must be from -15 to 15"),
        ("all([1])", "each item must be true or false, not a number"),
    ],
)
def test_what_has_no_result_says_why(text: str, reason: str) -> None:
    with pytest.raises(EvaluationFailed) as caught:
        value(text)
    assert isinstance(caught.value, InvalidInput)
    assert caught.value.reason.startswith(reason)
    assert "^" in caught.value.message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "variables.cuont",
            "variables.cuont leads to nothing: no key 'cuont' in an object with the keys 0, a-b, count",
        ),
        ("variables.cuont", "did you mean 'count'?"),
        ("variables.count.x", "variables.count.x leads to nothing: a number has no key 'x'"),
        ("trigger.input.note.x", "null has no key 'x'"),
        ("variables.nested[7]", "variables.nested[7] leads to nothing: no index 7 in a list of 2 items"),
        ("variables.nested.x", "a list has no key 'x'"),
        ("variables[0]", "an object has keys, not indexes"),
        ("variables[true == true]", "a boolean is neither a key nor an index"),
        (
            "trigger.inptu.total",
            "trigger.inptu.total, at 'inptu' leads to nothing: no key 'inptu' in an object with the keys input",
        ),
        ("item.x", "there is no item here"),
    ],
)
def test_a_missing_path_is_named_with_what_is_there_instead(text: str, reason: str) -> None:
    with pytest.raises(MissingPath) as caught:
        value(text)
    assert reason in caught.value.reason


def test_a_condition_is_true_or_false_and_nothing_that_looks_like_it() -> None:
    assert compile_expression("index > 3").holds(FACTS) is True
    for text in ("index", "'true'", "null", "[]"):
        with pytest.raises(EvaluationFailed, match="a condition must give true or false"):
            compile_expression(text).holds(FACTS)


def test_and_and_or_stop_when_they_are_decided() -> None:
    assert value("false and variables.gone") is False
    assert value("true or 1 / 0 > 1") is True


def test_references_are_known_without_running() -> None:
    found = compile_expression(
        "steps.a.output.x[0] > 1 and exists(steps.b) and steps.b.output.y ?? variables[index] = trigger.input['k']"
    )
    assert [(str(reference), reference.is_guarded) for reference in found.references] == [
        ("steps.a.output.x[0]", False),
        ("steps.b", True),
        ("steps.b.output.y", True),
        ("variables[...]", False),
        ("index", False),
        ("trigger.input.k", False),
    ]
    assert found.references[0].position == 0
    assert compile_expression("1 + 1").is_constant


class Lazy(Mapping[str, object]):
    """A mapping that reads each key when it is asked for."""

    def __init__(self, **content: object) -> None:
        self.content, self.read = content, list[str]()

    def __getitem__(self, key: str) -> object:
        self.read.append(key)
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)


def test_facts_may_read_lazily_and_only_what_is_asked_for_is_read() -> None:
    steps = Lazy(a={"output": 1}, b={"output": 2})
    assert value("steps.b.output", {"steps": steps}) == 2
    assert steps.read == ["b"]
    assert value("len(steps)", {"steps": steps}) == 2
    everything = value("steps", {"steps": steps})
    assert everything == {"a": {"output": 1}, "b": {"output": 2}}
    assert type(everything) is dict


def test_attributes_of_python_objects_are_out_of_reach() -> None:
    for text in ("variables.name.upper", "variables.__class__", "variables.name.__class__.__mro__", "trigger.keys"):
        with pytest.raises(MissingPath):
            value(text)
