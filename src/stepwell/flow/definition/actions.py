"""Build the nodes that run code: steps, subworkflows, scripts and built-in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from stepwell.duration import Span
from stepwell.errors import InvalidDefinition
from stepwell.flow.definition.builder import Steplike, as_seconds, as_step, as_value, step_name, workflow_name
from stepwell.flow.definition.builtin_steps import BUILTINS
from stepwell.flow.definition.node import ContextRule, Definition, OnError, ScriptNode, StepNode, Subworkflow
from stepwell.flow.retry import Retry
from stepwell.model.ids import Id, id_text
from stepwell.model.value import Value

__all__ = [
    "call",
    "cancel_scope",
    "http_request",
    "log",
    "map_data",
    "script",
    "set_variables",
    "subworkflow",
    "throw",
    "validate",
]


def call(
    step: str | Callable[..., Any],
    args: Value | UnsetType = UNSET,
    *,
    name: str = "",
    description: str = "",
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    on_error: OnError = "fail",
    compensate: Steplike | None = None,
    key: Id = "",
    summary: str = "",
) -> StepNode:
    """Return a node that calls a step.

    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    - ``step``: a decorated step function, or a step's name.
    - ``args``: its input, which may contain templates; by default the output of the node before it.
    - ``retry``, ``timeout_seconds``: the policy and the time limit of one attempt; by default the step's own.
    - ``on_error``: after the last attempt ``"fail"``, or ``"continue"`` with the output None; ``"retry"`` uses the default
      policy.
    - ``compensate``: the step that undoes it if the execution or an enclosing scope fails or is cancelled.
    - ``key``: a key of your own for the call, which may contain templates: the same key again in the execution gives the result
      of the first call that completed, and another step or other arguments under it fail with ``Conflict``.
    - ``summary``: one line about the call for people who look at a run, which may contain templates.

    Raise ``InvalidDefinition`` if ``step`` is not a step, or another function is registered under its name, and ``InvalidInput``
    for arguments that cannot be stored.
    """
    return StepNode(
        uses=step_name(step),
        args=as_value(args, "args"),
        name=name,
        description=description,
        retry=retry,
        timeout_seconds=as_seconds(timeout_seconds, "timeout_seconds"),
        on_error=on_error,
        compensate=as_step(compensate),
        key=id_text(key),
        summary=summary,
    )


def subworkflow(
    workflow: str | Definition | Callable[..., Any],
    args: Value | UnsetType = UNSET,
    *,
    version: int | None = None,
    context: ContextRule = "inherit",
    detached: bool = False,
    name: str = "",
    description: str = "",
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    on_error: OnError = "fail",
    compensate: Steplike | None = None,
) -> Subworkflow:
    """Return a node that runs another workflow as a child execution.

    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    - ``workflow``: a definition, a decorated function, or a name.
    - ``args``: its input, which may contain templates.
    - ``version``: by default the newest active version when the child starts.
    - ``context``: ``"inherit"``, ``"isolate"``, ``"copy"`` or ``"share"``, see ``Subworkflow``.
    - ``detached``: continue at once, with the child's id as output.
    - ``retry``, ``timeout_seconds``, ``on_error``, ``compensate``: as for ``call``.

    Raise ``InvalidDefinition`` if ``workflow`` is not a workflow, or another function
    is registered under its name.
    """
    return Subworkflow(
        workflow=workflow_name(workflow),
        args=as_value(args, "args"),
        version=version,
        context=context,
        is_detached=detached,
        name=name,
        description=description,
        retry=retry,
        timeout_seconds=as_seconds(timeout_seconds, "timeout_seconds"),
        on_error=on_error,
        compensate=as_step(compensate),
    )


def script(
    code: str,
    args: Value | UnsetType = UNSET,
    *,
    language: str = "lua",
    name: str = "",
    description: str = "",
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    on_error: OnError = "fail",
    compensate: Steplike | None = None,
) -> ScriptNode:
    """Return a node that runs a script in a sandbox.

    - ``name``, ``description``: the name of the node for templates and pictures, and a text for people.
    - ``code``: the script.
    - ``args``: its input, which may contain templates.
    - ``language``: the language; a process without an engine for it fails the node with ``NoScriptEngine``.
    - ``retry``, ``timeout_seconds``, ``on_error``, ``compensate``: as for ``call``.
    """
    return ScriptNode(
        code=code,
        args=as_value(args, "args"),
        language=language,
        name=name,
        description=description,
        retry=retry,
        timeout_seconds=as_seconds(timeout_seconds, "timeout_seconds"),
        on_error=on_error,
        compensate=as_step(compensate),
    )


def set_variables(variables: Mapping[str, Value] | None = None, /, *, name: str = "", **more: Value) -> StepNode:
    """Return a node that sets variables to values, which may contain templates.

    - ``variables``: the values by name, as one mapping.
    - ``name``: the name of the node; a variable called ``name`` is set by the mapping.
    - ``more``: the values by name, as keyword arguments.

    Raise ``InvalidDefinition`` for no mapping.
    """
    given: object = variables
    if given is not None and not isinstance(given, Mapping):
        raise InvalidDefinition(f"set_variables takes a mapping of values by name, not {type(given).__name__}")
    return call(BUILTINS["set_variables"].uses, {**(variables or {}), **more}, name=name)


def map_data(value: Value, *, name: str = "") -> StepNode:
    """Return a node whose output is the value with its templates filled.

    - ``value``: the value, which may contain templates.
    - ``name``: the name of the node for templates and pictures.
    """
    return call(BUILTINS["map_data"].uses, value, name=name)


def log(message: str, *, level: str = "info", data: Value | UnsetType = UNSET, name: str = "") -> StepNode:
    """Return a node that writes a message to the execution's log.

    - ``name``: the name of the node, for templates and pictures.
    - ``message``: the text, which may contain templates.
    - ``level``: ``debug``, ``info``, ``warning`` or ``error``.
    - ``data``: a value to write with it.
    """
    return call(BUILTINS["log"].uses, _given(message=message, level=level, data=data), name=name)


def throw(message: str, *, kind: str | UnsetType = UNSET, data: Value | UnsetType = UNSET, name: str = "") -> StepNode:
    """Return a node that fails with a message.

    - ``message``: the text, which may contain templates.
    - ``name``: the name of the node, for templates and pictures.
    - ``kind``: the kind of error that retries and handlers see.
    - ``data``: a value that goes with the error.
    """
    return call(BUILTINS["throw"].uses, _given(message=message, kind=kind, data=data), name=name)


def validate(value: Value, schema: Mapping[str, Value], *, name: str = "") -> StepNode:
    """Return a node that fails unless a value matches a JSON Schema; its output is the value.

    - ``name``: the name of the node, for templates and pictures.
    - ``value``: the value, which may contain templates.
    - ``schema``: the JSON Schema.
    """
    return call(BUILTINS["validate"].uses, {"value": value, "schema": dict(schema)}, name=name)


def http_request(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | UnsetType = UNSET,
    secret_headers: Mapping[str, str] | UnsetType = UNSET,
    query: Mapping[str, Value] | UnsetType = UNSET,
    json: Value | UnsetType = UNSET,
    body: str | UnsetType = UNSET,
    expect: list[int] | UnsetType = UNSET,
    max_bytes: int | UnsetType = UNSET,
    name: str = "",
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    on_error: OnError = "fail",
) -> StepNode:
    """Return a node that calls an HTTP server; its output has ``status``, ``headers`` and ``body``.

    - ``url``, ``method``, ``query``, ``headers``: the request; they may contain templates.
    - ``name``: the name of the node, for templates and pictures.
    - ``retry``, ``timeout_seconds``, ``on_error``: as for ``call``.
    - ``secret_headers``: headers that appear in no record and no message, and are not sent to another host after a redirect.
    - ``json``, ``body``: the request's body, as a value or as a text.
    - ``expect``: the status codes that count as success.
    - ``max_bytes``: the largest body to accept, 1 to 100,000,000; by default 200,000.
    """
    args = _given(
        url=url,
        method=method,
        headers=headers if isinstance(headers, UnsetType) else dict(headers),
        secret_headers=secret_headers if isinstance(secret_headers, UnsetType) else dict(secret_headers),
        query=query if isinstance(query, UnsetType) else dict(query),
        json=json,
        body=body,
        expect=expect,
        max_bytes=max_bytes,
    )
    uses = BUILTINS["http_request"].uses
    return call(uses, args, name=name, retry=retry, timeout_seconds=timeout_seconds, on_error=on_error)


def cancel_scope(scope: str, *, name: str = "") -> StepNode:
    """Return a node that cancels a scope with everything inside it.

    - ``scope``: the name of the scope; ``root`` is the execution.
    - ``name``: the name of the node, for templates and pictures.
    """
    return call(BUILTINS["cancel_scope"].uses, {"scope": scope}, name=name)


def _given(**arguments: Value | UnsetType) -> dict[str, Value]:
    return {key: value for key, value in arguments.items() if value is not UNSET}
