"""Validate values against JSON Schema (its common keywords) and report every fault with its path.

An unknown keyword is an error of the schema, because a check that silently checks nothing is worse than no check. ``format`` is
an annotation, which is the standard's default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from stepwell.errors import InvalidDefinition, InvalidInput, Problem
from stepwell.flow.language.errors import suggest
from stepwell.model.value import Value, canonical

__all__ = ["KEYWORDS", "REMARKS", "check_schema", "schema_faults"]

_DEEPEST = 100
"""A schema may refer to itself. No value is deeper than this, so deeper recursion is an endless reference."""
_MOST_FAULTS = 100
_LONGEST_MATCHED = 10_000
"""Longer texts are refused: a regular expression can take exponential time and would block the event loop."""

REMARKS = frozenset(
    {
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "format",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
)
"""Annotation keywords, which do not affect validation."""


class _Here(NamedTuple):
    """A part of the value, its path, and the whole schema, which references resolve against."""

    value: Value
    path: str
    whole: Value
    depth: int = 0

    def into(self, value: Value, step: str) -> _Here:
        return self._replace(value=value, path=self.path + step, depth=self.depth + 1)


Faults = Iterator[tuple[str, str]]


def check_schema(value: Value, schema: Value, *, what: str = "the input") -> None:
    """Validate a value against a schema.

    - ``what``: what the messages call the value.

    Raise ``InvalidInput`` with every fault (at most 100), or ``InvalidDefinition`` if the schema itself is invalid.
    """
    faults: list[Problem] = []
    for path, message in _faults(_Here(value, "", schema), schema):
        faults.append(Problem(InvalidInput.code, message, what + path))
        if len(faults) == _MOST_FAULTS:
            break
    if faults:
        raise InvalidInput(faults)


def schema_faults(schema: Value) -> list[str]:
    """Return what is wrong with a schema itself: unknown keywords and malformed parts, at any depth."""
    faults: list[str] = []
    pending: list[tuple[str, Value]] = [("", schema)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            faults.append(f"schema{path} must be an object, true or false")
            continue
        for keyword, inner in cast("Mapping[str, Any]", part).items():
            if keyword not in KEYWORDS and keyword not in REMARKS:
                faults.append(_unknown(keyword, path))
            pending += _inside(keyword, inner, f"{path}/{keyword}")
    return faults


def _inside(keyword: str, inner: Any, path: str) -> list[tuple[str, Any]]:
    """Return the subschemas of a keyword with their paths."""
    if keyword in ("properties", "patternProperties", "$defs", "definitions") and isinstance(inner, Mapping):
        return [(f"{path}/{key}", each) for key, each in cast("Mapping[str, Any]", inner).items()]
    if keyword in ("anyOf", "allOf", "oneOf", "prefixItems") and isinstance(inner, list):
        return [(f"{path}/{number}", each) for number, each in enumerate(cast("list[Any]", inner))]
    if keyword in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
        return [(path, inner)]
    return []


def _unknown(keyword: str, path: str) -> str:
    return f"schema{path} has the keyword {keyword!r}, which is not known here{suggest(keyword, KEYWORDS)}"


def _faults(here: _Here, schema: Value) -> Faults:
    if isinstance(schema, bool):
        if not schema:
            yield here.path, "nothing is allowed here"
        return
    if not isinstance(schema, Mapping):
        raise InvalidDefinition(f"a schema must be an object, true or false, not {type(schema).__name__}")
    if here.depth > _DEEPEST:
        raise InvalidDefinition("the schema goes in a circle, or the value is too deep")
    given = cast("Mapping[str, Any]", schema)
    for keyword, rule in given.items():
        check = KEYWORDS.get(keyword)
        if check is not None:
            yield from check(here, rule, given)
        elif keyword not in REMARKS:
            raise InvalidDefinition(_unknown(keyword, ""))


def _fits(here: _Here, schema: Value) -> bool:
    return next(_faults(here, schema), None) is None


_KINDS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: type(value) is bool,
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "string": lambda value: type(value) is str,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
}


def _type(here: _Here, rule: Any, _: Any) -> Faults:
    kinds: list[str] = [rule] if isinstance(rule, str) else rule
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise InvalidDefinition(f"the schema names the type {unknown[0]!r}; types are {', '.join(_KINDS)}")
    if not any(_KINDS[kind](here.value) for kind in kinds):
        found = next(kind for kind, is_it in _KINDS.items() if is_it(here.value))
        yield here.path, f"must be {' or '.join(kinds)}, and is {found}"


def _enum(here: _Here, rule: list[Any], _: Any) -> Faults:
    if not any(_same(here.value, each) for each in rule):
        yield here.path, f"must be one of {', '.join(repr(each) for each in rule[:20])}"


def _const(here: _Here, rule: Any, _: Any) -> Faults:
    if not _same(here.value, rule):
        yield here.path, f"must be {rule!r}"


def _same(one: Any, other: Any) -> bool:
    if type(one) in (int, float) and type(other) in (int, float):
        return one == other
    return canonical(one) == canonical(other)


def _object(here: _Here) -> Mapping[str, Any]:
    """Return the value if it is an object, else an empty object."""
    return cast("Mapping[str, Any]", here.value) if isinstance(here.value, Mapping) else {}


def _properties(here: _Here, rule: Mapping[str, Any], _: Any) -> Faults:
    found = _object(here)
    for key, schema in rule.items():
        if key in found:
            yield from _faults(here.into(found[key], f".{key}"), schema)


def _required(here: _Here, rule: list[str], _: Any) -> Faults:
    if isinstance(here.value, Mapping):
        for key in rule:
            if key not in _object(here):
                yield here.path, f"must have {key!r}"


def _additional(here: _Here, rule: Any, around: Mapping[str, Any]) -> Faults:
    if isinstance(here.value, Mapping):
        patterns = [_pattern_of(pattern) for pattern in around.get("patternProperties", {})]
        for key, value in cast("Mapping[str, Any]", here.value).items():
            if key not in around.get("properties", {}) and not any(pattern.search(key) for pattern in patterns):
                if rule is False:
                    yield here.path, f"has {key!r}, which is not allowed"
                else:
                    yield from _faults(here.into(value, f".{key}"), rule)


def _pattern_properties(here: _Here, rule: Mapping[str, Any], _: Any) -> Faults:
    if isinstance(here.value, Mapping):
        for pattern, schema in rule.items():
            for key, value in cast("Mapping[str, Any]", here.value).items():
                if _pattern_of(pattern).search(key):
                    yield from _faults(here.into(value, f".{key}"), schema)


def _property_names(here: _Here, rule: Any, _: Any) -> Faults:
    if isinstance(here.value, Mapping):
        for key in cast("Mapping[str, Any]", here.value):
            yield from _faults(here.into(key, f".{key} (the name)"), rule)


def _dependent(here: _Here, rule: Mapping[str, list[str]], _: Any) -> Faults:
    found = _object(here)
    for key, needed in rule.items():
        for other in needed if key in found else ():
            if other not in found:
                yield here.path, f"must have {other!r}, since it has {key!r}"


def _prefix_items(here: _Here, rule: list[Any], _: Any) -> Faults:
    if isinstance(here.value, list):
        for number, (value, schema) in enumerate(zip(cast("list[Any]", here.value), rule, strict=False)):
            yield from _faults(here.into(value, f"[{number}]"), schema)


def _items(here: _Here, rule: Any, around: Mapping[str, Any]) -> Faults:
    if isinstance(here.value, list):
        first = len(around.get("prefixItems", ()))
        for number, value in enumerate(cast("list[Any]", here.value)[first:], first):
            yield from _faults(here.into(value, f"[{number}]"), rule)


def _contains(here: _Here, rule: Any, _: Any) -> Faults:
    if isinstance(here.value, list):
        values = cast("list[Any]", here.value)
        if not any(_fits(here.into(value, f"[{number}]"), rule) for number, value in enumerate(values)):
            yield here.path, "has no item of the kind that it must contain"


def _unique_items(here: _Here, rule: bool, _: Any) -> Faults:
    if rule and isinstance(here.value, list):
        values = cast("list[Any]", here.value)
        if len({canonical(value) for value in values}) < len(values):
            yield here.path, "has an item twice"


def _size(kind: type | tuple[type, ...], word: str, is_wrong: Callable[[Any, Any], bool]) -> Callable[[_Here, Any, Any], Faults]:
    def check(here: _Here, rule: Any, _: Any) -> Faults:
        if isinstance(here.value, kind) and is_wrong(len(here.value), rule):
            yield here.path, f"must have {word.format(rule)}, and has {len(here.value)}"

    return check


def _bound(word: str, is_wrong: Callable[[Any, Any], bool]) -> Callable[[_Here, Any, Any], Faults]:
    def check(here: _Here, rule: Any, _: Any) -> Faults:
        if type(here.value) in (int, float) and is_wrong(here.value, rule):
            yield here.path, f"must be {word} {rule!r}, and is {here.value!r}"

    return check


@lru_cache(maxsize=256)
def _pattern_of(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidDefinition(f"the schema's pattern {pattern!r} cannot be read: {error}") from None


def _pattern(here: _Here, rule: str, _: Any) -> Faults:
    if isinstance(here.value, str) and len(here.value) > _LONGEST_MATCHED:
        yield here.path, f"has more than {_LONGEST_MATCHED:,} letters, too many to be compared with a pattern"
    elif isinstance(here.value, str) and not _pattern_of(rule).search(here.value):
        yield here.path, f"must match the pattern {rule!r}"


def _all_of(here: _Here, rule: list[Any], _: Any) -> Faults:
    for schema in rule:
        yield from _faults(here._replace(depth=here.depth + 1), schema)


def _any_of(here: _Here, rule: list[Any], _: Any) -> Faults:
    if not any(_fits(here._replace(depth=here.depth + 1), schema) for schema in rule):
        yield here.path, f"fits none of {len(rule)} alternatives"


def _one_of(here: _Here, rule: list[Any], _: Any) -> Faults:
    count = sum(1 for schema in rule if _fits(here._replace(depth=here.depth + 1), schema))
    if count != 1:
        yield here.path, f"must fit exactly one of {len(rule)} alternatives, and fits {count}"


def _not(here: _Here, rule: Any, _: Any) -> Faults:
    if _fits(here._replace(depth=here.depth + 1), rule):
        yield here.path, "fits what it must not"


def _if(here: _Here, rule: Any, around: Mapping[str, Any]) -> Faults:
    deeper = here._replace(depth=here.depth + 1)
    yield from _faults(deeper, around.get("then" if _fits(deeper, rule) else "else", True))


def _passed_over(_here: _Here, _rule: Any, _around: Any) -> Faults:
    """Check nothing: another keyword handles this one."""
    return iter(())


def _ref(here: _Here, rule: str, _: Any) -> Faults:
    target: Any = here.whole
    steps = rule.removeprefix("#").strip("/").split("/") if rule.startswith("#") else [""]
    for step in steps if rule != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or name not in target:
            raise InvalidDefinition(f"the schema refers to {rule!r}, which is not in it")
        target = cast("Mapping[str, Any]", target)[name]
    yield from _faults(here._replace(depth=here.depth + 1), target)


def _multiple(here: _Here, rule: Any, _: Any) -> Faults:
    if type(here.value) in (int, float) and here.value % rule:
        yield here.path, f"must be a multiple of {rule!r}"


KEYWORDS: dict[str, Callable[[_Here, Any, Any], Faults]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "patternProperties": _pattern_properties,
    "propertyNames": _property_names,
    "dependentRequired": _dependent,
    "minProperties": _size(Mapping, "{} or more keys", lambda size, rule: size < rule),
    "maxProperties": _size(Mapping, "at most {} keys", lambda size, rule: size > rule),
    "prefixItems": _prefix_items,
    "items": _items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    "minItems": _size(list, "{} or more items", lambda size, rule: size < rule),
    "maxItems": _size(list, "at most {} items", lambda size, rule: size > rule),
    "minLength": _size(str, "{} or more letters", lambda size, rule: size < rule),
    "maxLength": _size(str, "at most {} letters", lambda size, rule: size > rule),
    "pattern": _pattern,
    "minimum": _bound("at least", lambda value, rule: value < rule),
    "maximum": _bound("at most", lambda value, rule: value > rule),
    "exclusiveMinimum": _bound("more than", lambda value, rule: value <= rule),
    "exclusiveMaximum": _bound("less than", lambda value, rule: value >= rule),
    "multipleOf": _multiple,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "then": _passed_over,
    "else": _passed_over,
    "$ref": _ref,
}
"""The check for each supported keyword."""
