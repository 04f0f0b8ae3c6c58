"""Definitions as YAML and JSON: loss-free both ways, and every fault at once with its place."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.flow.definitions import definitions

from stepwell.errors import InvalidDefinition, InvalidInput, LimitExceeded, ValidationFailed
from stepwell.flow import Definition, Keep, Range, Retry, check, parse, render
from stepwell.flow.definition import DefinitionStatus
from stepwell.flow.node import Approval, Case, Choice, Each, Loop, Parallel, Scope, Sequence, Step, Wait
from stepwell.flow.stored import decode_definition, encode_definition

drawn = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@drawn
@given(definitions())
def test_a_rendered_or_stored_definition_is_read_back_as_it_was(definition: Definition) -> None:
    assert check(definition) == ()
    assert decode_definition(encode_definition(definition)) == definition
    for form in ("yaml", "json"):
        back = parse(render(definition, form), format=form)
        assert back == definition
        assert encode_definition(back) == encode_definition(definition), "1 and 1.0 are equal, and still not the same"


def test_a_definition_of_newer_code_is_refused_in_words() -> None:
    with pytest.raises(InvalidDefinition, match="written by a newer Stepwell"):
        decode_definition(b'{"name":"a","do":{"type":"teleport"}}')


CHECKOUT = """
name: checkout
version: 2
variables: {country: no}
do:
  - step: reserve
    with: {order: "{{ trigger.input }}"}
    compensate: release
  - parallel:
      charge: {step: charge, retry: {attempts: 5, first_seconds: 500ms}}
      pack: pack
    join: 1
  - choice:
      - when: steps.parallel.output.charge.total > 100
        do: {approval: Large order, timeout_seconds: 3d}
    otherwise: ship
  - loop:
      - poll
      - wait: 2h
    until: steps.poll.output.done
    max_iterations: 20
    collect: {last: 1}
"""


def test_a_document_says_what_the_nodes_are() -> None:
    definition = parse(CHECKOUT)
    assert definition == Definition(
        name="checkout",
        version=2,
        variables={"country": "no"},
        root=Sequence(
            nodes=(
                Step(uses="reserve", args={"order": "{{ trigger.input }}"}, compensate=Step(uses="release")),
                Parallel(
                    branches={"charge": Step(uses="charge", retry=Retry(attempts=5, first_seconds=0.5)), "pack": Step(uses="pack")},
                    join=1,
                ),
                Choice(
                    cases=(
                        Case(
                            when="steps.parallel.output.charge.total > 100",
                            do=Approval(title="Large order", timeout_seconds=259_200.0),
                        ),
                    ),
                    otherwise=Step(uses="ship"),
                ),
                Loop(
                    do=Sequence(nodes=(Step(uses="poll"), Wait(time="2h"))),
                    until="steps.poll.output.done",
                    max_iterations=20,
                    collect=Keep(last=1),
                ),
            )
        ),
    )
    assert definition.status is DefinitionStatus.ACTIVE


def test_json_of_a_definition_has_the_same_shape() -> None:
    text = render(parse(CHECKOUT), "json")
    assert '"step": "reserve"' in text
    assert parse(text) == parse(CHECKOUT)
    assert parse(text.encode(), source="checkout.json") == parse(CHECKOUT)


def faults(text: str, **options: object) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        parse(text, source="flow.yaml", **options)
    assert all(problem.code == "SW-105" for problem in caught.value.errors)
    return [f"{problem.where.removeprefix('flow.yaml:')} {problem.message}" for problem in caught.value.errors]


BROKEN = """\
name: checkout
versoin: 2
variables: {paid: no, paid: yes, 5: 1}
retry: {attempts: 0, jitter: 3}
do:
  - stepp: reserve
  - step: a
    log: b
  - step: q
    with: {x: "{{ foo }}", y: ["{{ steps.zz.output }}"]}
    timeout_seconds: 3x
    retry: {attempts: many}
  - loop: {step: poll}
    until: steps.poll.output.done
  - parallel: {a: a, b: b}
    join: 3
    optional: [c]
  - graph: {a: x, b: y, c: z}
    edges: [{from: a, to: b}, {from: b, to: a}, {from: b, to: q}]
  - choice:
      - {when: 1 > 2, do: a}
      - {when: 1 +, do: a}
  - wait: 5 parsecs
  - {step: a, name: dup}
  - {step: a, name: dup}
