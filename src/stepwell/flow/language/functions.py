"""Functions and comparisons of the expression language.

All are pure and cannot reach Python objects. Each takes plain values and spends from an evaluation budget in proportion to what
it reads or creates, so that an expression takes bounded time. None compiles a pattern, repeats a text, or returns an integer of
more than 64 bits. Values are compared by kind first, so that no two values of different kinds are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from stepwell.flow.language.errors import EvaluationBudget, EvaluationError, MissingValue
from stepwell.model.value import Value, canonical, decode

__all__ = [
    "FUNCTIONS",
    "Function",
    "arity_fault",
    "as_text",
    "call_function",
    "checked_number",
    "combined",
    "holds",
    "is_same",
    "kind_of",
    "order",
    "plain",
]


_ATOMS = frozenset({str, int, float, bool, type(None)})


def kind_of(value: Value) -> str:
    """Return the kind of a value, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


def is_same(meter: EvaluationBudget, left: Value, right: Value) -> bool:
    """Return whether two values are equal; 1 equals 1.0, but 1 does not equal true."""
    # Python's True equals 1; the language's does not.
    if type(left) in _ATOMS or type(right) in _ATOMS:
        return left == right and isinstance(left, bool) == isinstance(right, bool)
    pending = [(left, right)]
    while pending:
        one, other = pending.pop()
        if isinstance(one, list) and isinstance(other, list):
            if len(cast("list[Value]", one)) != len(cast("list[Value]", other)):
                return False
            meter.read(cast("list[Value]", one))
            pending.extend(zip(cast("list[Value]", one), cast("list[Value]", other), strict=True))
        elif isinstance(one, Mapping) and isinstance(other, Mapping):
            first, second = cast("Mapping[str, Value]", one), cast("Mapping[str, Value]", other)
            if first.keys() != second.keys():
                return False
            meter.spend(len(first))
            pending.extend((first[key], second[key]) for key in first)
        elif one != other or isinstance(one, bool) != isinstance(other, bool):
            return False
    return True


def order(left: Any, right: Any) -> int:
    """Return -1, 0 or 1 if the left value is less than, equal to or greater than the right one."""
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    are_numbers = all(type(value) in (int, float) for value in (left, right))
    if not are_numbers:
        raise EvaluationError(f"cannot order {kind_of(left)} and {kind_of(right)}; only numbers, or texts, have an order")
    return (left > right) - (left < right)


_INT_MAX = 2**63 - 1


class Function(NamedTuple):
    """A function of the language."""

    name: str
    least: int
    most: int
    """The smallest and largest number of arguments; 1000 means any number."""
    duty: str
    call: Callable[..., Value] | None = None
    """None for the functions that inspect unevaluated arguments, for which a missing path is no error."""


def arity_fault(name: str, count: int) -> str:
    """Return what is wrong with a number of arguments, or an empty text."""
    function = FUNCTIONS[name]
    if function.least <= count <= function.most:
        return ""
    wanted = f"{function.least}" if function.least == function.most else f"{function.least} to {function.most}"
    if function.most >= 1000:
        wanted = f"at least {function.least}"
    return f"{name} takes {wanted} argument{'' if wanted == '1' else 's'}, not {count}"


def call_function(name: str) -> Callable[..., Value]:
    """Return the function of this name; its first parameter is the evaluation budget."""
    call = FUNCTIONS[name].call
    assert call is not None, f"{name} is compiled, not called"  # noqa: S101 - a mistake in this package, not in an expression
    return call


def as_text(value: Value) -> str:
    """Return a value as part of a text: a text unchanged, anything else as JSON."""
    return value if type(value) is str else canonical(plain(value)).decode()


def plain(value: Value) -> Value:
    """Return the value with lazily read mappings replaced by dicts."""
    if type(value) in (dict, list) or not isinstance(value, Mapping):
        return value
    return {key: plain(child) for key, child in cast("Mapping[str, Value]", value).items()}


def checked_number(number: int | float) -> int | float:
    """Return a number if it is a valid value: finite, and within 64 bits if it is an integer."""
    if type(number) is int and not -_INT_MAX - 1 <= number <= _INT_MAX:
        raise EvaluationError("the result needs more than 64 bits")
    if number - number != 0:
        raise EvaluationError("the result is too large")
    return number


