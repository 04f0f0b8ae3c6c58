"""Read a definition from located data, guided by the types of the node classes, and note every fault.

The node classes are the only description of what a document may contain. Each of their types becomes a reader function, built
once. A reader returns a value, or notes a fault and returns ``FAILED``; nothing is guessed. A node that cannot be read is
replaced by a stand-in, so that the rest of the document is still read and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any, cast

from msgspec import inspect

from stepwell.duration import seconds_of, time_of
from stepwell.errors import InvalidInput, ValidationFailed
from stepwell.flow.definition.builtin_steps import BUILTINS
from stepwell.flow.definition.node import Definition, Node, Sequence, StepNode, Wait
from stepwell.flow.definition.outline import Path
from stepwell.flow.definition.source_text import DocumentReading, Located, plain_of
from stepwell.flow.language.errors import MalformedExpression, suggest
from stepwell.flow.language.expression import compile_expression
from stepwell.flow.language.template import compile_template, is_template, texts_of
from stepwell.model.value import DEFAULT_LIMITS, canonical

__all__ = [
    "FAILED",
    "MAX_DEPTH",
    "WORDS",
    "describe",
    "fits",
    "read_definition",
    "shown",
    "written",
]


_WRITTEN = {"expression": "an expression", "template": "a template", "seconds": "seconds or a span such as '2h'"}
_ATOMS: dict[type[inspect.Type], str] = {inspect.StrType: "a text", inspect.BoolType: "true or false", inspect.NoneType: "null"}


def written(info: inspect.Metadata) -> str:
    """Return how a field is written: ``expression``, ``template`` or ``seconds``."""
    extra = cast("dict[str, Any]", info.extra or {})
    return str(extra.get("written"))


def shown(located: Located) -> str:
    """Describe the value at a place, for a message."""
    if located.is_container:
        return "a list" if located.items is not None else "a mapping"
    match located.scalar:
        case None:
            return "nothing"
        case str() as text:
            return f"the text {text[:40]!r}"
        case bool() as word:
            return str(word).lower()
        case other:
            return f"{other!r}"


def describe(option: inspect.Type) -> str:
    """Describe the values that a type accepts, for a message."""
    match option:
        case inspect.Metadata():
            return _WRITTEN[written(option)]
        case inspect.StructType():
            return f"a mapping with {' or '.join(field.encode_name for field in option.fields)}"
        case inspect.IntType() | inspect.FloatType():
            bound = f" of at least {option.ge}" if option.ge is not None else ""
            return f"a {'whole ' if isinstance(option, inspect.IntType) else ''}number{bound}"
        case inspect.LiteralType():
            return ", ".join(str(word) for word in option.values)
        case inspect.DictType():
            return "a mapping"
        case inspect.VarTupleType():
            return "a list"
        case _:
            return _ATOMS.get(type(option), "a value")


def fits(option: inspect.Type, located: Located) -> bool:
    """Return whether this member of a union type should read the value and report its faults."""
    value = located.scalar
    match option:
        case inspect.Metadata():
            is_span = written(option) == "seconds" and isinstance(value, str)
            return is_span or fits(option.type, located)
        case inspect.StructType() | inspect.DictType():
            return located.members is not None
        case inspect.VarTupleType():
            return located.items is not None
        case inspect.IntType():
            return type(value) is int
        case inspect.FloatType():
            return type(value) is int or type(value) is float
        case inspect.LiteralType():
            return value in option.values
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.NoneType():
            return located.is_null
        case _:
            return isinstance(option, inspect.AnyType)


MAX_DEPTH = 128
"""The deepest nesting of nodes. Reading, checking and drawing take a few frames of Python's stack per level."""

FAILED: Any = object()
"""Returned by a reader that noted a fault."""

Reader = Callable[[DocumentReading, Located, Path], Any]
_NODES = cast("tuple[type[Node], ...]", Node.__args__)
WORDS: dict[str, type[Node]] = {str(kind.__struct_config__.tag): kind for kind in _NODES}
"""Node classes by their keyword."""


