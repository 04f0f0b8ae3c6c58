"""What the type of a field looks like in a document: whether a part fits it, and how to say what is expected."""

from __future__ import annotations

from typing import Any, cast

from msgspec import inspect

from stepwell.flow.located import Located

__all__ = ["describe", "fits", "shown", "written"]

_WRITTEN = {"expression": "an expression", "template": "a template", "seconds": "seconds or a span such as '2h'"}
_ATOMS: dict[type[inspect.Type], str] = {inspect.StrType: "a text", inspect.BoolType: "true or false", inspect.NoneType: "null"}


def written(info: inspect.Metadata) -> str:
    """How a field is written: ``expression``, ``template`` or ``seconds``."""
    extra = cast("dict[str, Any]", info.extra or {})
    return str(extra.get("written"))


def shown(located: Located) -> str:
    """What stands in a place, for a message."""
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
    """What is expected where a type stands."""
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
        case _:
            return _ATOMS.get(type(option), "a value")


def fits(option: inspect.Type, located: Located) -> bool:
    """Whether a type, of several, is the one to say what is right or wrong with a part."""
    value = located.scalar
    match option:
        case inspect.Metadata():
            is_span = written(option) == "seconds" and isinstance(value, str)
            return is_span or fits(option.type, located)
        case inspect.StructType() | inspect.DictType():
            return located.members is not None
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