def holds(meter: EvaluationBudget, container: Value, item: Value) -> bool:
    """Return whether a text contains a part, a list an item, or an object a key."""
    if isinstance(container, str):
        meter.read(container)
        return _text(item, "what a text may contain") in container
    if isinstance(container, Mapping):
        return isinstance(item, str) and item in cast("Mapping[str, Value]", container)
    if isinstance(container, list):
        meter.read(cast("list[Value]", container))
        return any(is_same(meter, item, each) for each in cast("list[Value]", container))
    raise EvaluationError(f"only a text, a list or an object contains something, not {kind_of(container)}")


def combined(meter: EvaluationBudget, left: Value, right: Value) -> Value:
    """Return the sum of two numbers, or two texts or lists concatenated."""
    if _is_number(left) and _is_number(right):
        return checked_number(left + right)
    if isinstance(left, str) and isinstance(right, str):
        return meter.made(left + right)
    if isinstance(left, list) and isinstance(right, list):
        return meter.made(cast("list[Value]", left) + cast("list[Value]", right))
    hint = "; use text(...) to make a text" if isinstance(left, str) or isinstance(right, str) else ""
    raise EvaluationError(f"cannot add {kind_of(right)} to {kind_of(left)}{hint}")


def _is_number(value: Value) -> bool:
    return type(value) is int or type(value) is float


def _number(value: Value, what: str) -> Any:
    if not _is_number(value):
        raise EvaluationError(f"{what} must be a number, not {kind_of(value)}")
    return value


def _whole(value: Value, what: str) -> int:
    if type(value) is not int:
        raise EvaluationError(f"{what} must be a whole number, not {kind_of(value)}")
    return value


def _text(value: Value, what: str) -> str:
    if type(value) is not str:
        raise EvaluationError(f"{what} must be a text, not {kind_of(value)}")
    return value


def _list(meter: EvaluationBudget, value: Value, what: str) -> list[Value]:
    if not isinstance(value, list):
        raise EvaluationError(f"{what} must be a list, not {kind_of(value)}")
    meter.read(cast("list[Value]", value))
    return cast("list[Value]", value)


def _length(_meter: EvaluationBudget, value: Value) -> int:
    if not isinstance(value, str | list | Mapping):
        raise EvaluationError(f"len takes a text, a list or an object, not {kind_of(value)}")
    return len(cast("list[Value]", value))


def _changed(change: Callable[[str], str]) -> Callable[..., Value]:
    def call(meter: EvaluationBudget, value: Value) -> Value:
        return meter.made(change(_text(value, "the argument")))

    return call


def _starts_with(_meter: EvaluationBudget, text: Value, part: Value) -> bool:
    return _text(text, "the first argument").startswith(_text(part, "the second argument"))


def _ends_with(_meter: EvaluationBudget, text: Value, part: Value) -> bool:
    return _text(text, "the first argument").endswith(_text(part, "the second argument"))


def _extreme(sign: int) -> Callable[..., Value]:
    def call(meter: EvaluationBudget, *values: Value) -> Value:
        found = _list(meter, values[0], "the only argument") if len(values) == 1 else list(values)
        if not found:
            raise MissingValue("an empty list has no smallest and no largest item")
        best = found[0]
        order(best, best)
        for value in found[1:]:
            if order(value, best) * sign > 0:
                best = value
        return best

    return call


def _sum(meter: EvaluationBudget, values: Value) -> Value:
    found = [_number(value, "each item") for value in _list(meter, values, "the argument")]
    try:
        return checked_number(math.fsum(found) if any(type(number) is float for number in found) else sum(found))
    except OverflowError:
        raise EvaluationError("the result is too large") from None


def _average(meter: EvaluationBudget, values: Value) -> Value:
    found = _list(meter, values, "the argument")
    if not found:
        raise MissingValue("an empty list has no average")
    return checked_number(_sum(meter, values) / len(found))


