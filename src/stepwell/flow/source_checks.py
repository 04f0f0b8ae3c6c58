"""Check the source of workflow functions for calls that do not come out the same when the code runs again.

After a crash or a rest the code of a workflow runs from its start, with its recorded calls answered from the record. Time,
randomness and sleeping that the record does not know break that.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["SourceFault", "check_source"]

_NOW = "stepwell.now()"
_RANDOM = "stepwell.random(), or call it in a step"
_SLEEP = "stepwell.sleep(...)"

_REPLACEMENTS = {
    "asyncio.sleep": f"await {_SLEEP}",
    "time.sleep": _SLEEP,
    "time.time": f"{_NOW}.timestamp()",
    "time.time_ns": _NOW,
    "time.monotonic": _NOW,
    "time.perf_counter": _NOW,
    "time.localtime": _NOW,
    "time.gmtime": _NOW,
    "datetime.datetime.now": _NOW,
    "datetime.datetime.utcnow": _NOW,
    "datetime.datetime.today": _NOW,
    "datetime.date.today": f"{_NOW}.date()",
    "uuid.uuid1": "stepwell.uuid()",
    "uuid.uuid4": "stepwell.uuid()",
    "os.urandom": _RANDOM,
}
_MODULES = {"random": _RANDOM, "secrets": _RANDOM}
"""Modules whose calls all come out differently."""

_AWAITED = ("stepwell.sleep", "stepwell.wait_signal", "stepwell.wait_approval", "stepwell.map")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class SourceFault(NamedTuple):
    """A call in a workflow's own code that should be written otherwise."""

    workflow: str
    """The name of the function."""
    line: int
    column: int
    """From 1."""
    message: str


def check_source(source: str) -> list[SourceFault]:
    """Return the faults of all workflow functions in the source of a module, in the order of their lines.

    Checked are the code of each workflow and the functions of the same module that it calls; steps may do what they like. Raise
    ``SyntaxError`` for text that is no Python.
    """
    module = _Module(ast.parse(source))
    faults = {fault for workflow in module.workflows for fault in module.faults_of(workflow)}
    return sorted(faults, key=lambda fault: (fault.line, fault.column, fault.message))


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        self._names = _imported(tree)
        functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
        self.workflows = [each for each in functions if self._is_decorated(each, "workflow")]
        self._recorded = {each.name: "step" for each in functions if self._is_decorated(each, "step")}
        self._recorded |= {each.name: "workflow" for each in self.workflows}
        self._helpers = {each.name: each for each in functions if each.name not in self._recorded}

    def _is_decorated(self, function: Function, name: str) -> bool:
        for decorator in function.decorator_list:
            dotted = self._dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if dotted.startswith("stepwell.") and dotted.rpartition(".")[2] == name:
                return True
        return False

    def _dotted(self, node: ast.expr) -> str:
        """Return the full name of what an expression names, such as ``datetime.datetime.now``; empty if it is no imported name."""
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return self._names.get(node.id, "") if isinstance(node, ast.Name) else ""

    def faults_of(self, workflow: Function) -> Iterator[SourceFault]:
        """Yield the faults of one workflow."""
        pending: list[Function] = [workflow]
        seen: set[str] = set()
        while pending:
            function = pending.pop()
            for node in self._own_code(function):
                if isinstance(node, ast.Call):
                    if isinstance(node.func, ast.Name) and node.func.id in self._helpers and node.func.id not in seen:
                        seen.add(node.func.id)
                        pending.append(self._helpers[node.func.id])
                    message = self._of_call(node)
                elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(function, ast.AsyncFunctionDef):
                    message = self._of_statement(node.value)
                else:
                    continue
                if message:
                    yield SourceFault(workflow.name, node.lineno, node.col_offset + 1, message)

    def _own_code(self, function: Function) -> Iterator[ast.AST]:
        pending: list[ast.AST] = list(function.body)
        while pending:
            node = pending.pop()
            if isinstance(node, Function) and (self._is_decorated(node, "step") or self._is_decorated(node, "workflow")):
                continue
            yield node
            pending += ast.iter_child_nodes(node)

    def _of_call(self, call: ast.Call) -> str:
        name = self._dotted(call.func)
        if name == "asyncio.sleep" and [ast.unparse(each) for each in call.args] == ["0"]:
            return ""  # gives way to other tasks, and waits for nothing
        if name == "random.Random" and call.args:
            return ""  # with a seed it comes out the same
        replacement = _REPLACEMENTS.get(name) or _MODULES.get(name.partition(".")[0])
        if not replacement:
            return ""
        if replacement.endswith(_SLEEP):
            return f"{name}() begins anew when its worker dies, and holds the run in memory; write {replacement}"
        return f"{name}() gives something else when the code runs again; write {replacement}"

    def _of_statement(self, call: ast.Call) -> str:
        match call.func:
            case ast.Name(id=name):
                written = f"{name}(...)"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="with_key" | "with_summary" as how)):
                written = f"{name}.{how}(...)(...)"
            case ast.Attribute(value=ast.Name(id=name), attr="aio"):
                written = f"{name}.aio(...)"
            case ast.Attribute(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="with_key" | "with_summary" as how)), attr="aio"
            ):
                written = f"{name}.{how}(...).aio(...)"
            case _:
                name = written = ""
        if name in self._recorded:
            return f"{self._recorded[name]} {name!r} is called and not awaited; write await {written}"
        dotted = self._dotted(call.func)
        return f"{dotted}() is not awaited; write await {dotted}(...)" if dotted in _AWAITED else ""


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return what the names that a module imports stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names
