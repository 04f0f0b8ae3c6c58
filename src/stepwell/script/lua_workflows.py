"""Definitions from the tables that a script builds with ``Workflow.sequential`` and its siblings.

The result is what ``define`` gives for the same workflow in Python, and the same checks apply. Templates and conditions of older
scripts (``{{step.NAME.result}}``, ``$iteration``, ``step:NAME:VALUE``) are translated to the expression language.

A definition is data, so a function of the script cannot be a part of it. The script keeps its functions and gives each a number
(``{"$function": 3}``). A node that asks the script stands in the definition, and the workflow then runs inside of the script's step
(``inline_workflow``), where the script is there to answer. Lua code in texts, such as ``state.index <= #state.items``, is asked for
in the same way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import UNSET, UnsetType

from stepwell.errors import InvalidDefinition
from stepwell.flow.definition.actions import call, map_data, set_variables, subworkflow
from stepwell.flow.definition.builder import choice, define, loop, otherwise, parallel, sequence, when
from stepwell.flow.definition.document_writer import encode_definition
from stepwell.flow.definition.node import Action, Case, Definition, Node, OnError
from stepwell.flow.definition.outline import Outline
from stepwell.flow.language.errors import MalformedExpression
from stepwell.flow.language.parser import ROOTS, parse_expression
from stepwell.flow.retry import Retry
from stepwell.model.record import Metadata
from stepwell.model.value import Value

__all__ = ["FUNCTION", "WHILE", "Branch", "BuiltWorkflow", "build_workflow", "stored_name"]

Table = Mapping[str, Any]

FUNCTION = "script.function"
"""The step that asks the script. Only the driver of workflows inside of a script knows it."""
WHILE = "_while"
"""The variable that says whether a loop goes on whose condition the script answers."""

_NAMES = {"sequential": "sequence", "parallel": "parallel", "conditional": "choice", "loop": "loop"}
_STRATEGIES: dict[str, OnError] = {"fail_fast": "fail", "fail": "fail", "continue": "continue", "retry": "retry"}
_STEP = re.compile(r"\{\{\s*steps?[.:]([\w-]+)[.:](?:result|output)\b")
_INPUT = re.compile(r"\{\{\s*input\b")
_ROUND = re.compile(r"\{\{\s*loop:(current_item|current_value|current_index|total_iterations)((?:\.\w+)*)\s*\}\}")
_ROUND_PATHS = {
    "current_item": "item",
    "current_value": "item",
    "current_index": "index",
    "total_iterations": "loops.loop.total_items",
}
_TEMPLATE = re.compile(r"\{\{\s*(\w+)")
"""The first word of a template. One that is none of ours is a text for a tool, such as a template of its own."""
_ITERATION = re.compile(r"\biteration\b")
_SHARED = re.compile(r"\bstate\.(?!global\b|workspace\b|workflow\b|step\b|conversation\b|custom\b)")
_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)((?:\.[\w-]+)*)")
_DOLLAR_CODE = re.compile(r"\$(state\.[\w.]+\[.+)")
"""A place in a list of the loop's state, counted from 1 as in Lua."""
_ASSIGNMENT = re.compile(r"state\.([A-Za-z_]\w*)\s*=(?!=)\s*(.+?);?")
_BODY_OUTPUT = re.compile(r"\bbody_output\b")
_COMMENT = re.compile(r"--.*")
_LUA_WORDS = re.compile(r"\b(?:state\.|iteration\b|body_(?:output|success|error)\b)")
"""Words of older scripts. A text with one of them that is no expression is Lua."""
_MOST_ITERATIONS = 1_000
"""Of a loop with a condition that says no number itself."""
_WORKFLOW_HOOKS = ("setup", "on_start", "on_complete", "on_error", "on_step_start", "on_step_complete")
_STEP_HOOKS = ("before_execute", "after_execute", "on_complete", "on_error")
_FUNCTIONS = frozenset(
    (*_WORKFLOW_HOOKS, *_STEP_HOOKS, "execute", "condition", "conditions", "while_condition", "break_condition", "evaluate")
) | {"on_iteration_complete", "state_update"}
"""The keys of tables whose value may be a function."""
_COMPARISONS = {"equals": "==", "greater_than": ">", "less_than": "<"}


