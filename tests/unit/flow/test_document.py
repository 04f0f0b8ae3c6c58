"""Definitions as YAML and JSON: loss-free both ways, and every fault at once with its place."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.flow.definitions import definitions
from tests.unit.flow.documents import CHECKOUT, faults

from stepwell.errors import InvalidDefinition
from stepwell.flow import Definition, Keep, Retry, check, parse, render
from stepwell.flow.definition.document_writer import decode_definition, encode_definition
from stepwell.flow.definition.node import Approval, Case, Choice, DefinitionStatus, Loop, Parallel, Sequence, StepNode, Wait
from stepwell.flow.definition.outline import Outline

drawn = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@drawn
@given(definitions())
def test_a_rendered_or_stored_definition_is_read_back_as_it_was(definition: Definition) -> None:
    assert check(definition) == ()
    stored = decode_definition(encode_definition(definition))
    assert stored == definition
    assert [*Outline(stored).places] == [*Outline(definition).places], "equal names in the same order"
    for form in ("yaml", "json"):
        back = parse(render(definition, form), format=form)
        assert back == definition
        assert encode_definition(back) == encode_definition(definition), "1 and 1.0 are equal, and still not the same"


def test_a_definition_of_newer_code_is_refused_in_words() -> None:
    with pytest.raises(InvalidDefinition, match="written by a newer Stepwell"):
        decode_definition(b'{"name":"a","do":{"type":"teleport"}}')


def test_a_document_says_what_the_nodes_are() -> None:
    definition = parse(CHECKOUT)
    assert definition == Definition(
        name="checkout",
        version=2,
        variables={"country": "no"},
        root=Sequence(
            nodes=(
                StepNode(uses="reserve", args={"order": "{{ trigger.input }}"}, compensate=StepNode(uses="release")),
                Parallel(
                    branches={
                        "charge": StepNode(uses="charge", retry=Retry(attempts=5, first_seconds=0.5)),
                        "pack": StepNode(uses="pack"),
                    },
                    join=1,
                ),
                Choice(
                    cases=(
                        Case(
                            when="steps.parallel.output.charge.total > 100",
                            do=Approval(title="Large order", timeout_seconds=259_200.0),
                        ),
                    ),
                    otherwise=StepNode(uses="ship"),
                ),
                Loop(
                    do=Sequence(nodes=(StepNode(uses="poll"), Wait(time="2h"))),
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
        "16:11 it waits for 3 of 2 branches, which can never happen",
        "17:16 there is no branch 'c'",
        "18:25 no edge leads to 'c' or away from it: add one, or name it in 'start'",
        "19:12 the graph has a cycle: a -> b -> a",
        "19:63 there is no node 'q' in the graph",
        "21:16 this case can never be chosen: its condition is always false",
        "22:19 the expression ends where a value should stand",
        "23:11 expected seconds, a span such as '2h', or a timestamp with a zone such as '2027-01-01T09:00:00Z', not the text "
        "'5 parsecs'",
        "25:21 the name 'dup' is taken by another node, at do.sequence[8]",
    ]


def test_names_that_are_refused_are_found_at_once_where_they_stand() -> None:
    text = f"""\
name: a
do:
  - loop: {{step: ok, name: a}}
    count: 2
  - {{step: ok, name: "a[0]"}}
  - a[1]
  - {{step: "b[0]"}}
  - parallel: {{x: x, (loose): y}}
  - deferred: {{"(undo)": z}}
  - graph: {{"(root)": x}}
  - {{subworkflow: c, name: "c#2"}}
  - {{step: d, name: {"d" * 257}}}
"""
    assert [fault.split()[0] for fault in faults(text)] == ["5:23", "6:5", "7:13", "8:22", "9:16", "10:13", "11:29", "12:21"]


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
    assert definition.root == StepNode(
        uses="stepwell.map_data", args=["yes", "no", "on", "off", "y", "n", "Yes", "1_000", "1:30", "2026-01-01", "true"]
    )
    assert "- no\n" not in render(definition), "quoted, so that other readers take them for texts, too"
    assert parse(render(definition)) == definition


def test_true_false_null_and_numbers_are_what_they_are() -> None:
    definition = parse("name: a\ndo: {map_data: [true, False, null, ~, 1, -1, 1.0, 1e3, .5]}")
    assert repr(definition.root.args) == "[True, False, None, None, 1, -1, 1.0, 1000.0, 0.5]"


@pytest.mark.parametrize("quote", ['"', "'"])
def test_the_sign_of_a_merge_is_a_key_like_any_other_in_quotes(quote: str) -> None:
    definition = parse(f"name: a\ndo: {{map_data: {{{quote}<<{quote}: {{b: 1}}, c: <<}}}}")
    assert definition.root == StepNode(uses="stepwell.map_data", args={"<<": {"b": 1}, "c": "<<"})
    assert parse(render(definition)) == definition


def test_an_alias_stands_for_what_it_names() -> None:
    text = "name: a\ndo:\n  - {step: x, retry: &r {attempts: 7}}\n  - {step: y, retry: *r}"
    assert {node.retry for node in parse(text).root.nodes} == {Retry(attempts=7)}
