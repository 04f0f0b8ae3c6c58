"""Generate `stepwell/web/client_operations.py`: a method for every route of the HTTP API, with the types of its table.

Run `python -m tools.generate_client` after each change of a route. A test compares the checked-in module with this.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from stepwell.web.api.route_table import TABLE
from stepwell.web.field_docs import field_docs
from stepwell.web.parameter_docs import PARAMETERS, PATH_PARAMETERS
from stepwell.web.route import NoQuery, Route

__all__ = ["TARGET", "generate"]

TARGET = Path(__file__).parent.parent / "src" / "stepwell" / "web" / "client_operations.py"

_HEADER = '''"""The operations of the HTTP API for Python, one method for each route."""

# Generated from the route table by `python -m tools.generate_client`. Do not edit: change the route and generate again.

from __future__ import annotations

{imports}

__all__ = ["Operations"]


class Operations:
    """Calls of the HTTP API, named by their ``operationId``.

    Every call raises the error of its problem: the class that has the code, such as ``NotFound``, or ``RequestFailed``.
    """

    def _call(
        self,
        method: str,
        path: str,
        replies: dict[int, Any],
        query: dict[str, Any],
        body: dict[str, Any] | None,
        headers: dict[str, str | None],
    ) -> Any:
        raise NotImplementedError

'''


class _Types:
    """Renders types, and notes what has to be imported for them."""

    def __init__(self) -> None:
        self.imports: dict[str, set[str]] = {"typing": {"Any"}, "urllib.parse": {"quote"}}

    def text(self, kind: Any) -> str:
        if kind is None or kind is type(None):
            return "None"
        if kind is ...:
            return "..."
        if kind is Any:
            return "Any"
        if kind is UnsetType:
            self._add("msgspec", "UnsetType")
            return "UnsetType"
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            return " | ".join(self.text(each) for each in sorted(arguments, key=lambda each: each is type(None)))
        if origin is typing.Literal:
            self._add("typing", "Literal")
            return f"Literal[{', '.join(map(repr, arguments))}]"
        if origin is not None:
            name = origin.__name__
            if origin.__module__ != "builtins":
                self._add(origin.__module__, name)
            return f"{name}[{', '.join(self.text(each) for each in arguments)}]"
        if kind.__module__ != "builtins":
            self._add(kind.__module__, kind.__name__)
        return str(kind.__name__)

    def _add(self, module: str, name: str) -> None:
        self.imports.setdefault(module, set()).add(name)

    def lines(self) -> str:
        return "\n".join(f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self.imports.items()))


def _fields(kind: type[msgspec.Struct] | None, known: _Types) -> dict[str, str]:
    """Return the parameters for the fields of a struct, by name: a type, and a default unless it is required."""
    if kind is None:
        return {}
    hints = typing.get_type_hints(kind)
    found: dict[str, str] = {}
    for field in msgspec.structs.fields(kind):
        text = f"{field.name}: {known.text(hints[field.name])}"
        if field.default is UNSET:
            known.imports.setdefault("msgspec", set()).add("UNSET")
            text += " = UNSET"
        elif isinstance(field.default, Enum):
            text += f" = {type(field.default).__name__}.{field.default.name}"
        elif field.default is not msgspec.NODEFAULT:
            text += f" = {str(field.default)!r}" if isinstance(field.default, str) else f" = {field.default!r}"
        found[field.name] = text
    return dict(sorted(found.items(), key=lambda each: " = " in each[1]))


def _method(route: Route, known: _Types) -> str:
    query = _fields(None if route.query is NoQuery else route.query, known)
    body = _fields(route.body, known)
    headers: dict[str, str] = {}
    headers |= {header: header.lower().replace("-", "_") for header in route.conditions}
    if route.method == "POST":
        headers["Idempotency-Key"] = "idempotency_key"
    if route.name in ("start_run", "put_run"):
        headers["Prefer"] = "prefer"
    keywords = [*query.values(), *body.values(), *(f"{name}: str | None = None" for name in headers.values())]
    if route.role is not None:
        keywords.append("workspace: str | None = None")
    parameters = ["self", *(f"{name}: str" for name in route.parameters), *(["*", *keywords] if keywords else [])]
    replies = {route.status: route.reply, **route.statuses}
    is_bytes = route.reply is None and route.media != "application/json"
    kinds = ["bytes"] if is_bytes else [known.text(each) for each in replies.values()]
    table = "{}" if is_bytes else "{" + ", ".join(f"{status}: {known.text(kind)}" for status, kind in replies.items()) + "}"
    path = route.path
    for name in route.parameters:
        path = path.replace(f"{{{name}}}", f"{{quote({name}, safe='')}}")
    asked = [*query, *(["workspace"] if route.role is not None else [])]
    arguments = [
        repr(route.method),
        f'f"{path}"' if route.parameters else f'"{path}"',
        table,
        "{" + ", ".join(f'"{name}": {name}' for name in asked) + "}",
        "None" if route.body is None else "{" + ", ".join(f'"{name}": {name}' for name in body) + "}",
        "{" + ", ".join(f'"{header}": {name}' for header, name in headers.items()) + "}",
    ]
    result = " | ".join(dict.fromkeys(kinds))
    call = f"self._call({', '.join(arguments)})"
    names = [*route.parameters, *query, *body, *headers.values(), *(["workspace"] if route.role is not None else [])]
    text = f"    def {route.name}({', '.join(parameters)}) -> {result}:\n" + _docstring(route, list(dict.fromkeys(names)), result)
    return text + f"        {'' if result == 'None' else 'return '}{call}\n"


def _docstring(route: Route, names: list[str], result: str) -> str:
    """Return the docstring of a method: the summary of its route, and what each parameter means."""
    known = {
        name: (text[:1].lower() + text[1:]).replace("null", "None")
        for kind in (route.query, route.body)
        if kind
        for name, text in field_docs(kind).items()
    }
    lines = [f"{route.summary}."]
    if result != "None" and not route.summary.startswith("Return"):
        lines += ["", f"Return {_article(result)}."]
    lines += [""] if names else []
    for name in names:
        parameters = PATH_PARAMETERS if name in route.parameters else PARAMETERS
        about = known.get(name) or _said(parameters[name].about)
        lines += textwrap.wrap(f"- ``{name}``: {about}", 120, subsequent_indent="  ")
    text = "\n".join(f"        {line}".rstrip() for line in lines).lstrip()
    return f'        """{text}' + ('\n        """\n' if "\n" in text else '"""\n')


def _said(text: str) -> str:
    """Return a description as it stands after a name."""
    return text[:1].lower() + text[1:].replace("null", "None") if text[:1] != "`" else text


def _article(result: str) -> str:
    """Return the type of a result in words."""
    page = re.fullmatch(r"Page\[(\w+)\]", result)
    if page:
        return f"a page of ``{page[1]}``"
    first, *others = result.split(" | ")
    return f"{'an' if first[0] in 'AEIOU' else 'a'} ``{first}``" + "".join(f" or ``{each}``" for each in others)


def generate() -> str:
    """Return the text of the module."""
    known = _Types()
    methods = "\n".join(_method(route, known) for route in TABLE.routes if not route.path.endswith("/events"))
    text = _HEADER.replace("{imports}", known.lines()) + methods
    text = _ruff("check", "--select", "I,F401", "--fix", "--quiet", text=text)
    return _ruff("format", "--quiet", text=text)


def _ruff(*arguments: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, encoding="utf-8").stdout


def main() -> None:
    """Write the module."""
    TARGET.write_text(generate(), encoding="utf-8")


if __name__ == "__main__":
    main()
