"""The OpenAPI 3.1 document of the API, made from the route table and the types of its bodies and replies."""

from __future__ import annotations

from functools import cache
from typing import Any, cast, get_args, get_origin

import msgspec

import stepwell
from stepwell.web.chosen_fields import choosable_fields
from stepwell.web.field_docs import field_docs
from stepwell.web.parameter_docs import PARAMETERS, PATH_PARAMETERS
from stepwell.web.problem import KINDS
from stepwell.web.route import NoQuery, Page, Route, RouteTable

__all__ = ["document_of", "types_of"]

_REF = "#/components/schemas/{name}"
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "code", "retryable", "errors", "request_id"],
    "properties": {
        "type": {"type": "string", "description": "The address of the description of this kind of error."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened, and what to do."},
        "instance": {"type": "string"},
        "code": {"type": "string"},
        "retryable": {"type": "boolean", "description": "Whether the same request may succeed later."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["pointer", "detail", "code"],
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}, "code": {"type": "string"}},
            },
        },
        "request_id": {"type": "string"},
    },
}
_IDS = frozenset(("execution_id", "item_id", "fingerprint", "delivery_id"))
"""Fields of replies that name one thing of the workspace, under the name of the parameter that takes it."""
_ERRORS = (400, 401, 403, 404, 406, 408, 409, 410, 412, 413, 415, 422, 428, 429, 500, 503)


def types_of(route: Route) -> list[Any]:
    """Return the types that a route's query, body and reply are made of."""
    return [
        each
        for each in (route.query, route.body, route.reply, *route.statuses.values())
        if each is not None and each is not NoQuery
    ]


@cache
def document_of(table: RouteTable[Route], root: str) -> dict[str, Any]:
    """Return the document of a table of routes.

    - ``root``: the path under which the application is mounted.
    """
    types = list({str(each): each for route in table.routes for each in types_of(route)}.values())
    found, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = {str(each): schema for each, schema in zip(types, found, strict=True)}
    paths: dict[str, Any] = {}
    for route in table.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, components, _links(route, table))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stepwell",
            "version": stepwell.__version__,
            "description": "Durable workflows and their state. The workspace of a request comes from its token.",
        },
        "servers": [{"url": f"{root}/api/v1"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "Created by: stepwell token create"}},
            "schemas": {**components, "Problem": _PROBLEM},
            "responses": {str(status): _problem(status) for status in _ERRORS},
        },
    }


def _problem(status: int) -> dict[str, Any]:
    titles = sorted(kind.title for kind in KINDS.values() if kind.status == status)
    schema = {"$ref": _REF.format(name="Problem")}
    return {"description": " ".join(titles) or "An error.", "content": {"application/problem+json": {"schema": schema}}}


def _links(route: Route, table: RouteTable[Route]) -> dict[str, Any]:
    """Return the operations that take what a reply names, or what a ``PUT`` made."""
    is_page = get_origin(route.reply) is Page
    kind: Any = get_args(route.reply)[0] if is_page else route.reply
    fields = set(getattr(kind, "__struct_fields__", ())) & _IDS - set(route.parameters)
    links: dict[str, Any] = {}
    for each in table.routes:
        names = set(each.parameters)
        if not names or each is route:
            continue
        if names <= fields:
            where = "$response.body#/items/0/" if is_page else "$response.body#/"
        elif route.method == "PUT" and names == set(route.parameters) and each.path.startswith(route.path):
            where = "$request.path."
        else:
            continue
        links[each.name] = {"operationId": each.name, "parameters": {name: where + name for name in each.parameters}}
    return links


def _operation(route: Route, schemas: dict[str, Any], components: dict[str, Any], links: dict[str, Any]) -> dict[str, Any]:
    replies = {route.status: route.reply, **route.statuses}
    responses: dict[str, Any] = {str(status): _success(route, reply, schemas) for status, reply in sorted(replies.items())}
    for success in responses.values() if links else ():
        success["links"] = links
    responses |= {str(status): {"$ref": f"#/components/responses/{status}"} for status in _ERRORS}
    if route.method == "GET":
        responses["304"] = {"description": "The resource is still at the revision of If-None-Match."}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": _parameters(route, schemas, components),
        "responses": responses,
        "x-role": "none" if route.role is None else str(route.role),
        "x-store-wide": route.is_store_wide,
    }
    if route.role is None:
        operation["security"] = []
    if route.body is not None:
        content: dict[str, Any] = {"schema": schemas[str(route.body)]}
        if route.example:
            content["examples"] = {"example": {"value": route.example}}
        operation["requestBody"] = {"required": not route.is_body_optional, "content": {"application/json": content}}
    return operation


def _success(route: Route, reply: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": route.summary + "."}
    content: dict[str, Any] = {}
    if route.media != "application/json":
        content[route.media] = {"schema": {"type": "string"}}
    if reply is not None:
        content["application/json"] = {"schema": schemas[str(reply)]}
    return {**found, "content": content} if content else found


def _parameters(route: Route, schemas: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1, "maxLength": 512}
    found = [_parameter(name, "path", text, is_required=True) for name in route.parameters]
    if route.query is not NoQuery:
        name, about = cast("str", schemas[str(route.query)]["$ref"]).rpartition("/")[2], field_docs(route.query)
        schema = components[name]
        for field, kind in schema["properties"].items():
            is_required = field in schema.get("required", ())
            found.append(_parameter(field, "query", kind, is_required=is_required, about=about.get(field)))
    if route.role is not None:
        found.append(_parameter("workspace", "query", text))
    if choosable := choosable_fields(route):
        found.append({**_parameter("fields", "query", {"type": "string"}), "example": ",".join(choosable)})
    if route.method == "POST":
        key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
        found.append(_parameter("Idempotency-Key", "header", key))
    etag = {"type": "string", "pattern": r'^("[0-9a-zA-Z]+"|\*)$'}
    for header in route.conditions:
        schema = etag if header == "If-Match" else {"type": "string", "enum": ["*"]}
        found.append(_parameter(header, "header", schema, is_required=route.needs_if_match))
    return found


def _parameter(
    name: str, where: str, schema: dict[str, Any], *, is_required: bool = False, about: str | None = None
) -> dict[str, Any]:
    """Return a parameter with its meaning and an example.

    - ``about``: the docstring of its field, which wins over what is known of its name.
    """
    known = (PATH_PARAMETERS if where == "path" else PARAMETERS)[name.lower().replace("-", "_")]
    example = _fitting(known.example, schema)
    return {
        "name": name,
        "in": where,
        "required": is_required,
        "schema": schema,
        "description": (about or known.about).replace("``", "`"),
        "example": example,
    }


def _fitting(example: object, schema: dict[str, Any]) -> object:
    """Return an example that a schema takes: the same name may be a number here and a choice there."""
    kinds: list[dict[str, Any]] = [schema, *schema.get("anyOf", ())]
    choices = next((each["enum"] for each in kinds if "enum" in each), None)
    if choices is not None and example not in choices:
        return choices[0]
    is_number = any(each.get("type") in ("integer", "number") for each in kinds)
    if is_number and not isinstance(example, int):
        return next((each["minimum"] for each in kinds if "minimum" in each), 1)
    return example
