"""Routes of workflows: those that can be started, and the stored definitions, which belong to all of the store."""

from __future__ import annotations

import asyncio
import inspect
import typing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stepwell.flow.definition.document import parse, render
from stepwell.flow.definition.findings import shown_path
from stepwell.flow.drawing import draw_svg
from stepwell.flow.function import Workflow, registered, registered_names
from stepwell.kernel.soundness.explorer import explore
from stepwell.model.access import Role
from stepwell.model.value import Value, decode
from stepwell.runtime.definitions import DefinitionSummary
from stepwell.web.paging import CountedQuery, sorted_page
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES"]


class PutDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A definition: the document as a JSON object, or as YAML or JSON text."""

    document: dict[str, Value] | str
    """A JSON object, or YAML or JSON text."""


class DefinitionView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored definition."""

    name: str
    version: int
    document: Value


class VersionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version to read."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """The version; null: the newest."""


class WorkflowView(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that can be started here."""

    name: str
    kind: Literal["function", "definition"]
    version: int
    description: str = ""
    status: str = "ACTIVE"
    input_schema: Value = None
    """A JSON Schema of the input; null if anything is taken, or if the types have none."""


class CheckProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a definition."""

    where: str
    message: str


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of the checker about a definition."""

    problems: list[CheckProblem]
    states: int
    """How many states were explored."""
    is_complete: bool
    """Whether every state was seen."""


_STATES = 20_000
"""How many states a check over HTTP explores: about a second."""


async def list_workflows(call: Call) -> Reply:
    """Return the workflows that can be started here: functions of this server, and stored definitions."""
    found = {name: _function_view(registered(name)) for name in registered_names()}
    for each in await call.well.definitions.list():
        definition = await call.well.definitions.get(each.name)
        found[each.name] = WorkflowView(
            name=each.name,
            kind="definition",
            version=each.version,
            description=definition.description,
            status=str(each.status),
            input_schema=definition.input_schema,
        )
    return await sorted_page(call, list(found.values()), lambda each: each.name, "workflows")


def _function_view(workflow: Workflow[..., Any]) -> WorkflowView:
    doc = inspect.getdoc(workflow.function) or ""
    return WorkflowView(
        name=workflow.name,
        kind="function",
        version=workflow.version,
        description=doc.partition("\n")[0],
        input_schema=_schema_of(workflow),
    )


def _schema_of(workflow: Workflow[..., Any]) -> Value:
    """Return the JSON Schema of a function's input; types that have none take anything."""
    parameters = inspect.signature(workflow.function).parameters
    try:
        hints = typing.get_type_hints(workflow.function)
    except (NameError, TypeError):
        hints = {}
    schemas = {name: _type_schema(hints.get(name, Any), parameter) for name, parameter in parameters.items()}
    if not schemas:
        return None
    if len(schemas) == 1:
        [(name, schema)] = schemas.items()
        return {"title": name, **schema}
    required: list[Value] = [name for name, each in parameters.items() if each.default is inspect.Parameter.empty]
    return {"type": "object", "properties": dict(schemas), "required": required}


def _type_schema(kind: Any, parameter: inspect.Parameter) -> dict[str, Value]:
    try:
        schema = msgspec.json.schema(kind)
        if parameter.default is not inspect.Parameter.empty:
            schema["default"] = msgspec.to_builtins(parameter.default)
    except (TypeError, ValueError):  # a type of another library
        return {}
    return schema


async def check_definition(call: Call) -> Reply:
    """Check a stored definition: whether every state that it can reach ends properly."""
    definition = await call.well.definitions.get(call.path["name"], call.query.version)
    found = await asyncio.to_thread(explore, definition, max_states=_STATES)
    problems = [CheckProblem(where=shown_path(each.path), message=each.message) for each in found.findings(definition)]
    return Reply(CheckResult(problems=problems, states=found.states, is_complete=found.is_complete))


async def draw_definition(call: Call) -> Reply:
    """Return a picture of a definition."""
    definition = await call.well.definitions.get(call.path["name"], call.query.version)
    return Reply(draw_svg(definition).encode(), etag=f"v{definition.version}")


async def list_definitions(call: Call) -> Reply:
    """Return the stored definitions."""
    return await sorted_page(call, await call.well.definitions.list(), lambda each: each.name, "definitions")


async def get_definition(call: Call) -> Reply:
    """Return a definition."""
    found = await call.well.definitions.get(call.path["name"], call.query.version)
    view = DefinitionView(name=found.name, version=found.version, document=decode(render(found, "json").encode()))
    return Reply(view, etag=f"v{found.version}")


async def put_definition(call: Call) -> Reply:
    """Store a definition."""
    given = call.body.document
    # Parsed here: the well would take a text without a line break for the path of a file of this server.
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    definition = parse(text, source="the document")
    if definition.name != call.path["name"]:
        raise HttpProblem("invalid", f"the document defines {definition.name!r}, and the address names {call.path['name']!r}")
    stored = await call.well.definitions.put(definition)
    return Reply(DefinitionView(name=stored.name, version=stored.version, document=decode(render(stored, "json").encode())))


async def pause_definition(call: Call) -> Reply:
    """Let no version of a workflow be started."""
    await call.well.definitions.pause(call.path["name"])
    return Reply()


async def activate_definition(call: Call) -> Reply:
    """Let a workflow be started again."""
    await call.well.definitions.activate(call.path["name"])
    return Reply()


ROUTES = (
    api_route("GET /workflows", list_workflows, Page[WorkflowView], query=CountedQuery),
    api_route("GET /definitions", list_definitions, Page[DefinitionSummary], query=CountedQuery),
    api_route("GET /definitions/{name}", get_definition, DefinitionView, query=VersionQuery),
    api_route("GET /definitions/{name}/drawing", draw_definition, query=VersionQuery, media="image/svg+xml"),
    api_route("GET /definitions/{name}/check", check_definition, CheckResult, query=VersionQuery),
    api_route(
        "PUT /definitions/{name}",
        put_definition,
        DefinitionView,
        Role.ADMIN,
        body=PutDefinition,
        is_store_wide=True,
        example={"document": {"name": "ship", "version": 1, "do": [{"wait": "1s"}]}},
    ),
    api_route("POST /definitions/{name}/pause", pause_definition, None, Role.ADMIN, is_store_wide=True),
    api_route("POST /definitions/{name}/activate", activate_definition, None, Role.ADMIN, is_store_wide=True),
)
