"""Definitions from the tables that a script builds with ``Workflow.sequential`` and its siblings.

The result is what ``define`` gives for the same workflow in Python, and the same checks apply. Templates and conditions of older
scripts (``{{step.NAME.result}}``, ``$iteration``, ``step:NAME:VALUE``) are translated to the expression language.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from stepwell.errors import InvalidDefinition
from stepwell.flow.definition.actions import call, map_data, set_variables, subworkflow
from stepwell.flow.definition.builder import choice, define, loop, otherwise, parallel, sequence, when
from stepwell.flow.definition.document_writer import encode_definition
from stepwell.flow.definition.node import Case, Definition, Node, OnError
from stepwell.flow.language.parser import ROOTS
from stepwell.flow.retry import Retry
from stepwell.model.record import Metadata
from stepwell.model.value import Value

__all__ = ["definition_of", "runnable_of", "stored_name"]

Table = Mapping[str, Any]

_NAMES = {"sequential": "sequence", "parallel": "parallel", "conditional": "choice", "loop": "loop"}
_STRATEGIES: dict[str, OnError] = {"fail_fast": "fail", "fail": "fail", "continue": "continue", "retry": "retry"}
_STEP = re.compile(r"\{\{\s*steps?\.([\w-]+)\.(?:result|output)\b")
_INPUT = re.compile(r"\{\{\s*input\b")
_TEMPLATE = re.compile(r"\{\{\s*(\w+)")
"""The first word of a template. One that is none of ours is a text for a tool, such as a template of its own."""
_ITERATION = re.compile(r"\biteration\b")
_SHARED = re.compile(r"\bstate\.(?!global\b|workspace\b|workflow\b|step\b|conversation\b|custom\b)")
_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)((?:\.[\w-]+)*)")
_ASSIGNMENT = re.compile(r"state\.([A-Za-z_]\w*)\s*=(?!=)\s*(.+?);?")
_BODY_OUTPUT = re.compile(r"\bbody_output\b")
_COMMENT = re.compile(r"--.*")
_MOST_ITERATIONS = 1_000
"""Of a loop with a condition that says no number itself."""


def definition_of(spec: Value) -> Definition:
    """Return the definition that a script's table describes, under the name that the script gave it.

    Raise ``InvalidDefinition`` for a table that describes none.
    """
    return _Build(None, None).definition(spec)


def stored_name(spec: Value) -> str | None:
    """Return the name of the workflow that a table stands for, or None if the table describes one."""
    return _text_of(cast("Table", spec), "stored") if isinstance(spec, Mapping) and "stored" in spec else None


def runnable_of(spec: Value, identity: Metadata, tools: Collection[str]) -> tuple[Definition, list[Definition]]:
    """Return a definition ready to be stored and run by a script, with the definitions of its subworkflows, innermost first.

    Stored definitions are shared by all workspaces. So the name has the script's workflow in it, and a digest of the workspace and
    of the definition: no script can take another workflow's name, and a changed table is another workflow.

    Raise ``InvalidDefinition`` also for a step that is not among the tools: the script would wait for it for ever.
    """
    build = _Build(identity, tools)
    definition = build.named(build.definition(spec))
    return definition, build.inner


class _Build:
    """Builds one definition and those inside of it."""

    def __init__(self, identity: Metadata | None, tools: Collection[str] | None) -> None:
        self._identity, self._tools = identity, tools
        self.inner: list[Definition] = []

    def named(self, definition: Definition) -> Definition:
        """Return the definition under the name that it is stored by."""
        if self._identity is None:
            return definition
        workspace, workflow = self._identity.workspace_id, self._identity.workflow_id
        digest = sha256(workspace.encode() + b"\0" + encode_definition(definition)).hexdigest()[:16]
        return msgspec.structs.replace(definition, name=f"{workflow}/{definition.name}@{digest}")

    def definition(self, spec: Value) -> Definition:
        table = _table(spec, "a workflow")
        kind = _text_of(table, "kind", "sequential")
        if kind not in _NAMES:
            raise InvalidDefinition(f"a workflow is sequential, parallel, conditional or loop, not {kind!r}")
        variables = {
            **_table(table.get("initial_state") or {}, "initial_state"),
            **_table(table.get("shared") or {}, "shared data"),
        }
        milliseconds = _number(table, "timeout_ms")
        nodes = getattr(self, f"_{kind}")(table)
        return define(
            _text_of(table, "name", kind),
            *nodes,
            version=cast("int", table.get("version") or 1),
            description=_text_of(table, "description", ""),
            variables={name: _translated(value) for name, value in variables.items()},
            timeout=None if milliseconds is None else milliseconds / 1000,
            steps=self._tools,
        )

    # The kinds of workflows.

    def _sequential(self, table: Table) -> list[Node]:
        return self._steps(table.get("steps"), table, "steps")

    def _parallel(self, table: Table) -> list[Node]:
        branches: dict[str, Node] = {}
        optional: list[str] = []
        for number, each in enumerate(_list(table.get("branches") or table.get("steps"), "branches"), 1):
            branch = _table(each, "a branch")
            name = _text_of(branch, "name", str(number))
            if name in branches:
                raise InvalidDefinition(f"there are two branches {name!r}; give one of them another name")
            branches[name] = self._branch(branch, table)
            if branch.get("required") is False:
                optional.append(name)
        most = _number(table, "max_concurrency")
        fails_fast = table.get("fail_fast", table.get("error_strategy", "fail_fast") in ("fail_fast", "fail"))
        return [
            parallel(
                branches=branches,
                optional=optional,
                max_concurrency=None if most is None else int(most),
                fail_fast=bool(fails_fast),
            )
        ]

    def _branch(self, branch: Table, around: Table) -> Node:
        if "steps" not in branch:
            return self._step(branch, around)
        steps = self._steps(branch["steps"], around, "the steps of a branch")
        return steps[0] if len(steps) == 1 else sequence(*steps)

    def _conditional(self, table: Table) -> list[Node]:
        alternatives: list[tuple[str, list[Node]]] = []
        if "condition" in table:
            alternatives.append((_condition(table["condition"]), self._steps(table.get("then_branch"), table, "then_branch")))
        for each in _list(table.get("branches") or [], "branches"):
            branch = _table(each, "a branch")
            if "condition" not in branch:
                raise InvalidDefinition("a branch of a conditional workflow has a condition")
            alternatives.append((_condition(branch["condition"]), self._steps(branch.get("steps"), table, "the steps of a branch")))
        given = table.get("else_branch") or table.get("default_branch")
        # A choice without a match fails, and such a workflow does nothing.
        last: list[Node] = self._steps(given, table, "else_branch") if given else [map_data(None)]
        cases: list[Case] = []
        for condition, nodes in alternatives:
            if condition == "true":  # always: what follows is never chosen, which a definition must not have
                last = nodes
                break
            if condition != "false":
                cases.append(when(condition, *nodes))
        return [choice(*cases, otherwise(*last))] if cases else last

    def _loop(self, table: Table) -> list[Node]:
        body = self._steps(table.get("body") or table.get("steps"), table, "body")
        body += _updates(table.get("state_update"), body[-1])
        iterator = _table(table.get("iterator") or {}, "iterator")
        span = table.get("range") or iterator.get("range")
        items = table.get("collection", iterator.get("collection", UNSET))
        condition = table.get("while_condition") or iterator.get("while_condition") or table.get("condition")
        most, stop = _number(table, "max_iterations"), table.get("break_condition")
        more: dict[str, Any] = {
            "break_when": None if stop is None else _condition(stop),
            "delay": (_number(table, "delay_ms") or 0) / 1000,
        }
        if span is not None:
            bounds = _table(span, "range")
            start, end, step = (_whole(bounds, key, default) for key, default in (("start", 0), ("end", None), ("step", 1)))
            return [loop(*body, range=(start, end, step), max_iterations=None if most is None else int(most), **more)]
        if items is not UNSET:
            return [loop(*body, items=_translated(items), max_iterations=None if most is None else int(most), **more)]
        if condition is not None:
            return [loop(*body, while_=_condition(condition), max_iterations=int(most or _MOST_ITERATIONS), **more)]
        if most is None:
            raise InvalidDefinition("a loop has a range, a collection, a condition or max_iterations")
        return [loop(*body, count=int(most), **more)]

    # Steps.

    def _steps(self, steps: Value, around: Table, what: str) -> list[Node]:
        if isinstance(steps, Mapping) and steps:  # one step without a list around it
            return [self._step(_table(cast("Value", steps), what), around)]
        found = [self._step(_table(each, "a step"), around) for each in _list(steps, what)]
        if not found:
            raise InvalidDefinition(f"{what} is a list of at least one step")
        return found

    def _step(self, step: Table, around: Table) -> Node:
        kind = _text_of(step, "type", "workflow" if "workflow" in step else "agent" if "agent" in step else "tool")
        given = step.get("input", step.get("parameters", step.get("params", UNSET)))
        retries, milliseconds = _number(step, "retry_count"), _number(step, "timeout_ms")
        strategy = _text_of(step, "error_strategy", _text_of(around, "error_strategy", "fail_fast"))
        if strategy not in _STRATEGIES:
            raise InvalidDefinition(f"error_strategy is one of {', '.join(_STRATEGIES)}, not {strategy!r}")
        more: dict[str, Any] = {
            "name": _text_of(step, "name", ""),
            "description": _text_of(step, "description", ""),
            "retry": None if not retries else Retry(attempts=int(retries) + 1),
            "timeout_seconds": None if milliseconds is None else milliseconds / 1000,
            "on_error": _STRATEGIES[strategy],
        }
        args: Value | UnsetType = given if given is UNSET else _translated(given)
        if kind == "workflow":
            return subworkflow(self._inner(step.get("workflow")), args, **more)
        word = {"tool": "tool", "agent": "agent", "template": "template_id"}.get(kind)
        if word is None:
            raise InvalidDefinition(f"the type of a step is tool, agent, workflow or template, not {kind!r}")
        return call(_text_of(step, word), args, **more)

    def _inner(self, workflow: Value) -> str:
        if isinstance(workflow, str):
            return workflow
        spec = _table(workflow, "the workflow of a step").get("$workflow")
        stored = stored_name(spec)
        if stored is not None:
            return stored
        found = self.named(self.definition(spec))
        if found not in self.inner:
            self.inner.append(found)
        return found.name


# Conditions and templates.


def _updates(update: Value, last: Node) -> list[Node]:
    """Return the nodes that set the variables of a loop after each round: from a table, or from lines such as
    ``state.sum = body_output``.
    """
    if update is None:
        return []
    if not isinstance(update, str):
        return [set_variables({name: _translated(value) for name, value in _table(update, "state_update").items()})]
    found: list[Node] = []
    output = _path("steps", getattr(last, "name", "") or getattr(last, "uses", ""), "output")
    for line in filter(None, (_COMMENT.sub("", each).strip() for each in update.splitlines())):
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is None:
            raise InvalidDefinition(
                f"state_update is a table, or lines such as 'state.sum = body_output', not {line!r:.80}; write what needs more "
                "as a script step"
            )
        name, value = assignment.groups()
        found.append(set_variables({name: f"{{{{ {_condition_text(_BODY_OUTPUT.sub(output, value))} }}}}"}))
    return found


def _condition(given: Value) -> str:
    """Return a condition in the expression language."""
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, str):
        return _condition_text(given)
    table = _table(given, "a condition")
    kind = _text_of(table, "type")
    match kind:
        case "always" | "never":
            return _condition_text(kind)
        case "and" | "or":
            parts = [f"({_condition(each)})" for each in _list(table.get("conditions"), "the conditions")]
            if not parts:
                raise InvalidDefinition(f"a condition {kind!r} has conditions")
            return f" {kind} ".join(parts)
        case "not":
            return f"not ({_condition(table.get('condition'))})"
        case "step_output_equals":
            name = _text_of(table, "step_name", _text_of(table, "step", ""))
            expected = _literal(table.get("expected_output", table.get("expected", table.get("value"))))
            return f"{_path('steps', name, 'output')} == {expected}"
        case "shared_data_equals":
            expected = _literal(table.get("expected_value", table.get("expected", table.get("value"))))
            return f"{_path('variables', _text_of(table, 'key'))} == {expected}"
        case "custom" | "expression":
            return _condition_text(_text_of(table, "expression"))
        case _:
            raise InvalidDefinition(f"there is no condition of type {kind!r}")


def _condition_text(text: str) -> str:
    if text in ("always", "never"):
        return "true" if text == "always" else "false"
    if text.startswith("step:"):
        _, name, value = (*text.split(":", 2), "")[:3]
        return f"{_path('steps', name, 'output')} == {_literal(value)}"
    return _SHARED.sub("variables.", _ITERATION.sub("index", text))


def _path(*segments: str) -> str:
    first, *rest = segments
    return first + "".join(f".{each}" if re.fullmatch(r"[A-Za-z_][\w-]*", each) else f"[{_literal(each)}]" for each in rest)


def _literal(value: Value) -> str:
    if isinstance(value, str) or value is None or isinstance(value, bool | int | float):
        return json.dumps(value, ensure_ascii=False)
    raise InvalidDefinition("a condition compares with a text, a number, true, false or nil")


def _translated(value: Value) -> Value:
    """Return a value with the templates of older scripts in today's words."""
    if isinstance(value, str):
        return _translated_text(value)
    if isinstance(value, Mapping):
        return {key: _translated(each) for key, each in cast("Table", value).items()}
    if isinstance(value, list):
        return [_translated(each) for each in cast("list[Value]", value)]
    return value


