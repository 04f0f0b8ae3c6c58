"""Write definitions: as plain data, YAML or JSON for people, and as canonical bytes for a store.

Reading what was written gives an equal definition, with its branches in their order. Equal definitions with branches in one order
have equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, cast

import msgspec

from stepwell.errors import InvalidDefinition
from stepwell.flow.definition.builtin_steps import builtin_of
from stepwell.flow.definition.node import Definition, NodeFields, StepNode
from stepwell.flow.definition.source_text import is_plain_text
from stepwell.model.value import Value

__all__ = [
    "decode_definition",
    "encode_definition",
    "json_text",
    "plain_definition",
    "yaml_text",
]


_PLAIN = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_./+-]| (?! |#|$))*")
"""Texts that need no quotes anywhere. YAML allows more, but this rule is easy to check."""
_BLOCK = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]+")
_ODD = re.compile(r"[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")
_NORWAY = frozenset({"y", "n", "yes", "no", "on", "off"})
"""Plain texts in YAML 1.2, but booleans for YAML 1.1 readers; quoted, they are texts for both."""
_LONG_KEY = 100
"""YAML reads a key of more than 1,024 characters only in its explicit form (``? key``)."""
_json = msgspec.json.Encoder().encode
_encode = msgspec.json.Encoder(order="deterministic").encode


def plain_definition(definition: Definition) -> dict[str, Value]:
    """Return the document of a definition as plain data."""
    return _plain(definition, is_tagged=False)


def json_text(document: Value) -> str:
    """Return plain data as indented JSON."""
    return msgspec.json.format(_json(document), indent=2).decode() + "\n"


def _plain(value: Any, *, is_tagged: bool) -> Value:
    """Return structs as dicts and their tuples as lists.

    One function without comprehensions, so that each level of nesting costs one frame of Python's stack.

    - ``is_tagged``: every node has its ``type``, and keys are sorted. Only branches and the nodes of a graph keep their order,
      from which names and merges follow.
    """
    if is_tagged and isinstance(value, dict | list) and not _has_nodes(cast("object", value)):
        return cast("Value", msgspec.Raw(_encode(value)))
    if isinstance(value, dict):
        members: dict[str, Value] = {}
        for key, part in cast("dict[str, Any]", value).items():
            members[key] = _plain(part, is_tagged=is_tagged)
        return members
    if not isinstance(value, msgspec.Struct):
        return cast("Value", value)
    found: dict[str, Value] = {}
    for name, part in _written_fields(value):
        if isinstance(part, tuple):
            found[name] = items = list[Value]()
            for item in cast("tuple[Any, ...]", part):
                items.append(_plain(item, is_tagged=is_tagged))
        else:
            found[name] = _plain(part, is_tagged=is_tagged)
    if not is_tagged:
        return _under_own_word(value, found)
    if isinstance(value, NodeFields):
        found["type"] = str(value.__struct_config__.tag)
    return dict(sorted(found.items()))


def _has_nodes(value: object) -> bool:
    parts = cast("dict[str, Any]", value).values() if isinstance(value, dict) else ()
    return any(isinstance(part, NodeFields) for part in parts)


class _Field(NamedTuple):
    name: str
    encode_name: str
    is_required: bool
    default: Any
    is_span: bool


@cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[_Field, ...]:
    """Return the fields of a struct, the main field of a node first."""
    found = [
        _Field(
            field.name,
            field.encode_name,
            field.required,
            field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default,
            field.name.endswith("_seconds") or field.name == "time",
        )
        for field in msgspec.structs.fields(kind)
    ]
    main = kind.main if issubclass(kind, NodeFields) else ""
    return tuple(sorted(found, key=lambda field: field.name != main)) if main else tuple(found)


def _written_fields(struct: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Return the fields of a struct that differ from their defaults."""
    for field in _fields_of(type(struct)):
        value = getattr(struct, field.name)
        if field.is_required or type(value) is not type(field.default) or value != field.default:
            # Write 5.0 seconds as 5; reading converts integers to floats.
            is_whole = field.is_span and isinstance(value, float) and value.is_integer()
            yield field.encode_name, int(value) if is_whole else value


