"""T44: documents that are bombs are refused, and said to be."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.call_counting import calls_of
from tests.unit.flow.documents import CHECKOUT, faults

from stepwell.errors import InvalidInput, LimitExceeded, ValidationFailed
from stepwell.flow import Definition, Range, check, parse, render
from stepwell.flow.definition.document_writer import decode_definition, encode_definition
from stepwell.flow.definition.node import CancelScopeNode, Case, Choice, Each, Loop, Parallel, Sequence, StepNode

drawn = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def test_a_bomb_of_aliases_is_refused_before_it_goes_off() -> None:
    """T44."""
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    found: list[str] = []
    assert calls_of(lambda: found.extend(faults("\n".join(lines)))) < 100_000
    assert "more than 500,000 parts" in found[0]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "- " * 100_000, "? " * 100_000, "{a: " * 100_000, '{"a":' * 100_000, "[{" * 1_000_000]
)
def test_deep_documents_are_refused_without_recursion(text: str) -> None:
    """T44."""
    found: list[str] = []
    assert calls_of(lambda: found.extend(faults(text))) < 50_000, "and not with every level looked at"
    assert len(found) == 1


def test_a_document_over_the_limit_is_refused_before_it_is_read() -> None:
    """T44."""
    with pytest.raises(LimitExceeded, match="4,000,000"):
        parse("x" * 4_000_001)


def test_a_text_of_nothing_but_faults_is_given_up_after_a_thousand() -> None:
    """T44: 20,000 unknown keys."""
    assert len(faults("".join(f"key{number}: 1\n" for number in range(20_000)))) == 1000


def test_a_number_of_a_million_digits_is_refused_by_its_length() -> None:
    """T44: to turn it into a number takes time that grows with its square, and Python raises an error of its own."""
    for form in ("yaml", "json"):
        assert "more than 64 bits" in " ".join(faults('{"name": ' + "9" * 1_000_000 + "}", format=form))


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"flow\.yaml is not UTF-8 text"):
        parse(b"\xff\xfe", source="flow.yaml")
    with pytest.raises(InvalidInput, match="is not UTF-8 text"):
        parse("name: \ud800")
    assert faults("name: a\0b")[0].startswith("1:1 the text cannot be read as YAML: unacceptable character")
    assert parse(b"\xef\xbb\xbfname: a\ndo: x") == parse("name: a\ndo: x")


def nested(kind: str, depth: int) -> Definition:
    node = StepNode(uses="x")
    for _ in range(depth):
        match kind:
            case "choice":
                node = Choice(cases=(Case(when="trigger.input.a", do=node),))
            case "sequence":
                node = Sequence(nodes=(node,))
            case "parallel":
                node = Parallel(branches={"a": node})
            case _:
                node = CancelScopeNode(do=node)
    return Definition(name="deep", root=node)


@pytest.mark.parametrize("kind", ["choice", "sequence", "parallel", "scope"])
def test_a_hundred_levels_of_nodes_are_read_and_a_thousand_are_refused(kind: str) -> None:
    deep = nested(kind, 120)
    assert check(deep) == ()
    for form in ("yaml", "json"):
        assert parse(render(deep, form), format=form) == deep
    assert decode_definition(encode_definition(deep)) == deep
    for depth in (128, 1000):
        assert "nested more than 128 deep" in check(nested(kind, depth))[0].message
    assert "nested more than" in faults(render(nested(kind, 140)))[0]


def test_ten_thousand_steps_are_read() -> None:
    definition = of_steps(10_000)
    assert parse(render(definition)) == definition


def test_the_work_of_reading_grows_with_the_number_of_steps_and_no_faster() -> None:
    texts = [render(of_steps(number)) for number in (1, 100, 1_000)]
    once, few, many = (calls_of(lambda text=text: parse(text)) for text in texts)
    assert once < few < many < 11 * few


def of_steps(number: int) -> Definition:
    steps = (StepNode(uses="work", args={"n": each, "x": "{{ trigger.input.x }}"}) for each in range(number))
    return Definition(name="long", root=Sequence(nodes=tuple(steps)))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_document_gives_a_definition_or_a_typed_error(data: st.DataObject) -> None:
    """No other error, whatever the text."""
    form = data.draw(st.sampled_from(["yaml", "json"]))
    text = render(parse(CHECKOUT), form)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        junk = data.draw(
            st.text(max_size=4) | st.sampled_from(["{{", "}}", "- ", ": ", "\t", "&a", "*a", "null", "[", "{", '"', "\n"])
        )
        text = text[:start] + junk + text[start + data.draw(st.integers(0, 8)) :]
    with contextlib.suppress(ValidationFailed):
        definition = parse(text, format=form)
        assert parse(render(definition)) == definition


def test_reading_and_rendering_leave_yaml_out_until_it_is_needed() -> None:
    code = (
        "import sys; from stepwell.flow import *; d = define('a', 'x'); render(d); parse(render(d, 'json'))\n"
        "print('yaml' in sys.modules); parse(render(d)); print('yaml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_settings_of_loops_and_instances_are_written_by_their_names() -> None:
    root = Each(
        do=Loop(do=StepNode(uses="x"), range=Range(start=3, stop=0, step=-1), delay_seconds=0.5),
        items="{{ trigger.input }}",
        join="none",
        concurrency=8,
    )
    assert render(Definition(name="a", root=root)).splitlines() == [
        "name: a",
        "do:",
        "  each:",
        "    loop:",
        "      step: x",
        "    range:",
        "      start: 3",
        "      stop: 0",
        "      step: -1",
        "    delay_seconds: 0.5",
        '  items: "{{ trigger.input }}"',
        "  concurrency: 8",
        "  join: none",
    ]


def test_a_text_of_several_lines_is_written_as_a_block() -> None:
    definition = parse("name: a\ndo:\n  script: |\n    local x = 1\n\n    return x\n")
    assert definition.root.code == "local x = 1\n\nreturn x\n"
    assert "  script: |\n    local x = 1\n\n    return x\n" in render(definition)


ODD_LINES = ["a \nb", "a\n b", " a\nb", "a\tb\nc", "\ta\nb", "a\n\n", "a\n\n\nb", "\na\nb", "a\r\nb", "a\rb", "a\x07\nb"]
ODD_LINES += ["a\u2028b\nc", "a\x85b\nc"]
ODD_LINES += [
    "# a\nb",
    "- a\n- b",
    "a\n---\nb",
    "a\n...\nb",
    "\ufeffa\nb",
    "a: b\nc: d\n",
    "\x7f\n\x9f",
    "\ue000\U0010ffff\nx",
    "\n",
    "a\n \nb",
]


@pytest.mark.parametrize("text", ODD_LINES)
def test_texts_with_odd_lines_are_read_back_as_they_were(text: str) -> None:
    definition = Definition(name="a", root=StepNode(uses="x", args={"k": text, text: [text, {text: text}]}, description=text))
    assert parse(render(definition)) == definition