def _round(_meter: EvaluationBudget, number: Value, digits: Value = 0) -> Value:
    places = _whole(digits, "the number of digits")
    if not -15 <= places <= 15:
        raise EvaluationError("the number of digits must be from -15 to 15")
    found = _number(number, "the argument")
    return checked_number(round(found, places) if places else round(found))


def _numeric(change: Callable[[Any], int | float]) -> Callable[..., Value]:
    def call(_meter: EvaluationBudget, value: Value) -> Value:
        return checked_number(change(_number(value, "the argument")))

    return call


def _mapping(meter: EvaluationBudget, value: Value) -> Mapping[str, Value]:
    if not isinstance(value, Mapping):
        raise EvaluationError(f"the argument must be an object, not {kind_of(value)}")
    found = cast("Mapping[str, Value]", value)
    meter.spend(len(found))
    return found


def _keys(meter: EvaluationBudget, value: Value) -> Value:
    return sorted(_mapping(meter, value))


def _values(meter: EvaluationBudget, value: Value) -> Value:
    found = _mapping(meter, value)
    return [plain(found[key]) for key in sorted(found)]


def _end(index: int) -> Callable[..., Value]:
    def call(_meter: EvaluationBudget, values: Value) -> Value:
        if not isinstance(values, str | list):
            raise EvaluationError(f"the argument must be a list or a text, not {kind_of(values)}")
        if not values:
            raise MissingValue("the list or text is empty; guard it with ?? or len")
        return cast("list[Value]", values)[index]

    return call