"""


def test_all_faults_come_at_once_with_their_places_in_the_order_of_the_document() -> None:
    found = [line.split(";")[0].split("\n")[0] for line in faults(BROKEN)]
    assert found == [
        "2:1 unknown key 'versoin'",
        "3:23 the key 'paid' stands twice",
        "3:34 a key must be a text, not 5",
        "4:8 Retry(attempts=...) must be a whole number from 1 to 1,000,000, not 0",
        "4:8 Retry(jitter=...) must be a number from 0 to 1, not 3.0",
        "6:5 what kind of node is this? One of these keys must stand here: step, subworkflow, script, sequence, parallel, choice, "
        "loop, each, graph, scope, wait, signal, deferred, approval, set_variables, map_data, log, throw, validate, http_request, "
        "cancel_scope",
        "8:5 a node is of one kind, but 'step' and 'log' both stand here",
        "10:19 unknown name 'foo'",
        "10:36 there is no node 'zz'",
        "11:22 a span must be seconds or a text such as '90s', '1h30m' or '3d', not '3x'",
        "12:23 expected a whole number, not the text 'many'",
        "14:12 the loop has no bound: give it max_iterations",
        "16:11 it waits for 3 of 2 branches, which can never be",
        "17:16 there is no branch 'c'",
        "18:25 no arrow leads to 'c' or away from it",
        "19:12 the arrows go round in a circle: a -> b -> a",
        "19:63 there is no node 'q' in the graph",
        "21:16 this case can never be chosen: its condition is always false",
        "22:19 the expression ends where a value should stand",
        "23:11 expected seconds, a span such as '2h', or a timestamp with a zone such as '2027-01-01T09:00:00Z', not the text "
        "'5 parsecs'",
        "25:21 the name 'dup' is taken by another node, at do.sequence[8]",
    ]


def test_a_fault_in_an_expression_has_a_caret_under_it() -> None:
    assert faults('name: a\ndo:\n  loop: x\n  until: "index >"\n  max_iterations: 3') == [
        "4:18 the expression ends where a value should stand\n    index >\n           ^"
    ]


def test_a_name_that_a_broken_node_may_have_is_not_called_unknown() -> None:
    text = "name: a\ndo:\n  - {stepp: charge}\n  - {step: b, with: '{{ steps.charge.output }}'}\n"
    text += "  - {step: c, with: '{{ steps.d.output }}'}"
    assert [line[:25] for line in faults(text)] == ["3:5 what kind of node is ", "5:25 there is no node 'd'"[:25]]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "1:1 the document is empty"),
        ("# nothing", "1:1 the document is empty"),
        ("- a", "1:1 expected a mapping with name, do, not a list"),
        ("name: a", "1:1 the key 'do' is missing"),
        ("name: a\ndo: x\n---\nname: b", "3:1 a second document begins here; one file holds one definition"),
        ("name: a\ndo:\n\t- x", "3:1 a tab stands where YAML allows only spaces; indent with spaces"),
        ("name: a\ndo: !!python/object:os.system x", "2:5 the tag tag:yaml.org,2002:python/object:os.system is refused"),
        ("name: !!str a\ndo: x", "1:7 the tag tag:yaml.org,2002:str is refused"),
        ("name: a\ndo: *b", "2:5 the alias *b stands for nothing that ended before it"),
        ("name: a\ndo: &b [*b]", "2:9 the alias *b stands for nothing that ended before it"),
        ("name: a\ndo: {step: x, <<: {name: q}}", "2:15 merge keys (<<) are refused"),
        ("name: a\ndo: x\nversion: 0123", "3:10 0123 is read as different numbers by different readers"),
        ("name: a\ndo: x\ntimeout_seconds: .inf", "3:18 .inf is not a number that JSON has"),
        ("name: a\ndo: x\noutput: 99999999999999999999", "3:9 the number needs more than 64 bits"),
        ("name: a\ndo: x\nversion: 1.0", "3:10 expected a whole number of at least 1, not 1.0"),
        ("name: a\ndo: x\nversion: true", "3:10 expected a whole number of at least 1, not true"),
        ("name: a\ndo: x\nversion: 0", "3:10 expected a whole number of at least 1, not 0"),
        ("name: yes\ndo: x\nstatus: active", "3:9 expected one of DRAFT, ACTIVE, PAUSED, not the text 'active'"),
        ("name: [a]\ndo: x", "1:7 expected a text, not a list"),
        ("name: a\ndo: 5", "2:5 expected a node: a mapping, the name of a step, or a list of nodes, not 5"),
        ("name: a\ndo: {step: x, with: {a: 1, a: 2}}", "2:28 the key 'a' stands twice; first in line 2"),
        ("name: a\ndo: {parallel: {x: y}, fail_fast: yes}", "2:35 expected true or false, not the text 'yes'"),
        (
            "name: a\ndo: {parallel: {x: y}, join: most}",
            "2:30 expected all, any, discriminator, first or a whole number of at least 1",
        ),
        ("name: a\ndo: {loop: x, count: 1.5}", "2:22 expected a whole number of at least 0 or a template, not 1.5"),
        ("name: a\ndo: {step: x, compensate: {wait: 1}}", "2:27 expected a step that undoes this one, not a mapping"),
        ('name: a\ndo: {step: x, with: "{{ trigger.input"}', "2:22 the template that begins here has no closing '}}'"),
        ("{", "1:2 expected a key in double quotes here"),
    ],
)
def test_what_is_not_plain_or_not_a_definition_is_refused(text: str, fault: str) -> None:
    found = faults(text)
    assert len(found) == 1
    assert found[0].startswith(fault)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"name": "a", "do": "x",}', "1:24 a comma stands before the end"),
        ('{"name": "a"\n "do": "x"}', "2:2 expected a comma or '}' here"),
        ('{"name": "a", "do": ["x" "y"]}', "1:26 expected a comma or ']' here"),
        ('{"name": "a", "do": "x", "name": "b"}', "1:26 the key 'name' stands twice; first in line 1"),
        ('{"name": "a", "do": x}', "1:21 expected a value here"),
        ('{"name": "a", "do": ', "1:21 the text ends where a value should stand"),
        ('{"name": "a", "do": "x"} {}', "1:26 something stands after the end of the document"),
        ('{"name": "a\n", "do": "x"}', "1:12 the text is not JSON: invalid control character at"),
        ('{"name": "a", "do": "x", "output": NaN}', "1:36 expected a value here"),
        ('{"name": "a", "do": "x", "output": 1e999}', "1:36 the number is too large"),
        ('{"name": "a", "do": "x", "output": "\\ud800"}', "1:36 the value, at $: half of a surrogate pair is not text"),
        ('{"name" "a"}', "1:9 expected ':' after the key"),
        ("{1: 2}", "1:2 expected a key in double quotes here"),
    ],
)
def test_faults_of_json_have_their_places_too(text: str, fault: str) -> None:
    found = faults(text, format="json")
    assert len(found) == 1
    assert found[0].startswith(fault)


def test_words_that_other_readers_take_for_truth_values_are_texts() -> None:
    definition = parse("name: on\ndo: {map_data: [yes, no, on, off, y, n, Yes, 1_000, 1:30, 2026-01-01, 'true']}")
    assert definition.root == Step(
        uses="stepwell.map_data", args=["yes", "no", "on", "off", "y", "n", "Yes", "1_000", "1:30", "2026-01-01", "true"]
    )
    assert "- no\n" not in render(definition), "quoted, so that other readers take them for texts, too"
    assert parse(render(definition)) == definition


def test_true_false_null_and_numbers_are_what_they_are() -> None:
    definition = parse("name: a\ndo: {map_data: [true, False, null, ~, 1, -1, 1.0, 1e3, .5]}")
    assert repr(definition.root.args) == "[True, False, None, None, 1, -1, 1.0, 1000.0, 0.5]"


def test_an_alias_stands_for_what_it_names() -> None:
    text = "name: a\ndo:\n  - {step: x, retry: &r {attempts: 7}}\n  - {step: y, retry: *r}"
    assert {node.retry for node in parse(text).root.nodes} == {Retry(attempts=7)}


# T44: bombs.


def test_a_bomb_of_aliases_is_refused_before_it_goes_off() -> None:
    """T44."""
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    started = time.perf_counter()
    assert "more than 500,000 parts" in faults("\n".join(lines))[0]
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "- " * 100_000, "? " * 100_000, "{a: " * 100_000, '{"a":' * 100_000, "[{" * 1_000_000]
)
def test_deep_documents_are_refused_without_recursion(text: str) -> None:
    """T44."""
    started = time.perf_counter()
    assert len(faults(text)) == 1
    assert time.perf_counter() - started < 2


def test_a_document_over_the_limit_is_refused_before_it_is_read() -> None:
    """T44."""
    with pytest.raises(LimitExceeded, match="4,000,000"):
        parse("x" * 4_000_001)


def test_a_text_of_nothing_but_faults_is_given_up_after_a_thousand() -> None:
    """T44: 20,000 unknown keys."""
    assert len(faults("".join(f"key{number}: 1\n" for number in range(20_000)))) == 1000


def test_a_number_of_a_million_digits_takes_no_time() -> None:
    """T44."""
    for form in ("yaml", "json"):
        started = time.perf_counter()
        assert "more than 64 bits" in " ".join(faults('{"name": ' + "9" * 1_000_000 + "}", format=form))
        assert time.perf_counter() - started < 1


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"flow\.yaml is not UTF-8 text"):
        parse(b"\xff\xfe", source="flow.yaml")
    with pytest.raises(InvalidInput, match="is not UTF-8 text"):
        parse("name: \ud800")
    assert faults("name: a\0b")[0].startswith("1:1 the text cannot be read as YAML: unacceptable character")
    assert parse(b"\xef\xbb\xbfname: a\ndo: x") == parse("name: a\ndo: x")


def nested(kind: str, depth: int) -> Definition:
    node = Step(uses="x")
    for _ in range(depth):
        match kind:
            case "choice":
                node = Choice(cases=(Case(when="trigger.input.a", do=node),))
            case "sequence":
                node = Sequence(nodes=(node,))
            case "parallel":
                node = Parallel(branches={"a": node})
            case _:
                node = Scope(do=node)
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


def test_ten_thousand_steps_are_read_in_seconds() -> None:
    steps = tuple(Step(uses="work", args={"n": number, "x": "{{ trigger.input.x }}"}) for number in range(10_000))
    definition = Definition(name="long", root=Sequence(nodes=steps))
    text = render(definition)
    started = time.perf_counter()
    assert parse(text) == definition
    assert time.perf_counter() - started < 20, "about one second alone on a small machine"


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
        do=Loop(do=Step(uses="x"), range=Range(start=3, stop=0, step=-1), delay_seconds=0.5),
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
    definition = Definition(name="a", root=Step(uses="x", args={"k": text, text: [text, {text: text}]}, description=text))
    assert parse(render(definition)) == definition