def read_definition(reading: DocumentReading, document: Located) -> Definition | None:
    """Return the definition of a document, with stand-ins for unreadable nodes; None if nothing can be read."""
    found = _struct_reader(Definition)(reading, document, ())
    return None if found is FAILED else found


def _expected(reading: DocumentReading, located: Located, what: str) -> Any:
    if not located.is_faulty:
        reading.fault(located.mark, f"expected {what}, not {shown(located)}")
    return FAILED


@cache
def _struct_reader(kind: type[Any]) -> Reader:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)  # noqa: S101 - asked for structs alone
    fields = {field.encode_name: field for field in info.fields}
    readers = {name: _reader_of(field.type) for name, field in fields.items()}
    return partial(_read_struct, kind, fields, readers)


def _read_struct(
    kind: type[Any],
    fields: Mapping[str, inspect.Field],
    readers: Mapping[str, Reader],
    reading: DocumentReading,
    located: Located,
    path: Path,
) -> Any:
    if located.members is None:
        return _expected(reading, located, f"a mapping with {', '.join(name for name, field in fields.items() if field.required)}")
    reading.marks[path] = located
    values: dict[str, Any] = {}
    for name, part in located.members.items():
        field = fields.get(name)
        here = (*path, name)
        if field is None:
            reading.fault(located.keys.get(name, part.mark), f"unknown key {name!r}{suggest(name, fields)}")
            continue
        reading.marks.setdefault(here, part)
        reading.key_marks[here] = located.keys.get(name, part.mark)
        value = readers[name](reading, part, here)
        if value is not FAILED:
            values[field.name] = value
        else:
            reading.damaged.add(path)
    return _make(reading, located, kind, fields, values)


def _make(
    reading: DocumentReading, located: Located, kind: type[Any], fields: Mapping[str, inspect.Field], values: dict[str, Any]
) -> Any:
    required = {name: field for name, field in fields.items() if field.required and field.name not in values}
    for name in required:
        if name not in (located.members or {}):
            reading.fault(located.mark, f"the key {name!r} is missing")
    if required:
        return FAILED
    try:
        return kind(**values)
    except InvalidInput as error:
        for problem in error.errors:
            reading.fault(located.mark, problem.message)
        return FAILED


def _reader_of(info: inspect.Type) -> Reader:
    match info:
        case inspect.Metadata():
            inner = _reader_of(info.type)
            readers = {"expression": _read_expression, "template": _read_template, "seconds": _read_seconds}
            return partial(readers[written(info)], inner)
        case inspect.UnionType():
            return _union_reader(info.types)
        case inspect.StructType():
            return _struct_reader(info.cls)
        case inspect.VarTupleType():
            return partial(_read_list, _reader_of(info.item_type))
        case inspect.DictType():
            return partial(_read_mapping, _reader_of(info.value_type))
        case inspect.AnyType():
            return _read_value
        case inspect.EnumType():
            return partial(_read_word, {str(member.value): member for member in cast("Iterable[Any]", info.cls)})
        case inspect.LiteralType():
            return partial(_read_word, {str(word): word for word in info.values})
        case _:
            return partial(_read_atom, info)


def _read_atom(info: inspect.Type, reading: DocumentReading, located: Located, path: Path) -> Any:  # noqa: ARG001 - a reader
    """Read a text, a number, a boolean or null."""
    value = located.scalar
    is_kind = type(value) is bool if isinstance(info, inspect.BoolType) else fits(info, located)
    is_number = isinstance(info, inspect.IntType | inspect.FloatType)
    if not is_kind or (is_number and info.ge is not None and value < info.ge):
        return _expected(reading, located, describe(info))
    if isinstance(info, inspect.FloatType):
        return float(value)
    return _checked_value(reading, located, value) if isinstance(value, str) else value


def _read_word(words: Mapping[str, Any], reading: DocumentReading, located: Located, path: Path) -> Any:  # noqa: ARG001 - a reader
    if isinstance(located.scalar, str) and located.scalar in words:
        return words[located.scalar]
    return _expected(reading, located, f"one of {', '.join(words)}")