class Branch(NamedTuple):
    """A branch as the script wrote it, with the names of its steps in the definition."""

    name: str
    steps: list[str]


class BuiltWorkflow(msgspec.Struct):
    """A definition, and what the script is to be told or asked while it runs."""

    name: str
    """The name that the script gave it."""
    definition: Definition
    kind: str
    steps: dict[str, str]
    """The names that the script gave its steps, by the names in the definition, in the order of the script."""
    branches: list[Branch]
    hooks: dict[str, int]
    """The functions that are called at moments of the workflow, by the name of the hook."""
    step_hooks: dict[str, dict[str, int]]
    """The same for steps, by their names in the definition."""
    codes: list[str]
    """Lua code from texts."""
    is_inside: bool
    """Whether it runs inside of the script's step, since it asks the script or reads what the script has written."""
    inner: dict[str, BuiltWorkflow]
    """The workflows that it has as subworkflows, by the names of their definitions, innermost first."""


def stored_name(spec: Value) -> str | None:
    """Return the name of the workflow that a table stands for, or None if the table describes one."""
    return _text_of(cast("Table", spec), "stored") if isinstance(spec, Mapping) and "stored" in spec else None


def build_workflow(spec: Value, identity: Metadata | None = None, tools: Collection[str] | None = None) -> BuiltWorkflow:
    """Return the workflow that a script's table describes.

    Without an identity it has the name that the script gave it. With the identity of the script's execution it is ready to be
    stored and run. Stored definitions are shared by all workspaces, so the name has the script's workflow in it, and a digest of
    the workspace and of the definition: no script can take another workflow's name, and a changed table is another workflow.

    Raise ``InvalidDefinition`` for a table that describes none, and for a step that is not among the tools: the script would wait
    for it for ever.
    """
    _check_functions(spec, "the workflow", "")
    return _Build(identity, tools).workflow(spec)