def _join(meter: EvaluationBudget, values: Value, separator: Value = "") -> Value:
    between = _text(separator, "the separator")
    found = _list(meter, values, "the first argument")
    meter.spend(len(between) * len(found) // 32)
    parts = [as_text(value) for value in found]
    meter.spend(sum(map(len, parts)) // 32)
    return meter.made(between.join(parts))


def _split(meter: EvaluationBudget, text: Value, separator: Value = None) -> Value:
    found = _text(text, "the first argument")
    meter.read(found)
    if separator is None:
        return meter.made(found.split())
    if not separator:
        raise EvaluationError("the separator is empty")
    return meter.made(found.split(_text(separator, "the separator")))


def _replace(meter: EvaluationBudget, text: Value, old: Value, new: Value) -> Value:
    found, part, fresh = (_text(value, "each argument") for value in (text, old, new))
    if not part:
        raise EvaluationError("the text to replace is empty")
    meter.read(found)
    # Spend before creating anything: replacing a letter by a long text multiplies the size.
    meter.spend((len(found) + found.count(part) * len(fresh)) // 32)
    return meter.made(found.replace(part, fresh))


def _slice(meter: EvaluationBudget, values: Value, start: Value, stop: Value = None) -> Value:
    if not isinstance(values, str | list):
        raise EvaluationError(f"the first argument must be a list or a text, not {kind_of(values)}")
    end = None if stop is None else _whole(stop, "the end")
    return meter.made(cast("list[Value]", values)[_whole(start, "the start") : end])


def _reverse(meter: EvaluationBudget, values: Value) -> Value:
    if not isinstance(values, str | list):
        raise EvaluationError(f"the argument must be a list or a text, not {kind_of(values)}")
    return meter.made(cast("list[Value]", values)[::-1])


def _sort(meter: EvaluationBudget, values: Value) -> Value:
    found = _list(meter, values, "the argument")
    meter.spend(len(found) * 4)  # sorting n items takes about n * log2(n) comparisons
    for value in found[1:]:
        order(found[0], value)
    return sorted(found)


def _unique(meter: EvaluationBudget, values: Value) -> Value:
    seen = {canonical(plain(value)): value for value in reversed(_list(meter, values, "the argument"))}
    return list(reversed(seen.values()))


def _pluck(meter: EvaluationBudget, values: Value, key: Value) -> Value:
    name = _text(key, "the key")
    found: list[Value] = []
    for value in _list(meter, values, "the first argument"):
        if not isinstance(value, Mapping) or name not in value:
            raise EvaluationError(f"an item of the list is {kind_of(value)} without the key {name!r}")
        found.append(cast("Mapping[str, Value]", value)[name])
    return found


def _every(decide: Callable[[list[bool]], bool]) -> Callable[..., Value]:
    def call(meter: EvaluationBudget, values: Value) -> Value:
        found = _list(meter, values, "the argument")
        for value in found:
            if type(value) is not bool:
                raise EvaluationError(f"each item must be true or false, not {kind_of(value)}")
        return decide(found)

    return call


def _to_number(_meter: EvaluationBudget, value: Value) -> Value:
    if _is_number(value):
        return value
    found = _text(value, "the argument").strip()
    try:
        number = decode(found) if len(found) <= 40 and "_" not in found else None
    except ValueError:
        number = None
    if not _is_number(number):
        raise EvaluationError(f"{found[:40]!r} is not a number")
    return checked_number(cast("int | float", number))


def _to_text(meter: EvaluationBudget, value: Value) -> Value:
    return meter.made(as_text(value))


def _kind(_meter: EvaluationBudget, value: Value) -> Value:
    return kind_of(value).split()[-1]


_ANY = 1000
FUNCTIONS = {
    function.name: function
    for function in (
        Function("default", 2, 2, "the first argument, or the second where the first is missing or null; also written `a ?? b`"),
        Function("coalesce", 1, _ANY, "the first argument that is neither missing nor null"),
        Function("exists", 1, 1, "whether the path leads to something, null included"),
        Function("is_null", 1, 1, "whether the argument is null or missing; also written `a is null`"),
        Function("len", 1, 1, "the length of a text, a list or an object", _length),
        Function("lower", 1, 1, "a text in lower case", _changed(str.lower)),
        Function("upper", 1, 1, "a text in upper case", _changed(str.upper)),
        Function("trim", 1, 1, "a text without space at its ends", _changed(str.strip)),
        Function("starts_with", 2, 2, "whether a text begins with another", _starts_with),
        Function("ends_with", 2, 2, "whether a text ends with another", _ends_with),
        Function("contains", 2, 2, "whether a text has a part, a list an item, an object a key; also `a contains b`", holds),
        Function("replace", 3, 3, "a text with every occurrence of a part replaced", _replace),
        Function("split", 1, 2, "a list of the parts of a text between separators, or between spaces", _split),
        Function("join", 1, 2, "one text of all items, with a separator between them", _join),
        Function("min", 1, _ANY, "the smallest of a list or of the arguments", _extreme(-1)),
        Function("max", 1, _ANY, "the largest of a list or of the arguments", _extreme(1)),
        Function("sum", 1, 1, "the sum of a list of numbers", _sum),
        Function("avg", 1, 1, "the average of a list of numbers", _average),
        Function("round", 1, 2, "a number to the nearest whole one, or to so many digits", _round),
        Function("floor", 1, 1, "the largest whole number that is not greater", _numeric(math.floor)),
        Function("ceil", 1, 1, "the smallest whole number that is not less", _numeric(math.ceil)),
        Function("abs", 1, 1, "a number without its sign", _numeric(abs)),
        Function("keys", 1, 1, "the keys of an object, in order", _keys),
        Function("values", 1, 1, "the values of an object, in order of their keys", _values),
        Function("first", 1, 1, "the first item of a list or letter of a text", _end(0)),
        Function("last", 1, 1, "the last item of a list or letter of a text", _end(-1)),
        Function("slice", 2, 3, "the part of a list or text from a start up to, without, an end", _slice),
        Function("reverse", 1, 1, "a list or text from back to front", _reverse),
        Function("sort", 1, 1, "a list of numbers or of texts in order", _sort),
        Function("unique", 1, 1, "a list without repetitions", _unique),
        Function("pluck", 2, 2, "from a list of objects, the list of their values under a key", _pluck),
        Function("all", 1, 1, "whether every item of a list is true", _every(all)),
        Function("any", 1, 1, "whether an item of a list is true", _every(any)),
        Function("number", 1, 1, "a text as the number that it spells", _to_number),
        Function("text", 1, 1, "any value as a text", _to_text),
        Function("type", 1, 1, "`null`, `boolean`, `number`, `text`, `list` or `object`", _kind),
    )
}
"""Every function by name."""