def _read_list(item: Reader, reading: DocumentReading, located: Located, path: Path) -> Any:
    if located.items is None:
        return _expected(reading, located, "a list")
    found: list[Any] = []
    for index, part in enumerate(located.items):
        reading.marks.setdefault((*path, index), part)
        found.append(item(reading, part, (*path, index)))
    if FAILED in found:
        reading.damaged.add(path[:-1])
    return tuple(value for value in found if value is not FAILED)


def _read_mapping(item: Reader, reading: DocumentReading, located: Located, path: Path) -> Any:
    if located.members is None:
        return _expected(reading, located, "a mapping")
    found: dict[str, Any] = {}
    for key, part in located.members.items():
        reading.marks.setdefault((*path, key), part)
        reading.key_marks[(*path, key)] = located.keys.get(key, part.mark)
        found[key] = item(reading, part, (*path, key))
    if FAILED in found.values():
        reading.damaged.add(path[:-1])
    return {key: value for key, value in found.items() if value is not FAILED}


def _read_value(reading: DocumentReading, located: Located, path: Path) -> Any:
    """Read any value, and keep the position of each part for the checker."""
    if located.height > DEFAULT_LIMITS.depth:
        return _expected(reading, located, f"a value of at most {DEFAULT_LIMITS.depth} levels")
    pending: list[tuple[Path, Located]] = [(path, located)]
    while pending:
        here, part = pending.pop()
        reading.marks.setdefault(here, part)
        pending.extend(((*here, key), child) for key, child in part.children())
    return _checked_value(reading, located, plain_of(located))


def _checked_value(reading: DocumentReading, located: Located, value: Any) -> Any:
    try:
        canonical(value)
    except ValidationFailed as error:
        reading.fault(located.mark, error.message)
        return FAILED
    return value


def _read_expression(inner: Reader, reading: DocumentReading, located: Located, path: Path) -> Any:
    # YAML reads an unquoted `when: true` as a boolean; the expression `true` is meant.
    if isinstance(located.scalar, bool):
        return str(located.scalar).lower()
    text = inner(reading, located, path)
    if text is FAILED:
        return FAILED
    try:
        compile_expression(text)
    except MalformedExpression as error:
        reading.fault(located.place_in(error.position), error.message)
        return FAILED
    return text


def _read_template(inner: Reader, reading: DocumentReading, located: Located, path: Path) -> Any:
    value = inner(reading, located, path)
    if value is FAILED:
        return FAILED
    for here, text in list(texts_of(value, path)):
        try:
            compile_template(text)
        except MalformedExpression as error:
            reading.fault(reading.marks.get(here, located).place_in(error.position), error.message)
            if here == path:
                return FAILED
            _blank(value, here[len(path) :])
    return value


def _blank(value: Any, path: Path) -> None:
    """Replace a faulty text in a value by None, so that the rest of the value can still be checked."""
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = None


def _read_seconds(inner: Reader, reading: DocumentReading, located: Located, path: Path) -> Any:
    if not isinstance(located.scalar, str):
        return inner(reading, located, path)
    try:
        return seconds_of(located.scalar, "a span")
    except InvalidInput as error:
        reading.fault(located.mark, error.errors[0].message)
        return FAILED


def _union_reader(options: tuple[inspect.Type, ...]) -> Reader:
    nodes = [option for option in options if isinstance(option, inspect.StructType) and option.cls in _NODES]
    if len(nodes) == 1:
        return _read_compensation
    if nodes:
        return _read_node if len(nodes) == len(options) else _read_optional_node
    expected = " or ".join(describe(option) for option in options if not isinstance(option, inspect.NoneType))
    return partial(_read_union, [(option, _reader_of(option)) for option in options], expected)


def _read_union(
    options: list[tuple[inspect.Type, Reader]], expected: str, reading: DocumentReading, located: Located, path: Path
) -> Any:
    for option, reader in options:
        if fits(option, located):
            return reader(reading, located, path)
    return _expected(reading, located, expected)


