"""Functions that build what is carried out by code: steps, subworkflows, scripts and the built-in steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from stepwell.duration import Span
from stepwell.flow.definition.builder import Steplike, as_seconds, as_step, as_value, step_name
from stepwell.flow.definition.builtin_steps import BUILTINS
from stepwell.flow.definition.node import ContextRule, Definition, OnError, ScriptNode, StepNode, Subworkflow
from stepwell.flow.retry import Retry
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
) -> StepNode:
    """A call of a step with its input, which may have templates in it."""
    return StepNode(
        uses=step_name(step),
        args=as_value(args, "args"),
        name=name,
        description=description,
        retry=retry,
        timeout_seconds=as_seconds(timeout_seconds, "timeout_seconds"),
        on_error=on_error,
        compensate=as_step(compensate),
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
    """Another workflow as a child of this execution."""
    return Subworkflow(
        workflow=step_name(workflow),
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
    """A piece of code in a sandboxed language."""
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


def set_variables(variables: Mapping[str, Value] | None = None, /, **more: Value) -> StepNode:
    """Give variables new values, which may have templates in them."""
    return call(BUILTINS["set_variables"].uses, {**(variables or {}), **more})


def map_data(value: Value, *, name: str = "") -> StepNode:
    """Make a value out of others: the output is the value with its templates filled."""
    return call(BUILTINS["map_data"].uses, value, name=name)


def log(message: str, *, level: str = "info", data: Value | UnsetType = UNSET, name: str = "") -> StepNode:
    """Write a message to the execution's log."""
    return call(BUILTINS["log"].uses, _given(message=message, level=level, data=data), name=name)


def throw(message: str, *, kind: str | UnsetType = UNSET, data: Value | UnsetType = UNSET, name: str = "") -> StepNode:
    """Fail with a message."""
    return call(BUILTINS["throw"].uses, _given(message=message, kind=kind, data=data), name=name)


def validate(value: Value, schema: Mapping[str, Value], *, name: str = "") -> StepNode:
    """Fail unless a value fits a JSON Schema; the output is the value."""
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
    name: str = "",
    retry: Retry | None = None,
    timeout_seconds: Span | None = None,
    on_error: OnError = "fail",
) -> StepNode:
    """Call a server; the output has ``status``, ``headers`` and ``body``."""
    args = _given(
        url=url,
        method=method,
        headers=headers if isinstance(headers, UnsetType) else dict(headers),
        secret_headers=secret_headers if isinstance(secret_headers, UnsetType) else dict(secret_headers),
        query=query if isinstance(query, UnsetType) else dict(query),
        json=json,
        body=body,
        expect=expect,
    )
    uses = BUILTINS["http_request"].uses
    return call(uses, args, name=name, retry=retry, timeout_seconds=timeout_seconds, on_error=on_error)


def cancel_scope(scope: str, *, name: str = "") -> StepNode:
    """Cancel the scope of this name with everything inside it; ``root`` is the execution."""
    return call(BUILTINS["cancel_scope"].uses, {"scope": scope}, name=name)


def _given(**arguments: Value | UnsetType) -> dict[str, Value]:
    return {key: value for key, value in arguments.items() if value is not UNSET}
