"""Values: JSON with one canonical encoding, and one table of what is accepted.

A value is None, a bool, an int of 64 bits, a finite float, a string, a list of values, or a dict of values with string keys.
Its canonical encoding is UTF-8 JSON without spaces, object keys in order of their code points, floats in their shortest
form. Two values are the same if and only if their canonical bytes are, so digests and comparisons work on bytes, and a store
keeps bytes that it never has to understand. ``RULES`` says what happens to every odd value, and why.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import marshal
import types
import typing
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from stepwell.errors import InvalidInput, LimitExceeded
from stepwell.model.limits import Limits

__all__ = [
    "DEFAULT_LIMITS",
    "RULES",
    "Frozen",
    "Rule",
    "Value",
    "canonical",
    "check_kept",
    "decode",
    "encode_bounded",
    "freeze",
    "from_value",
    "is_plain_type",
    "parse",
    "recode",
    "shown_type",
    "thaw",
    "to_value",
]

# JSON has no recursive type that both the checker and msgspec understand, so the public edge says what it is in words.
Value = Any
"""None, bool, int, float, str, list of Value, or dict of str to Value."""

Frozen = Any
"""An immutable value: an atom as itself, a list or dict as its canonical bytes."""

T = TypeVar("T")

DEFAULT_LIMITS = Limits()
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1

decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="deterministic").encode


class Rule(NamedTuple):
    """The rule for one kind of odd value, with an example and the reason."""

    kind: str
    example: object
    accepted: bool
    reason: str


class _Level(enum.IntEnum):
    LOW = 1


class _Named(dict[str, object]):
    pass


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


RULES: tuple[Rule, ...] = (
    Rule("None", None, True, "JSON null; it is a value, not the absence of one"),
    Rule("negative zero", -0.0, True, "kept as -0.0, because every store keeps our bytes and not a number"),
    Rule("whole float", 1.0, True, "stays 1.0 and differs from 1: types survive a crash"),
    Rule("smallest float", 5e-324, True, "shortest form reads back as the same float"),
    Rule("2**53 + 1", 2**53 + 1, True, "exact in Python; only JavaScript readers must take care"),
    Rule("largest 64-bit int", _INT_MAX, True, "fits SQL bigint, Lua and every store"),
    Rule("2**63", 2**63, False, "overflows SQL bigint and Lua integers; store it as a string"),
    Rule("5,000-digit int", 10**5000, False, "overflows 64 bits; store it as a string"),
    Rule("NaN", float("nan"), False, "JSON has no NaN and it is not equal to itself; store None or a string"),
    Rule("infinity", float("inf"), False, "JSON has no infinity; store None or a string"),
    Rule("minus infinity", float("-inf"), False, "JSON has no infinity; store None or a string"),
    Rule("NUL in text", "a\0b", True, "escaped in the encoding, so no store sees a NUL byte"),
    Rule(
        "composed and decomposed text",
        "\u00e9 e\u0301",
        True,
        "kept as given: normalising would change the user's text",
    ),
    Rule("lone surrogate", "\ud800", False, "half a character has no UTF-8; replace or drop it"),
    Rule("lone surrogate in a key", {"\ud800": 1}, False, "half a character has no UTF-8; replace or drop it"),
    Rule("empty key", {"": 1}, True, "an ordinary JSON object key"),
    Rule("number as a key", {1: "a"}, False, "JSON keys are strings: 1 and '1' would become one key; use strings"),
    Rule("tuple", (1, 2), False, "would come back as a list after a restart; use a list, or annotate the type"),
    Rule("set", {1}, False, "has no order and no JSON form; use a sorted list"),
    Rule("bytes", b"x", False, "has no JSON form; encode it to text (base64) or keep it elsewhere and store its address"),
    Rule(
        "datetime",
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        False,
        "would come back as text; use .isoformat(), or annotate the type",
    ),
    Rule(
        "decimal",
        decimal.Decimal("1.10"),
        False,
        "would come back as text or lose digits; use str(), or annotate the type",
    ),
    Rule("IntEnum, StrEnum", _Level.LOW, False, "would come back as an int or a text; use .value, or annotate the type"),
    Rule(
        "OrderedDict, any other subclass",
        _Named(a=1),
        False,
        "would come back as a plain dict, list, int, float or text; convert it first",
    ),
    Rule("any other object", object(), False, "only JSON survives a restart; convert it first, or annotate the type"),
    Rule("64 levels", _nested(64), True, "the deepest nesting that every reader is sure to manage"),
    Rule("65 levels", _nested(65), False, "over the depth limit; flatten it"),
)


def canonical(value: Value, limits: Limits = DEFAULT_LIMITS, *, what: str = "the value") -> bytes:
    """Return the value's canonical bytes. Raise ``InvalidInput`` or ``LimitExceeded`` with the place inside the value.

    Encoding and decoding in C and comparing is much faster than walking the value in Python, and finds everything that JSON would
    silently change (tuples, NaN, dates, numbers as keys). Only the message needs the walk.
    """
    try:
        data = _encode(value)
        same = decode(data) == value and (type(value) in _ATOMS or _has_exact_types(value))
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
        data, same = b"", False
    if not same:
        raise _explain(value, limits, what)
    if len(data) > limits.value_bytes:
        raise LimitExceeded.of("value_bytes", limits.value_bytes, len(data), f"{what}, in bytes,")
    is_deep = len(data) > limits.depth and data.count(b"[") + data.count(b"{") > limits.depth
    if is_deep or (len(data) > 18 and _LONG_NUMBER in data.translate(_DIGITS)):
        _inspect(value, limits, what)
    return data


def recode(value: Value) -> bytes:
    """Return the canonical bytes of a value that was accepted before, or is made of such, without checking limits again."""
    return _encode(value)


_ATOMS = frozenset({type(None), bool, int, float, str})
_JSON_TYPES = _ATOMS | {list, dict}
_TEXT = frozenset({str})


def _has_exact_types(value: Value) -> bool:
    """Return whether all parts of an encodable value are of the plain types themselves.

    JSON and ``==`` do not tell a subclass from its base: an ``IntEnum`` from an int, an ``OrderedDict`` from a dict. ``marshal``
    accepts no subclass of these types, and walks a value several times faster than Python code. Its bytes are thrown away.
    """
    try:
        marshal.dumps(value, 2)  # version 2 keeps no table of the parts that it has seen
    except ValueError:
        return False
    return True


# Nineteen digits in a row may be an int beyond 64 bits (or just text); translating the bytes finds that at C speed.
_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_LONG_NUMBER = b"0" * 19


def freeze(value: Value, limits: Limits = DEFAULT_LIMITS, *, what: str = "the value") -> Frozen:
    """Return the value in an immutable form: atoms stay, lists and dicts become their canonical bytes."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int and _INT_MIN <= value <= _INT_MAX:
        return value
    if type(value) is str and len(value) * 6 < limits.value_bytes and value.isascii():
        return value
    data = canonical(value, limits, what=what)
    return data if data[0] in b"[{" else decode(data)