def _read_node(reading: DocumentReading, located: Located, path: Path) -> Any:
    """Read a node; a text is a step, a list is a sequence. Replace an unreadable node by a stand-in."""
    reading.marks[path] = located
    reading.depth += 1
    if reading.depth > MAX_DEPTH:
        reading.fault(located.mark, f"nodes are nested more than {MAX_DEPTH} deep; move the inner ones to a subworkflow")
        node = _stand_in(reading, located)
    elif located.members is not None:
        node = _read_kind(reading, located, path)
    elif located.items is not None:
        node = Sequence(nodes=_read_list(_read_node, reading, located, (*path, "sequence")))
    else:
        node = _read_short(reading, located)
    reading.depth -= 1
    return node


def _read_short(reading: DocumentReading, located: Located) -> Any:
    if isinstance(located.scalar, str) and located.scalar:
        if _checked_value(reading, located, located.scalar) is not FAILED:
            return StepNode(uses=located.scalar)
    else:
        _expected(reading, located, "a node: a mapping, the name of a step, or a list of nodes")
    return _stand_in(reading, located)


def _read_kind(reading: DocumentReading, located: Located, path: Path) -> Any:
    words = [word for word in located.members or {} if word in WORDS or word in BUILTINS]
    if len(words) != 1:
        _wrong_words(reading, located, words)
        return _stand_in(reading, located)
    if words[0] in BUILTINS:
        located = _as_step(located, words[0])
    node = _struct_reader(WORDS.get(words[0], StepNode))(reading, located, path)
    if isinstance(node, Wait):
        _check_time(reading, located, node)
    return _stand_in(reading, located) if node is FAILED else node


def _wrong_words(reading: DocumentReading, located: Located, words: list[str]) -> None:
    if words:
        first, second = words[:2]
        mark = located.keys.get(second, located.mark)
        reading.fault(mark, f"a node is of one kind, but {first!r} and {second!r} both stand here; put them in a list")
        return
    known = [*WORDS, *BUILTINS]
    hint = next((found for found in (suggest(key, known) for key in located.members or {}) if found), "")
    reading.fault(located.mark, f"what kind of node is this? One of these keys must stand here: {', '.join(known)}{hint}")


def _as_step(located: Located, word: str) -> Located:
    """Read a built-in step that is written under its own keyword."""
    step = Located.opened(located.mark, is_mapping=True)
    mark = located.keys.get(word, located.mark)
    step.put("step", Located(mark, BUILTINS[word].uses), mark)
    for key, part in (located.members or {}).items():
        step.put("with" if key == word else key, part, located.keys.get(key, part.mark))
    return step


def _check_time(reading: DocumentReading, located: Located, node: Wait) -> None:
    if isinstance(node.time, str) and not is_template(node.time):
        try:
            time_of(node.time)
        except InvalidInput:
            part = (located.members or {}).get("wait", located)
            _expected(reading, part, "seconds, a span such as '2h', or a timestamp with a zone such as '2027-01-01T09:00:00Z'")


def _read_optional_node(reading: DocumentReading, located: Located, path: Path) -> Any:
    return None if located.is_null else _read_node(reading, located, path)


def _read_compensation(reading: DocumentReading, located: Located, path: Path) -> Any:
    if located.is_null:
        return None
    node = _read_node(reading, located, path)
    return node if isinstance(node, StepNode) else _expected(reading, located, "a step that undoes this one")


def _stand_in(reading: DocumentReading, located: Located) -> StepNode:
    """Return a step of the same name in place of a faulty node, so that references to the node still resolve.

    If the name is unreadable, every text in the node and every kind's keyword could be the name.
    """
    texts = {key: part.scalar for key, part in (located.members or {}).items() if isinstance(part.scalar, str) and part.scalar}
    name, uses = texts.get("name", ""), texts.get("step", "")
    if not name:
        reading.lost_names.update(texts.values(), WORDS, BUILTINS)
    return StepNode(uses=uses or "?", name=name)
