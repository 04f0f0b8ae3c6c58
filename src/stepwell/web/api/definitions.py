"""Routes of the stored definitions of declared workflows, which belong to all of the store."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from stepwell.flow.definition.document import parse, render
from stepwell.model.access import Role
from stepwell.model.value import Value, decode
from stepwell.runtime.definitions import DefinitionSummary
from stepwell.web.paging import PageQuery, sorted_page
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES"]


class PutDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A definition: the document as a JSON object, or as YAML or JSON text."""

    document: dict[str, Value] | str


class DefinitionView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored definition."""

    name: str
    version: int
    document: Value


class VersionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version to read."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


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
    api_route("GET /definitions", list_definitions, Page[DefinitionSummary], query=PageQuery),
    api_route("GET /definitions/{name}", get_definition, DefinitionView, query=VersionQuery),
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