def _translated_text(text: str) -> str:
    whole = _DOLLAR.fullmatch(text)
    if whole is not None:
        name, rest = whole.groups()
        match name:
            case "iteration" | "index":
                return "{{ index }}"
            case "item":
                return f"{{{{ item{rest} }}}}"
            case "input":
                return f"{{{{ trigger.input{rest} }}}}"
            case "state" | "shared":
                return f"{{{{ variables{rest} }}}}"
            case _:
                return f"{{{{ {_path('steps', name.removesuffix('_output'), 'output')}{rest} }}}}"
    text = _STEP.sub(lambda found: "{{ " + _path("steps", found[1], "output"), text)
    text = _INPUT.sub("{{ trigger.input", text)
    return _TEMPLATE.sub(lambda found: found[0] if found[1] in ROOTS else "{{ '{{' }}" + found[0][2:], text)


# Tables of a script are of any shape.


def _table(value: Value, what: str) -> Table:
    if isinstance(value, list) and not value:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidDefinition(f"{what} is a table with names, not {_shown(value)}")
    return cast("Table", value)


def _list(value: Value, what: str) -> list[Value]:
    if isinstance(value, Mapping) and not value:
        return []
    if not isinstance(value, list):
        raise InvalidDefinition(f"{what} is a list, not {_shown(value)}")
    return cast("list[Value]", value)


_REQUIRED = "\0"


def _text_of(table: Table, key: str, default: str = _REQUIRED) -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or value == _REQUIRED:
        raise InvalidDefinition(f"{key} is a text, not {_shown(table.get(key))}")
    return value


def _number(table: Table, key: str) -> float | None:
    value = table.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
        raise InvalidDefinition(f"{key} is a number, 0 or more, not {_shown(value)}")
    return value


def _whole(table: Table, key: str, default: int | None) -> int | str:
    value = table.get(key, default)
    if isinstance(value, str):
        return _translated_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise InvalidDefinition(f"{key} of a range is a whole number, not {_shown(value)}")
    return int(value)


def _shown(value: Value) -> str:
    return "nothing" if value is None else f"{value!r:.80}"
