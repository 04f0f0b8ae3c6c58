"""Generate the API reference from the docstrings of `stepwell.__all__`: Markdown pages, grouped by what the names are for.

`make docs` puts them into the site, beside the tables under `docs/reference/`. Nothing is checked in.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator

import msgspec

import stepwell
from stepwell import flow, testing
from stepwell.app import blocking
from stepwell.web.field_docs import field_docs

__all__ = ["api_pages"]

_GROUPS = (
    ("workflows", "Workflows and steps", ("flow", "runtime.sessions", "runtime.steps", "kernel")),
    ("wells", "Wells, runs and queue items", ("app",)),
    ("queue", "Queue, workspaces and schedules", ("queue", "model.queue_item", "model.webhook")),
    ("http", "HTTP application and client", ("web", "model.access")),
    ("maintenance", "Backups, migrations and usage", ("maintenance", "model.state_versions", "model.cipher")),
    ("errors", "Errors", ("errors",)),
    ("records", "State, receipts and records", ("",)),  # all that is left
)
_OTHERS = (("flow", "stepwell.flow: declared workflows", flow), ("testing", "stepwell.testing", testing))


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield each page as its path in the site and its Markdown."""
    groups: dict[str, dict[str, object]] = {group: {} for group, _, _ in _GROUPS}
    for name in stepwell.__all__:
        found = getattr(stepwell, name)
        home = f"{getattr(found, '__module__', '')}.".removeprefix("stepwell.")
        group = next(group for group, _, rooms in _GROUPS if any(home.startswith(f"{each}.") or not each for each in rooms))
        groups[group][name] = found
    for group, title, _ in _GROUPS:
        yield f"api/{group}.md", _page(f"API: {title}", "Names of `stepwell`", groups[group])
    parts = {name: getattr(blocking, name) for name in blocking.__all__ if name not in stepwell.__all__}
    yield "api/parts.md", _page("API: Parts of a well", "What `well.queue`, `well.state` and the others are", parts)
    for group, title, module in _OTHERS:
        names = {name: getattr(module, name) for name in module.__all__}
        yield f"api/{group}.md", _page(f"API: {title}", f"Names of `{module.__name__}`", names)


def _page(title: str, module: str, names: dict[str, object]) -> str:
    parts = [f"# {title}", f"{module}: from the docstrings."]
    for name, found in names.items():
        parts.append(f"## {name}")
        if inspect.isclass(found):
            parts += _class(name, found)
        elif inspect.isfunction(call := vars(type(found)).get("__call__")):  # an object that has methods, too: `wait_signal.sync`
            parts += [_signature(name, call), _text(call), *_members(name, type(found))]
        elif callable(found):
            parts += [_signature(name, found), _text(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _class(name: str, kind: type) -> Iterator[str]:
    if issubclass(kind, BaseException):
        code = getattr(kind, "code", "")
        yield f"Error{f' `{code}`' if code else ''}, a kind of `{kind.__bases__[0].__name__}`."
    elif issubclass(kind, enum.Enum):
        yield "One of " + ", ".join(f"`{each.name}`" for each in kind) + "."
    else:
        yield _signature(name, kind)
    yield _text(kind)
    fields = [*getattr(kind, "__struct_fields__", ())]
    if fields:
        yield _fields(kind, fields)
    yield from _members(name, kind, fields)


def _members(name: str, kind: type, fields: Collection[str] = ()) -> Iterator[str]:
    for each, member in inspect.getmembers_static(kind):
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if each.startswith("_") or each in fields or not getattr(function, "__doc__", None) or _is_foreign(kind, each):
            continue
        if isinstance(function, property):
            yield f"### {name}.{each}"
            yield _text(function)
        elif inspect.isfunction(function):
            yield f"### {name}.{each}"
            yield _signature(each, function)
            yield _text(function)


def _fields(kind: type, fields: list[str]) -> str:
    """Return a list of the fields of a record, each with its type and its docstring."""
    about, types = field_docs(kind), {name: each.annotation for name, each in inspect.signature(kind).parameters.items()}
    lines = (f"- `{name}: {_shown(types.get(name))}`: {about.get(name, '')}" for name in fields if not name.startswith("_"))
    return "Fields:\n\n" + "\n".join(line.removesuffix(": ") for line in lines)


def _is_foreign(kind: type, name: str) -> bool:
    """Whether a member is inherited from a library."""
    owner = next(each for each in kind.__mro__ if name in vars(each))
    return not owner.__module__.startswith("stepwell") or (owner is not kind and issubclass(owner, msgspec.Struct | Exception))


def _signature(name: str, found: Callable[..., object]) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    shown = [_parameter(each) for each in parameters]
    star = next((at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if star is not None and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        shown.insert(star, "*")
    result = "" if inspect.isclass(found) else f" -> {_shown(signature.return_annotation)}"
    colour = "async " if inspect.iscoroutinefunction(found) else ""
    line = f"{colour}{name}({', '.join(shown)}){result.removesuffix(' -> ')}"
    if len(line) > 100:
        line = f"{colour}{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){result}"
    return f"```python\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = _shown(parameter.annotation)
    text = f"{stars}{parameter.name}{f': {kind}' if kind else ''}"
    if parameter.default is inspect.Parameter.empty:
        return text
    default = repr(parameter.default)
    default = "..." if len(default) > 60 or default.startswith("<") else default
    return f"{text} = {default}" if kind else f"{text}={default}"


def _shown(annotation: object) -> str:
    if annotation in (inspect.Parameter.empty, None):
        return "None" if annotation is None else ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)


def _text(found: object) -> str:
    """Return a docstring as Markdown: blank lines around lists and code, fences around examples."""
    text = inspect.cleandoc(typing.cast("str", getattr(found, "__doc__", None) or ""))
    lines: list[str] = []
    for line in text.splitlines():
        is_item = re.match(r"- |\d\. ", line) is not None
        if is_item and lines and lines[-1] and not re.match(r"- |  |\d\. ", lines[-1]):
            lines.append("")
        lines.append(line)
    text = "\n".join(lines)
    # An indented example is code; one in a fence has its colours.
    text = re.sub(r"(?m)^Example:\n\n((?: {4}.*\n?|\n)+)", lambda found: _example(found[1]), text)
    return re.sub(r"(?m)^(Args|Returns|Raises):\n((?: {4}.*\n?)+)", lambda found: _section(found[1], found[2]), text)


def _example(code: str) -> str:
    return "Example:\n\n```python\n" + inspect.cleandoc("\n" + code).rstrip() + "\n```\n"


def _section(title: str, text: str) -> str:
    items = re.sub(r"(?m)^ {4}(\*{0,2}\w+): ", r"- `\1`: ", text)
    return f"{title}:\n\n{inspect.cleandoc(items)}\n"
