"""JSON Schema: what fits, what does not and why, and that an unknown keyword is never passed over."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import InvalidDefinition, InvalidInput
from stepwell.flow.json_schema import KEYWORDS, REMARKS, check_schema, schema_faults

CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1, None], []),
    (False, [], [1, None]),
    ({"type": "integer"}, [1, 1.0, -3], ["1", 1.5, True, None]),
    ({"type": ["string", "null"]}, ["a", None], [1]),
    ({"type": "object"}, [{}], [[], "{}"]),
    ({"enum": [1, "a", None]}, [1, 1.0, "a", None], [2, "b", True]),
    ({"const": {"a": 1}}, [{"a": 1}], [{"a": 2}]),
    ({"required": ["a"]}, [{"a": None}, 5], [{}]),
    ({"properties": {"a": {"type": "string"}}}, [{"a": "x"}, {}, 5], [{"a": 1}]),
    ({"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
    ({"additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "x"}]),
    ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, [{"x-a": 1}], [{"x-a": "b"}, {"y": 1}]),
    ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {}], [{"a": 1}]),
    ({"minProperties": 1, "maxProperties": 2}, [{"a": 1}], [{}, {"a": 1, "b": 2, "c": 3}]),
    ({"items": {"type": "integer"}}, [[1, 2], []], [[1, "x"]]),
    ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, [["a", 1], []], [[1], ["a", "b"]]),
    ({"contains": {"const": 1}}, [[2, 1]], [[2]]),
    ({"uniqueItems": True}, [[1, 2]], [[1, 1]]),
    ({"minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3]]),
    ({"minLength": 1, "maxLength": 2}, ["a"], ["", "abc"]),
    ({"pattern": "^a+$"}, ["aa", 5], ["ab"]),
    ({"minimum": 1, "maximum": 2}, [1, 2, "x"], [0, 3]),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2], [1, 3]),
    ({"multipleOf": 3}, [9, "x"], [10]),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1], [3]),
    ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, ["a", 6], [1]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, [1, 5.5], [6]),
    ({"not": {"type": "string"}}, [1], ["a"]),
    ({"if": {"minimum": 10}, "then": {"multipleOf": 10}, "else": {"multipleOf": 2}}, [20, 4], [15, 3]),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}}, [1], ["a"]),
    ({"properties": {"next": {"$ref": "#"}}, "required": ["n"]}, [{"n": 1, "next": {"n": 2}}], [{"n": 1, "next": {}}]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES)
def test_values_fit_as_the_keyword_says(schema: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check_schema(value, schema)
    for value in bad:
        with pytest.raises(InvalidInput):
            check_schema(value, schema)


def test_every_keyword_is_tried() -> None:
    tried = {keyword for schema, _, _ in CASES if isinstance(schema, dict) for keyword in schema}
    assert KEYWORDS.keys() <= tried
    assert not KEYWORDS.keys() & REMARKS


def test_every_fault_is_told_with_its_place() -> None:
    schema = {"properties": {"lines": {"items": {"required": ["sku"], "properties": {"n": {"minimum": 1}}}}}}
    with pytest.raises(InvalidInput) as caught:
        check_schema({"lines": [{"n": 0}, {"sku": "a", "n": 5}, {}]}, schema)
    assert [problem.where for problem in caught.value.errors] == [
        "the input.lines[0]",
        "the input.lines[0].n",
        "the input.lines[2]",
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"typo": 1},
        {"properties": {"a": {"requird": []}}},
        {"type": "text"},
        {"$ref": "#/$defs/none"},
        {"$ref": "http://x/y"},
        5,
        {"pattern": "("},
    ],
)
def test_schema_that_is_wrong_is_an_error_of_the_definition(schema: Any) -> None:
    with pytest.raises(InvalidDefinition):
        check_schema({"a": "text"} if isinstance(schema, dict) and "properties" in schema else "text", schema)


def test_circle_without_an_end_is_an_error() -> None:
    with pytest.raises(InvalidDefinition, match="circle"):
        check_schema(1, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})


def test_unknown_keywords_are_found_without_a_value() -> None:
    schema = {"properties": {"a": {"maximun": 3}}, "anyOf": [{"tpye": "x"}], "$defs": {"b": 5}}
    assert len(schema_faults(schema)) == 3
    assert schema_faults({"type": "object", "title": "fine", "format": "x"}) == []