def thaw(frozen: Frozen) -> Value:
    """Return a fresh copy of a frozen value."""
    return decode(frozen) if type(frozen) is bytes else frozen


def parse(text: bytes | str, limits: Limits = DEFAULT_LIMITS, *, what: str = "the JSON text") -> Value:
    """Parse JSON text from outside. Refuse what ``canonical`` refuses, and repeated keys."""
    if len(text) > limits.value_bytes:
        raise LimitExceeded.of("value_bytes", limits.value_bytes, len(text), f"{what}, in characters,")
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise LimitExceeded.of("depth", limits.depth, None, f"the nesting of {what}") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} cannot be read: {error}") from None
    canonical(value, limits, what=what)
    return value


def to_value(obj: object, *, what: str = "") -> Value:
    """Return a typed object (dataclass, msgspec or attrs class, pydantic model, date, tuple ...) as a plain value.

    Raise ``InvalidInput`` that names ``what`` was to be converted.
    """
    try:
        # In order, because a set comes in another one in every process; and keys as text, because JSON has no others.
        return _lists(msgspec.to_builtins(obj, enc_hook=_encode_foreign, str_keys=True, order="deterministic"))
    except (TypeError, ValueError, RecursionError) as error:
        named = f"{what} ({type(obj).__name__})" if what else type(obj).__name__
        raise InvalidInput(f"{named} cannot become JSON: {error}") from None


def encode_bounded(obj: object, most: int, limits: Limits = DEFAULT_LIMITS) -> bytes | None:
    """Return an object as canonical bytes for people to read, or None if it has over ``most`` of them.

    What is certainly too large is found before anything is converted. Of models nothing is checked: they are shown, not read back.

    Raise ``InvalidInput``, ``LimitExceeded``, ``TypeError`` and the like for what has no JSON form, and what the object's code
    raises.
    """
    is_plain = _is_plain_within(obj, most)
    if is_plain is None:
        return None
    if not is_plain:
        plain = msgspec.to_builtins(obj, enc_hook=_shown_foreign, str_keys=True, order="deterministic")
        obj = decode(_encode(plain))  # with lists for tuples
    data = canonical(obj, limits)
    return data if len(data) <= most else None