def _under_own_word(struct: msgspec.Struct, found: dict[str, Value]) -> dict[str, Value]:
    """Write a built-in step with arguments under its own keyword."""
    builtin = builtin_of(struct.uses) if isinstance(struct, StepNode) and isinstance(struct.uses, str) else None
    if builtin is None or "with" not in found:
        return found
    rest = {key: part for key, part in found.items() if key not in ("step", "with")}
    return {builtin.name: found["with"], **rest}


class _Pending(NamedTuple):
    """A list or mapping still to be written, with the prefix of its first line and the indentation of the others."""

    lead: str
    indent: int
    value: Value


def yaml_text(document: Value) -> str:
    """Return plain data as block-style YAML in which every text is read back unchanged."""
    lines: list[str] = []
    pending: list[str | _Pending] = _entries("", "", 0, document)
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            lines.append(part)
        else:
            pending.extend(reversed(_members(part)))
    return "\n".join([*lines, ""])


def _members(part: _Pending) -> list[str | _Pending]:
    found: list[str | _Pending] = []
    lead, space = part.lead, " " * part.indent
    if isinstance(part.value, dict):
        for key, value in cast("dict[str, Value]", part.value).items():
            found += _pair(lead, part.indent, key, value)
            lead = space
    else:
        for value in cast("list[Value]", part.value):
            found += _entries(f"{lead}- ", f"{lead}- ", part.indent, value)
            lead = space
    return found


def _pair(lead: str, indent: int, key: str, value: Value) -> list[str | _Pending]:
    name = _word(key)
    space = " " * indent
    if len(name) > _LONG_KEY:
        return [f"{lead}? {name}", *_entries(f"{space}: ", f"{space}: ", indent, value)]
    if isinstance(value, dict | list) and value:
        return [f"{lead}{name}:", _Pending(f"{space}  ", indent + 2, value)]
    return _entries("", f"{lead}{name}: ", indent, value)


def _entries(lead: str, head: str, indent: int, value: Value) -> list[str | _Pending]:
    """Write a value beside a dash or key: a scalar on the same line, anything else queued."""
    if isinstance(value, dict | list) and value:
        return [_Pending(lead, indent + 2 if lead else indent, value)]
    if isinstance(value, str) and _is_block(value):
        sign = "|" if value.endswith("\n") else "|-"
        space = " " * (indent + 2)
        return [f"{head}{sign}", *(f"{space}{line}" if line else "" for line in value.removesuffix("\n").split("\n"))]
    return [head + (_word(value) if isinstance(value, str) else _json(value).decode())]


def _is_block(text: str) -> bool:
    """Return whether a text of several lines is read back unchanged from a block scalar."""
    lines = text.removesuffix("\n").split("\n")
    if len(lines) < 2 or not lines[0] or not lines[-1] or lines[0][0] == " ":
        return False
    return all(not line or (_BLOCK.fullmatch(line) and line[-1] != " ") for line in lines)


def _word(text: str) -> str:
    """Return a text on one line: unquoted if it is unambiguous, else in double quotes."""
    if _PLAIN.fullmatch(text) and len(text) <= _LONG_KEY and is_plain_text(text) and text.lower() not in _NORWAY:
        return text
    quoted = _json(text).decode()
    return _ODD.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


_decode = msgspec.json.Decoder(Definition).decode


def encode_definition(definition: Definition) -> bytes:
    """Return the canonical bytes of a definition."""
    return _json(_plain(definition, is_tagged=True))


def decode_definition(data: bytes) -> Definition:
    """Return the definition from its canonical bytes. Raise ``InvalidDefinition`` if this version cannot read them."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidDefinition(f"the stored definition cannot be read; was it written by a newer Stepwell? {error}") from None
