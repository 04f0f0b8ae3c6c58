"""Templates: an exact one keeps its type, an embedded one gives text, and a fault names the path."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.flow.definitions import values as source_values
from tests.unit.sample import values

from stepwell.flow import EvaluationFailed, MalformedExpression, MissingPath, compile_template

FACTS = {
    "trigger": {"input": {"n": 3, "who": "Ann", "list": [1, {"a": None}], "my-key": 1.0}},
    "variables": {"x": True},
    "steps": {"pay now": {"output": 7}},
}


def filled(source: object) -> object:
    return compile_template(source).fill(FACTS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ trigger.input.n }}", 3),
        ("{{trigger.input.list}}", [1, {"a": None}]),
        ("{{ trigger.input.list[1].a }}", None),
        ("{{ trigger.input.my-key }}", 1.0),
        ("{{ steps.'pay now'.output }}", 7),
        ("{{ variables.x }}", True),
        ("{{ trigger.input.gone ?? 'none' }}", "none"),
        ("{{ trigger.input.gone | default(5) }}", 5),
        ("{{ trigger.input.n * 2 }}", 6),
        # inside a longer text, everything becomes text
        (" {{ trigger.input.n }}", " 3"),
        ("{{ trigger.input.n }}{{ trigger.input.n }}", "33"),
        ("Hi {{ trigger.input.who }}, {{ trigger.input.list }} {{ variables.x }}", 'Hi Ann, [1,{"a":null}] true'),
        ("{{ '{{' }} and {{ '}}' }} stay", "{{ and }} stay"),
        ('{{ "a}}b" }}', "a}}b"),
        # no template
        ("plain", "plain"),
        ("}} alone {", "}} alone {"),
        (12, 12),
        (
            {"a": ["{{ trigger.input.n }}", {"b": "n={{ trigger.input.n }}"}], "{{ key }}": 1},
            {"a": [3, {"b": "n=3"}], "{{ key }}": 1},
        ),
    ],
)
def test_templates_are_filled(source: object, expected: object) -> None:
    found = filled(source)
    assert found == expected
    assert type(found) is type(expected)


@given(values)
def test_an_exact_template_gives_the_value_itself(value: object) -> None:
    found = compile_template("{{ variables.v }}").fill({"variables": {"v": value}})
    assert found == value
    assert type(found) is type(value)


@given(source_values)
def test_what_is_constant_comes_out_as_a_copy(source: object) -> None:
    template = compile_template(source)
    if template.is_constant:
        found = template.fill({})
        assert found == source
        assert found is not source or not isinstance(source, list | dict)


@pytest.mark.parametrize(
    ("source", "position", "reason"),
    [
        ("{{ trigger.input", 0, "the template that begins here has no closing '}}'"),
        ("ab {{ }}", 5, "the template is empty"),
        ("ab {{ foo }}", 6, "unknown name 'foo'"),
        ("{{ 1 + }}", 7, "the expression ends where a value should stand"),
        ("{{ 'open }}", 0, "the template that begins here has no closing '}}'"),
    ],
)
def test_a_malformed_template_is_refused_with_its_place(source: str, position: int, reason: str) -> None:
    for whole in (source, [source], {"a": {"b": source}}):
        with pytest.raises(MalformedExpression) as caught:
            compile_template(whole)
        assert caught.value.position == position
        assert caught.value.reason.startswith(reason)


def test_a_missing_path_is_named_with_what_is_there_instead() -> None:
    with pytest.raises(MissingPath, match=r"trigger\.input\.whoo leads to nothing: no key 'whoo' .* did you mean 'who'\?"):
        filled({"to": "Dear {{ trigger.input.whoo }}"})


def test_references_are_known_without_running() -> None:
    template = compile_template({"a": "{{ steps.x.output }} {{ variables.y ?? 1 }}", "b": ["{{ trigger.input }}", "plain"]})
    assert sorted((str(reference), reference.is_guarded) for reference in template.references) == [
        ("steps.x.output", False),
        ("trigger.input", False),
        ("variables.y", True),
    ]


def test_a_text_that_grows_too_long_is_refused() -> None:
    facts = {"variables": {"long": "x" * 100_000}}
    with pytest.raises(EvaluationFailed, match="at most 262,144 are allowed"):
        compile_template("{{ variables.long }}" * 3).fill(facts)


def test_a_key_of_an_object_is_never_a_template() -> None:
    assert filled({"{{ trigger.input.n }}": 1}) == {"{{ trigger.input.n }}": 1}


@given(st.text(max_size=30).filter(lambda text: "{{" not in text))
def test_text_without_double_braces_stands_for_itself(text: str) -> None:
    assert filled(text) == text


@given(st.lists(st.sampled_from(["{{", "}}", "{", "}", "(", ")", "'", " ", ".", "+", "not", "variables.x", "1"])).map("".join))
@example("{{")
@example("{{}}")
@example("{{ 1 + }}")
def test_text_with_braces_is_a_template_or_malformed(text: str) -> None:
    try:
        compile_template(text)
        is_malformed = False
    except MalformedExpression as error:
        is_malformed = True
        assert 0 <= error.position <= len(text)  # noqa: PT017 - where it is wrong differs from text to text
    assert not is_malformed or "{{" in text


@pytest.mark.parametrize("text", ["{{", "{{}}", "{{ 1 + }}", "a {{ variables.x", "{{ ( }}"])
def test_malformed_template_is_refused(text: str) -> None:
    with pytest.raises(MalformedExpression):
        compile_template(text)