def _is_plain_within(obj: object, most: int) -> bool | None:
    """Return whether an object has JSON types only; None if it has no JSON form, or certainly over ``most`` bytes of it.

    Looks at ``most`` parts at most: each part has a byte or more, and each member of a list or object another one, for the comma or
    bracket beside it.
    """
    pending, left, is_plain = [obj], most, True
    while pending:
        part = pending.pop()
        kind, left = type(part), left - 1
        if kind is str:
            left -= len(cast("str", part))
        elif kind not in _ATOMS:
            members = cast("Collection[object]", part) if kind in _JSON_TYPES else _members_of(part)
            if members is None:
                return None
            left -= len(members)
            is_plain = is_plain and kind in _JSON_TYPES
            if left >= 0 and not isinstance(members, str | bytes | bytearray):
                pending.extend(members)
                if isinstance(members, dict):
                    named = cast("dict[object, object]", members)
                    is_plain = is_plain and _TEXT.issuperset(map(type, named))
                    pending.extend(named.values())
        elif kind is float and part - part != 0:  # pyright: ignore[reportOperatorIssue] - NaN or infinity
            return None
        if left < 0:
            return None
    return is_plain


def _members_of(part: object) -> Collection[object] | None:
    """Return the characters, items or fields of a part; None if it has no JSON form."""
    if isinstance(part, str | bytes | bytearray | dict | list | tuple | set | frozenset):
        return cast("Collection[object]", part)
    if isinstance(part, _LEAVES):
        return ()
    if isinstance(part, msgspec.Struct) or hasattr(type(part), "__dataclass_fields__") or hasattr(type(part), "__attrs_attrs__"):
        return list(_parts_of(part).values())
    return list(vars(part).values()) if hasattr(type(part), "model_dump") else None


_LEAVES = (int, float, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, enum.Enum)
"""Types that JSON has as one text or number."""


def _shown_foreign(obj: object) -> object:
    dump: Any = getattr(obj, "model_dump", None)
    if dump is None:
        raise TypeError(f"no JSON form is known for {type(obj).__name__}")
    return dump(mode="json", by_alias=True, round_trip=True)


def from_value(value: Value, kind: type[T], *, what: str = "the stored value") -> T:
    """Return the plain value as an instance of ``kind``: the way back from ``to_value``.

    Raise ``InvalidInput`` that begins with ``what`` and names the place inside the value.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=_decode_foreign, str_keys=True)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        shown = shown_type(kind)
        raise InvalidInput(f"{what} is not {'an' if shown[:1] in 'aeioAEIO' else 'a'} {shown}: {error}") from None


def check_kept(given: object, back: object, *, what: str) -> None:
    """Raise ``InvalidInput`` for the first part of a typed object that is lost or becomes a plain value on the way back.

    An annotation says what its own types come back as. Inside of them are types that say nothing about a part, such as a field
    of type ``dict``, and base classes without the fields of their subclasses.

    - ``given``: the object; ``back``: what ``from_value`` made of its plain value.
    """
    pending: list[tuple[object, object, str]] = [(given, back, "$")]
    while pending:
        one, other, path = pending.pop()
        mine, others = _parts_of(one), _parts_of(other)
        reason = _change_of(one, other, bool(mine)) or _loss_of(mine, others, bool(others) or isinstance(other, dict))
        if reason:
            raise InvalidInput(f"{what}, at {path}: {reason}")
        for name in mine.keys() & others.keys():
            step = f"[{name}]" if isinstance(name, int) else f".{name}"
            pending.append((mine[name], others[name], f"{path}{step}"))


def _change_of(one: object, other: object, has_parts: bool) -> str:
    """Return why a part comes back as something that its annotation does not say, or an empty string."""
    mine, kind = type(one), type(other)
    if mine is kind or (mine is int and kind is float):
        return ""
    if kind in _JSON_TYPES:
        return _fault_of(one) or f"a {mine.__name__} would come back as a {kind.__name__}; annotate the type"
    is_narrower = has_parts and isinstance(one, kind)
    return f"{mine.__name__} would come back as a plain {kind.__name__}; annotate the type" if is_narrower else ""


def _loss_of(mine: Mapping[object, object], others: Mapping[object, object], shows_parts: bool) -> str:
    """Return which key or field does not come back, or an empty string."""
    if not shows_parts:
        return ""
    lost = [name for name in mine if name not in others]
    if lost:
        return f"{lost[0]!r} would be lost; make it part of the annotated type"
    odd = [name for name in mine if isinstance(name, int | float | str) and type(name) not in _ATOMS]
    kinds = set(map(type, others)) if odd else set[type]()
    return next((_fault_of(_BadKey(name)) for name in odd if type(name) not in kinds), "")


def _parts_of(part: object) -> Mapping[object, object]:
    """Return the parts of an object by key, index or field; none for one whose type alone says how it comes back."""
    if isinstance(part, dict):
        return cast("dict[object, object]", part)
    if isinstance(part, list | tuple):
        return dict(enumerate(cast("list[object]", part)))
    if isinstance(part, msgspec.Struct):
        return dict(zip(part.__struct_encode_fields__, (getattr(part, name) for name in part.__struct_fields__), strict=True))
    names = [*getattr(part, "__dataclass_fields__", ()), *(each.name for each in getattr(part, "__attrs_attrs__", ()))]
    return {name: getattr(part, name) for name in names if not name.startswith("_") and hasattr(part, name)}


def is_plain_type(kind: Any) -> bool:
    """Return whether values of a type are JSON as they are: it is ``Any``, a JSON type, or made of these."""
    if kind in (Any, object) or kind in _JSON_TYPES or kind is None:
        return True
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return all(type(each) in _ATOMS for each in parts)
    if origin is dict and parts[0] not in (str, Any, object):
        return False
    return origin in (list, dict, typing.Union, types.UnionType) and all(map(is_plain_type, parts))


def shown_type(kind: Any) -> str:
    """Return a type as its annotation shows it."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _lists(value: Value) -> Value:
    """Return the same value with lists for tuples, which JSON does not have; the annotation makes them tuples again."""
    if isinstance(value, dict):
        return {key: _lists(child) for key, child in cast("dict[str, Value]", value).items()}
    if isinstance(value, list | tuple):
        return [_lists(child) for child in cast("list[Value]", value)]
    return value


