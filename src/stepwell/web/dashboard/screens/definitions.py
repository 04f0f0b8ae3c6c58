"""Definitions: the workflows that can be started, their picture, source and versions, and the form that starts one."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET
from starlette.responses import RedirectResponse

from stepwell.errors import NotFound
from stepwell.flow.definition.document import parse, render
from stepwell.model.access import Role
from stepwell.model.ids import new_id
from stepwell.web.api.definitions import WorkflowView
from stepwell.web.dashboard.form_fields import field_fault, json_field
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen, segment
from stepwell.web.filters import filter_text

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS", "Field", "fields_of", "line_diff"]

TABS = ("graph", "source", "versions", "check")
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_SIMPLE = ("string", "integer", "number", "boolean")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of the form that starts a workflow."""

    name: str
    kind: str
    """``string``, ``integer``, ``number``, ``boolean``, or ``json`` for anything else."""
    description: str = ""
    is_required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()


def fields_of(schema: object) -> list[Field]:
    """Return the fields of an object's JSON Schema; none if the input is no object with known properties."""
    if not isinstance(schema, dict):
        return []
    found = cast("dict[str, Any]", schema)
    properties, required = found.get("properties"), found.get("required", [])
    if not isinstance(properties, dict):
        return []
    return [_field(name, each, name in required) for name, each in cast("dict[str, Any]", properties).items()]


def _field(name: str, schema: object, is_required: bool) -> Field:
    facts = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    kind: object = facts.get("type")
    default: object = facts.get("default", UNSET)
    simple = kind if isinstance(kind, str) and kind in _SIMPLE else "json"
    choices = [each for each in facts.get("enum", []) if isinstance(each, str)]
    shown = "" if default is UNSET else default if isinstance(default, str) and simple == "string" else _json(default)
    return Field(
        name=name,
        kind=simple,
        description=str(facts.get("description", "")),
        is_required=is_required,
        default=shown,
        choices=tuple(choices),
    )


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


async def _workflow(view: View) -> WorkflowView:
    name = view.path["name"]
    cursor: str | None = None
    while True:
        page = await view.get("list_workflows", limit=200, cursor=cursor)
        for each in page.items:
            if each.name == name:
                return each
        cursor = page.next_cursor
        if cursor is None:
            raise NotFound(f"there is no workflow {name!r} on this server or in the store")


async def show_definitions(view: View) -> Shown:
    """Show the workflows that can be started."""
    page = await view.get("list_workflows", cursor=view.query.get("cursor"), limit=50)
    return Shown(template="definitions.html", title="Definitions", values={"page": page})


async def show_definition(view: View) -> Shown:
    """Show a workflow: its picture, source and versions, and the form that starts it."""
    workflow = await _workflow(view)
    tab = view.query.get("tab", "graph")
    tab = tab if tab in TABS else "graph"
    values: dict[str, Any] = {
        "workflow": workflow,
        "tab": tab,
        "tabs": TABS if workflow.kind == "definition" else (),
        "fields": fields_of(workflow.input_schema),
        "recent": (await view.get("list_runs", filter=filter_text({"workflow": workflow.name}), limit=5)).items,
        "key": new_id(),
        "version": workflow.version,
        "is_store_wide": view.identity.workspace is None,
    }
    if workflow.kind == "definition":
        values |= await _stored(view, workflow, tab)
    crumbs = (Crumb(label="Definitions", url=view.url("/definitions")),)
    return Shown(template="definition.html", title=workflow.name, values=values, crumbs=crumbs)


async def _stored(view: View, workflow: WorkflowView, tab: str) -> dict[str, Any]:
    asked = view.query.get("version", "")
    version = int(asked) if asked.isdecimal() else workflow.version
    summaries = (await view.get("list_definitions", limit=200)).items
    versions = next((each.versions for each in summaries if each.name == workflow.name), (version,))
    values: dict[str, Any] = {"version": version, "versions": versions}
    if tab == "graph":
        drawn = await view.get("draw_definition", version=version)
        values["graph"] = _STYLE.sub("", drawn.decode())
    elif tab == "check":
        values["check"] = await view.get("check_definition", version=version)
    else:
        values["source"] = await _source(view, version)
        if tab == "versions":
            values["live_runs"] = await _live_runs(view, workflow.name)
        if tab == "versions" and (before := [each for each in versions if each < version]):
            old = await _source(view, before[-1])
            values["before"] = before[-1]
            values["diff"] = line_diff(old, values["source"])
    return values


async def _live_runs(view: View, name: str) -> dict[int, int]:
    """Return how many runs of each version have not ended, of the newest two hundred of each status."""
    found: Counter[int] = Counter()
    for status in ("PENDING", "RUNNING", "WAITING"):
        page = await view.get("list_runs", filter=filter_text({"workflow": name, "status": status}), limit=200)
        found.update(each.version for each in page.items)
    return dict(found)


async def _source(view: View, version: int) -> str:
    found = await view.get("get_definition", version=version)
    return render(parse(_json(found.document), source=found.name), "yaml")


def line_diff(old: str, new: str) -> list[tuple[str, str]]:
    """Return the lines of both texts, each with ``+``, ``-`` or a space."""
    lines = difflib.ndiff(old.splitlines(), new.splitlines())
    return [(line[0], line[2:]) for line in lines if line[0] != "?"]


async def start_form(view: View) -> Response:
    """Start a workflow with the input of the form."""
    form = await view.form()
    workflow = await _workflow(view)
    fields = fields_of(workflow.input_schema)
    value = json_field(form, "input")
    if value is UNSET and fields:
        given = {each.name: _typed(form, each) for each in fields}
        value = {name: each for name, each in given.items() if each is not UNSET} or UNSET
    body: dict[str, Any] = {"workflow": workflow.name}
    if value is not UNSET:
        body["input"] = value
    execution_id = form.get("execution_id", "").strip() or form.get("key", "").strip()  # sent twice, it starts once
    started = await view.act("put_run", {"execution_id": execution_id or new_id()}, body=body, reason=form.get("reason"))
    return RedirectResponse(view.url(f"/runs/{segment(started.execution_id)}", done="started"), 303)


def _typed(form: dict[str, str], field: Field) -> Any:
    text = form.get(f"field.{field.name}", "")
    if field.kind == "boolean":
        return text == "on" if text or field.is_required or field.default else UNSET
    if not text.strip():
        return UNSET
    if field.kind == "string":
        return text
    value = json_field({field.name: text}, field.name)
    if field.kind in ("integer", "number") and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise field_fault(field.name, f"{text!r} is no {field.kind}")
    return value


async def pause_definition_form(view: View) -> Response:
    """Let no version of a workflow be started."""
    form = await view.form()
    await view.act("pause_definition", reason=form.get("reason"))
    return RedirectResponse(view.url(f"/definitions/{segment(view.path['name'])}", done="paused"), 303)


async def activate_definition_form(view: View) -> Response:
    """Let a workflow be started again."""
    form = await view.form()
    await view.act("activate_definition", reason=form.get("reason"))
    return RedirectResponse(view.url(f"/definitions/{segment(view.path['name'])}", done="resumed"), 303)


SCREENS = (
    screen("GET /definitions", show_definitions),
    screen("GET /definitions/{name}", show_definition, rail="/definitions"),
    screen("POST /definitions/{name}/start", start_form, Role.OPERATOR, rail="/definitions"),
    screen("POST /definitions/{name}/pause", pause_definition_form, Role.ADMIN, rail="/definitions"),
    screen("POST /definitions/{name}/activate", activate_definition_form, Role.ADMIN, rail="/definitions"),
)