class _Build:
    """Builds one definition."""

    def __init__(self, identity: Metadata | None, tools: Collection[str] | None) -> None:
        self._identity, self._tools = identity, None if tools is None else {*tools, FUNCTION}
        self._is_inside, self._asked_nodes, self._codes = False, 0, list[str]()
        self._is_asking_ahead = False
        """Whether the script is asked for the next round of a loop, at the end of one."""
        self._names: dict[str, str] = {}
        """The names of steps in the definition by those in the script, as the present branch sees them."""
        self._given: dict[str, str] = {}
        """The names in the script by those in the definition."""
        self._hooks: dict[str, dict[str, int]] = {}
        self._branches: list[tuple[str, list[Node]]] = []
        self._variables: dict[str, Value] = {}
        self.inner: dict[str, BuiltWorkflow] = {}

    def _named(self, definition: Definition) -> Definition:
        """Return the definition under the name that it is stored by."""
        if self._identity is None:
            return definition
        workspace, workflow = self._identity.workspace_id, self._identity.workflow_id
        digest = sha256(workspace.encode() + b"\0" + encode_definition(definition)).hexdigest()[:16]
        return msgspec.structs.replace(definition, name=f"{workflow}/{definition.name}@{digest}")

    def workflow(self, spec: Value) -> BuiltWorkflow:
        table = _table(spec, "a workflow")
        kind = _text_of(table, "kind", "sequential")
        if kind not in _NAMES:
            raise InvalidDefinition(f"a workflow is sequential, parallel, conditional or loop, not {kind!r}")
        given = self._definition(table, kind)
        definition = self._named(given)
        places = {id(place.node): place.name for place in Outline(definition)}
        hooks = {name: found for name in _WORKFLOW_HOOKS if (found := _function(table.get(name))) is not None}
        return BuiltWorkflow(
            given.name,
            definition,
            kind,
            self._steps_of(definition),
            [Branch(name, [places[id(node)] for node in nodes if id(node) in places]) for name, nodes in self._branches],
            hooks,
            self._hooks,
            self._codes,
            self._is_inside or bool(hooks),
            self.inner,
        )

    def _steps_of(self, definition: Definition) -> dict[str, str]:
        found: dict[str, str] = {}
        for place in Outline(definition):
            uses = getattr(place.node, "uses", "")
            is_ours = uses.startswith("stepwell.") or (uses == FUNCTION and place.name not in self._given)
            if isinstance(place.node, Action) and not is_ours:
                found[place.name] = self._given.get(place.name, place.name)
        return found

    def _definition(self, table: Table, kind: str) -> Definition:
        self._variables = {
            **_table(table.get("initial_state") or {}, "initial_state"),
            **_table(table.get("shared") or {}, "shared data"),
        }
        milliseconds = _number(table, "timeout_ms")
        before = self._steps(table["pre_steps"], table, "pre_steps") if table.get("pre_steps") else []
        nodes = getattr(self, f"_{kind}")(table)
        after = self._steps(table["post_steps"], table, "post_steps") if table.get("post_steps") else []
        return define(
            _text_of(table, "name", kind),
            *before,
            *nodes,
            *after,
            version=cast("int", table.get("version") or 1),
            description=_text_of(table, "description", ""),
            variables={name: self._translated(value) for name, value in self._variables.items()},
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
            nodes = self._branch(name, branch.get("steps", [branch]), table)
            branches[name] = nodes[0] if len(nodes) == 1 else sequence(*nodes)
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

    def _branch(self, name: str, steps: Value, around: Table) -> list[Node]:
        with self._names_of_branch():
            nodes = self._steps(steps, around, "the steps of a branch", name)
        self._branches.append((name, nodes))
        return nodes

    @contextmanager
    def _names_of_branch(self) -> Generator[None]:
        """Let a branch see its own steps first. After it, a name means the first step that has it."""
        before = dict(self._names)
        yield
        self._names = self._names | before

    def _conditional(self, table: Table) -> list[Node]:
        alternatives: list[Table] = []
        if "condition" in table:
            alternatives.append({"name": "then_branch", "condition": table["condition"], "steps": table.get("then_branch")})
        alternatives += [_table(each, "a branch") for each in _list(table.get("branches") or [], "branches")]
        takes_all = bool(table.get("execute_all_matching"))
        cases: list[tuple[list[Node], str, list[Node]]] = []
        last: list[Node] | None = None
        for number, branch in enumerate(alternatives, 1):
            if "condition" not in branch:
                raise InvalidDefinition("a branch of a conditional workflow has a condition")
            asks: list[Node] = []
            condition = self._condition(branch["condition"], asks)
            nodes = self._branch(_text_of(branch, "name", str(number)), branch.get("steps"), table)
            if condition == "true" and not takes_all:  # what follows is never chosen, which a definition must not have
                last = nodes
                break
            if condition != "false":
                cases.append((asks, condition, nodes))
        other = "else_branch" if table.get("else_branch") else "default_branch"
        if last is None and table.get(other):
            last = self._branch(other, table[other], table)
        # A choice without a match fails, and such a workflow does nothing.
        return self._choices(cases, [map_data(None)] if last is None else last, takes_all=takes_all)

    def _choices(self, cases: list[tuple[list[Node], str, list[Node]]], rest: list[Node], *, takes_all: bool) -> list[Node]:
        """Return the choice between some cases: the nodes that ask for a condition, the condition, and the branch of each.

        The script is asked for a condition only when those before it did not hold, unless all cases that hold are taken.
        """
        if takes_all and cases:
            asks = [node for asked, _, _ in cases for node in asked]
            return [*asks, choice(*(when(holds, *nodes) for _, holds, nodes in cases), otherwise(*rest), mode="all")]
        group: list[Case] = []
        for asks, holds, nodes in reversed(cases):
            group.insert(0, when(holds, *nodes))
            if asks:
                rest, group = [*asks, choice(*group, otherwise(*rest))], []
        return [choice(*group, otherwise(*rest))] if group else rest

    def _loop(self, table: Table) -> list[Node]:
        body = self._steps(table.get("body") or table.get("steps"), table, "body")
        body += self._updates(table.get("state_update"), body[-1])
        finished = _function(table.get("on_iteration_complete"))
        if finished is not None:
            self._ask(body, "iteration", function=finished)
        iterator = _table(table.get("iterator") or {}, "iterator")
        span = table.get("range") or iterator.get("range")
        items = table.get("collection", iterator.get("collection", UNSET))
        condition = table.get("while_condition") or iterator.get("while_condition") or table.get("condition")
        most, stop = _number(table, "max_iterations"), table.get("break_condition")
        more: dict[str, Any] = {
            "break_when": None if stop is None else self._condition(stop, body),
            "delay": (_number(table, "delay_ms") or 0) / 1000,
        }
        if span is not None:
            bounds = _table(span, "range")
            start, end, step = (self._whole(bounds, key, default) for key, default in (("start", 0), ("end", None), ("step", 1)))
            return [loop(*body, range=(start, end, step), max_iterations=None if most is None else int(most), **more)]
        if items is not UNSET:
            given: Value = [] if isinstance(items, Mapping) and not items else self._translated(items)
            return [loop(*body, items=given, max_iterations=None if most is None else int(most), **more)]
        if condition is not None:
            return self._while(condition, body, int(most or _MOST_ITERATIONS), more)
        if most is None:
            raise InvalidDefinition("a loop has a range, a collection, a condition or max_iterations")
        return [loop(*body, count=int(most), **more)]

    def _while(self, condition: Value, body: list[Node], most: int, more: dict[str, Any]) -> list[Node]:
        """Return a loop with a condition. If the script answers it, it is asked before the loop and after each round."""
        before: list[Node] = []
        holds = self._condition(condition, before)
        if not before:
            return [loop(*body, while_=holds, max_iterations=most, **more)]
        self._is_asking_ahead = True
        holds_again = self._condition(condition, body)
        self._is_asking_ahead = False
        body.append(set_variables({WHILE: f"{{{{ {holds_again} }}}}"}))
        first = set_variables({WHILE: f"{{{{ {holds} }}}}"})
        return [*before, first, loop(*body, while_=f"variables.{WHILE}", max_iterations=most, **more)]

    # Steps.

    def _steps(self, steps: Value, around: Table, what: str, branch: str = "") -> list[Node]:
        if isinstance(steps, Mapping) and steps:  # one step without a list around it
            return self._step(_table(cast("Value", steps), what), around, branch)
        found = [node for each in _list(steps, what) for node in self._step(_table(each, "a step"), around, branch)]
        if not found:
            raise InvalidDefinition(f"{what} is a list of at least one step")
        return found

    def _step(self, step: Table, around: Table, branch: str) -> list[Node]:
        """Return the node of a step, after those that ask the script for a part of its input."""
        execute = _function(step.get("execute"))
        kind = "custom" if execute is not None else "workflow" if "workflow" in step else "agent" if "agent" in step else "tool"
        kind = _text_of(step, "type", kind)
        given = step.get("input", step.get("parameters", step.get("params", UNSET)))
        retries, milliseconds = _number(step, "retry_count"), _number(step, "timeout_ms")
        strategy = step.get("error_strategy", around.get("error_strategy", "fail_fast"))
        retry = None if not retries else Retry(attempts=int(retries) + 1)
        if isinstance(strategy, Mapping):
            strategy, retry = "fail_fast", retry or _retry_of(cast("Table", strategy))
        if not isinstance(strategy, str) or strategy not in _STRATEGIES:
            raise InvalidDefinition(f"error_strategy is one of {', '.join(_STRATEGIES)}, not {_shown(strategy)}")
        nodes: list[Node] = []
        args: Value | UnsetType = given if given is UNSET else self._translated(given, nodes)
        name = self._name(_text_of(step, "name", ""), branch)
        hooks = {hook: found for hook in _STEP_HOOKS if (found := _function(step.get(hook))) is not None}
        if hooks:
            self._is_inside = True
            name = name or self._free("step")
            self._hooks[name] = hooks
        more: dict[str, Any] = {
            "name": name,
            "description": _text_of(step, "description", ""),
            "retry": retry,
            "timeout_seconds": None if milliseconds is None else milliseconds / 1000,
            "on_error": _STRATEGIES[strategy],
        }
        if kind in ("custom", "function") and execute is not None:
            self._is_inside = True
            more["name"] = name = name or self._free("step")
            self._given.setdefault(name, name)
            nodes.append(call(FUNCTION, {"as": "step", "function": execute, **({} if args is UNSET else {"input": args})}, **more))
            return nodes
        if kind == "workflow":
            return [*nodes, subworkflow(self._inner(step.get("workflow")), args, **more)]
        word = {"tool": "tool", "agent": "agent", "template": "template_id"}.get(kind)
        if word is None:
            raise InvalidDefinition(
                f"the type of a step is tool, agent, workflow, template, or custom with a function as its execute, not {kind!r}"
            )
        uses = _text_of(step, word)
        if uses == FUNCTION:  # with numbers and codes of its own choice
            raise InvalidDefinition(f"there is no step {uses!r}; a function is the execute of a step of type 'custom'")
        return [*nodes, call(uses, args, **more)]

    def _name(self, given: str, branch: str) -> str:
        """Return the name of a step in the definition. Branches may have steps of the same name, a definition may not."""
        name = given
        if given and branch and given in self._given:
            name = self._free(f"{branch}.{given}")
        if given:
            self._names[given] = name
            self._given[name] = given
        return name

    def _free(self, start: str) -> str:
        number, name = 1, start
        while name in self._given:
            number, name = number + 1, f"{start}-{number + 1}"
        return name

    def _inner(self, workflow: Value) -> str:
        if isinstance(workflow, str):
            return workflow
        spec = _table(workflow, "the workflow of a step").get("$workflow")
        stored = stored_name(spec)
        if stored is not None:
            return stored
        build = _Build(self._identity, self._tools)
        found = build.workflow(spec)
        self._is_inside |= found.is_inside
        self.inner |= {**found.inner, found.definition.name: found}
        return found.definition.name

    # Questions to the script.

    def _ask(self, nodes: list[Node], kind: str, **given: Value) -> str:
        """Add a node that asks the script, and return the path of the answer."""
        self._is_inside = True
        self._asked_nodes += 1
        name = f"function~{self._asked_nodes}"
        ahead: dict[str, Value] = {"ahead": True} if self._is_asking_ahead else {}
        nodes.append(call(FUNCTION, {"as": kind, **ahead, **given}, name=name))
        return _path("steps", name, "output")

    def _code(self, code: str) -> int:
        self._codes.append(code)
        return len(self._codes) - 1

    def _updates(self, update: Value, last: Node) -> list[Node]:
        """Return the nodes that set the variables of a loop after each round: from a table, a function, or from lines such as
        ``state.sum = body_output``, and any other Lua code.
        """
        if update is None:
            return []
        nodes: list[Node] = []
        function = _function(update)
        if function is not None:
            self._ask(nodes, "update", function=function)
            return nodes
        if not isinstance(update, str):
            table = _table(update, "state_update")
            return [set_variables({name: self._translated(value) for name, value in table.items()})]
        output = _path("steps", getattr(last, "name", "") or getattr(last, "uses", ""), "output")
        for line in filter(None, (_COMMENT.sub("", each).strip() for each in update.splitlines())):
            assignment = _ASSIGNMENT.fullmatch(line)
            value = "" if assignment is None else self._condition_text(_BODY_OUTPUT.sub(output, assignment[2]))
            if assignment is None or not _is_expression(value, assignment[2]):
                nodes.clear()
                self._ask(nodes, "update", code=self._code(update))
                break
            nodes.append(set_variables({assignment[1]: f"{{{{ {value} }}}}"}))
        return nodes

    # Conditions and templates.

    def _condition(self, given: Value, nodes: list[Node]) -> str:
        """Return a condition in the expression language, and add the nodes that ask the script for a part of it."""
        function = _function(given)
        if function is not None:
            return self._ask(nodes, "condition", function=function)
        if isinstance(given, bool):
            return "true" if given else "false"
        if isinstance(given, str):
            text = self._condition_text(given)
            if _LUA_WORDS.search(given) and not _is_expression(text, given):
                return self._ask(nodes, "condition", code=self._code(f"return {given}"))
            return text
        return self._condition_table(_table(given, "a condition"), nodes)

    def _condition_table(self, table: Table, nodes: list[Node]) -> str:
        kind = _text_of(table, "type")
        match kind:
            case "always" | "never":
                return self._condition_text(kind)
            case "and" | "or":
                parts = [f"({self._condition(each, nodes)})" for each in _list(table.get("conditions"), "the conditions")]
                if not parts:
                    raise InvalidDefinition(f"a condition {kind!r} has conditions")
                return f" {kind} ".join(parts)
            case "not":
                return f"not ({self._condition(table.get('condition'), nodes)})"
            case "step_output_equals" | "step_output_contains":
                return self._step_output(table, kind.removeprefix("step_output_"))
            case "custom" | "expression":
                own = table.get("evaluate", table.get("condition", table.get("expression")))
                if not isinstance(own, str) and _function(own) is None:
                    raise InvalidDefinition(f"a condition {kind!r} has a function as evaluate, or a text as expression")
                return self._condition(own, nodes)
            case _ if kind.removeprefix("shared_data_") in _COMPARISONS and kind.startswith("shared_data_"):
                return self._shared(table, kind.removeprefix("shared_data_"))
            case _:
                raise InvalidDefinition(f"there is no condition of type {kind!r}")

    def _step_output(self, table: Table, comparison: str) -> str:
        name = _text_of(table, "step_name", _text_of(table, "step", ""))
        path = _path("steps", self._names.get(name, name), "output")
        if comparison == "contains":
            part = table.get("substring", table.get("expected", table.get("value")))
            return f"contains({path} ?? '', {_literal(part)})"
        return f"{path} == {_literal(table.get('expected_output', table.get('expected', table.get('value'))))}"

    def _shared(self, table: Table, comparison: str) -> str:
        """Return a condition on the workflow's variables, or on what the script has put into State under the key."""
        key = _text_of(table, "key")
        path = _path("variables", key)
        if key not in self._variables:
            path, self._is_inside = f"({_path('state', 'workspace', key)} ?? null)", True
        holds = (
            f"{path} {_COMPARISONS[comparison]} {_literal(table.get('expected_value', table.get('expected', table.get('value'))))}"
        )
        return holds if comparison == "equals" else f"{path} != null and {holds}"

    def _condition_text(self, text: str) -> str:
        if text in ("always", "never"):
            return "true" if text == "always" else "false"
        if text.startswith("step:"):
            _, name, value = (*text.split(":", 2), "")[:3]
            return f"{_path('steps', self._names.get(name, name), 'output')} == {_literal(value)}"
        return _SHARED.sub("variables.", _ITERATION.sub("index", text))

    def _translated(self, value: Value, nodes: list[Node] | None = None, own: Collection[str] = ()) -> Value:
        """Return a value with the templates of older scripts in today's words; add the nodes that ask the script for a part.

        ``own`` are words that the tool gives a value to itself.
        """
        if isinstance(value, str):
            code = _DOLLAR_CODE.fullmatch(value)
            if code is not None and nodes is not None:
                return f"{{{{ {self._ask(nodes, 'value', code=self._code(f'return {code[1]}'))} }}}}"
            return self._translated_text(value, own)
        if _function(value) is not None:
            raise InvalidDefinition("a function cannot be a part of what a step gets; call it, or write a step with execute")
        if isinstance(value, Mapping):
            table = cast("Table", value)
            words = {word for key in ("variables", "context") for word in _words(table.get(key))}
            return {key: self._translated(each, nodes, words) for key, each in table.items()}
        if isinstance(value, list):
            return [self._translated(each, nodes, own) for each in cast("list[Value]", value)]
        return value

    def _translated_text(self, text: str, own: Collection[str] = ()) -> str:
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
                    step = name.removesuffix("_output")
                    return f"{{{{ {_path('steps', self._names.get(step, step), 'output')}{rest} }}}}"
        text = _STEP.sub(lambda found: "{{ " + _path("steps", self._names.get(found[1], found[1]), "output"), text)
        text = _ROUND.sub(lambda found: f"{{{{ {_ROUND_PATHS[found[1]]}{found[2]} }}}}", text)
        text = text if "input" in own else _INPUT.sub("{{ trigger.input", text)
        ours = ROOTS.keys() - own
        return _TEMPLATE.sub(lambda found: found[0] if found[1] in ours else "{{ '{{' }}" + found[0][2:], text)

    def _whole(self, table: Table, key: str, default: int | None) -> int | str:
        value = table.get(key, default)
        if isinstance(value, str):
            return self._translated_text(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise InvalidDefinition(f"{key} of a range is a whole number, not {_shown(value)}")
        return int(value)


def _is_expression(text: str, given: str) -> bool:
    """Return whether a text is an expression of ours. Lua counts places of a list from 1, so ``state.items[1]`` is Lua."""
    if "[" in given and _LUA_WORDS.search(given):
        return False
    try:
        parse_expression(text)
    except MalformedExpression:
        return False
    return True


def _words(value: Value) -> Collection[str]:
    return cast("Table", value).keys() if isinstance(value, Mapping) else ()


def _function(value: Value) -> int | None:
    """Return the number of a function of the script, or None for any other value."""
    found = cast("Table", value).get("$function") if isinstance(value, Mapping) else None
    return found if type(found) is int else None


def _check_functions(value: Value, where: str, key: str) -> None:
    """Raise ``InvalidDefinition`` for a function at a place where nothing would call it."""
    if _function(value) is not None and key not in _FUNCTIONS:
        raise InvalidDefinition(
            f"{where} is a function, which nothing would call there; functions are called as {', '.join(sorted(_FUNCTIONS))}. "
            "Write a step of type 'custom' with a function as its execute, or call the function in the script itself"
        )
    if isinstance(value, Mapping):
        for name, each in cast("Table", value).items():
            if name != "$workflow":  # it was checked when it was built
                _check_functions(each, f"{where}.{name}", name)
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[Value]", value), 1):
            _check_functions(each, f"{where}.{number}", key)


def _retry_of(strategy: Table) -> Retry:
    """Return the policy of a table such as ``{type = "retry", max_attempts = 3, backoff_ms = 1000}``."""
    if _text_of(strategy, "type", "retry") != "retry":
        raise InvalidDefinition("error_strategy is a text, or a table of type 'retry'")
    pause, factor = _number(strategy, "backoff_ms"), _number(strategy, "backoff_multiplier")
    return Retry(
        attempts=int(_number(strategy, "max_attempts") or 3),
        first_seconds=1.0 if pause is None else pause / 1000,
        factor=factor or 2.0,
    )


def _path(*segments: str) -> str:
    first, *rest = segments
    return first + "".join(f".{each}" if re.fullmatch(r"[A-Za-z_][\w-]*", each) else f"[{_literal(each)}]" for each in rest)


def _literal(value: Value) -> str:
    if isinstance(value, str) or value is None or isinstance(value, bool | int | float):
        return json.dumps(value, ensure_ascii=False)
    raise InvalidDefinition("a condition compares with a text, a number, true, false or nil")


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


def _shown(value: Value) -> str:
    return "nothing" if value is None else f"{value!r:.80}"