def _encode_foreign(obj: object) -> object:
    dump: Any = getattr(obj, "model_dump", None)
    if dump is None:
        raise TypeError(f"no JSON form is known for {type(obj).__name__}")
    # By alias, since that is what a model reads; by name for one whose alias is for writing only. Computed fields are left out.
    fault = ""
    for by_alias in (True, False):
        plain = dump(mode="json", by_alias=by_alias, round_trip=True)
        try:
            same = _decode_foreign(type(obj), plain)
        except (TypeError, ValueError) as error:
            fault = fault or str(error)
            continue
        lost = [name for name, value in vars(obj).items() if vars(same).get(name, value) != value]
        if not lost:
            return plain
        fault = fault or f"field {lost[0]!r} does not come back as it was; do not exclude it, or make it part of the JSON"
    raise TypeError(fault)


def _decode_foreign(kind: type[T], value: object) -> T:
    if kind is object:
        return cast("T", value)
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"no way is known from JSON to {kind.__name__}")
    return validate(value)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, child in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = child
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text} is too large for a float")
    return number


def _explain(value: object, limits: Limits, what: str) -> InvalidInput | LimitExceeded:
    """Return the error for a value that does not survive encoding: the first offending place, in words."""
    try:
        _inspect(value, limits, what)
    except (InvalidInput, LimitExceeded) as error:
        return error
    return InvalidInput(f"{what} ({type(value).__name__}) does not come back from JSON as it was; convert it first")


def _inspect(value: object, limits: Limits, what: str) -> None:
    """Walk a value without recursion and raise for the first part that is not allowed."""
    pending: list[tuple[object, str, int]] = [(value, "$", 1)]
    while pending:
        part, path, depth = pending.pop()
        reason = _fault_of(part)
        if reason:
            raise InvalidInput(f"{what}, at {path}: {reason}")
        if isinstance(part, list | dict):
            if depth > limits.depth:
                raise LimitExceeded.of("depth", limits.depth, None, f"the nesting of {what}")
            pending.extend((child, f"{path}{step}", depth + 1) for step, child in _children(cast("object", part)))


def _children(part: object) -> Iterator[tuple[str, object]]:
    if isinstance(part, dict):
        for key, child in cast("dict[object, object]", part).items():
            if type(key) is not str:
                yield f".{key!r}", _BadKey(key)
            else:
                yield f".{key}", child
                if not key.isascii():
                    yield f".{key!r}", key
    else:
        for index, child in enumerate(cast("list[object]", part)):
            yield f"[{index}]", child


class _BadKey(NamedTuple):
    key: object


def _fault_of(part: object) -> str:
    """Return why one part is not a value, or an empty string."""
    kind = type(part)
    if isinstance(part, int | float | str | list | dict) and kind not in _JSON_TYPES:
        plain = next(each.__name__ for each in kind.__mro__ if each in _JSON_TYPES)
        return f"{kind.__name__} would come back as a plain {plain}; convert it first, or annotate the type"
    match part:
        case None | bool() | list() | dict():
            return ""
        case int():
            return "" if _INT_MIN <= part <= _INT_MAX else "the integer needs more than 64 bits; store it as a string"
        case float():
            return "" if part - part == 0 else f"{part} has no JSON form; store None or a string"
        case str():
            return "" if part.isascii() or _is_text(part) else "half of a surrogate pair is not text; replace or drop it"
        case _BadKey():
            return f"the key {part.key!r} is not a plain string; JSON keys are strings"
        case tuple():
            return "a tuple would come back as a list; use a list, or annotate the type"
        case _:
            return f"{type(part).__name__} has no JSON form of its own; convert it first, or annotate the type"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
