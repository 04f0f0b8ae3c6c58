"""Schedules: when workflows start by themselves, in plain words, and pausing, running and backfilling them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import UNSET
from starlette.responses import RedirectResponse

from stepwell.model.access import Role
from stepwell.queue.item import ItemSummary
from stepwell.queue.schedule import ScheduleSummary
from stepwell.web.dashboard.cron_words import cron_words
from stepwell.web.dashboard.form_fields import field_fault, json_field, moment_field, span_ms_field
from stepwell.web.dashboard.rendering import readable_ms
from stepwell.web.dashboard.screen import Crumb, Shown, View, screen, segment
from stepwell.web.filters import filter_text

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]


_OUTCOMES = 20


class Tick(NamedTuple):
    """A moment at which a schedule fires."""

    at: datetime
    local: str
    """On the clocks of the schedule's zone."""
    has_clock_change: bool
    """Whether the clocks of the zone changed since the tick before."""


def words_of(schedule: ScheduleSummary) -> str:
    """Return when a schedule fires, in plain words."""
    if schedule.cron is not None:
        return cron_words(schedule.cron)
    if schedule.every_seconds is not None:
        return f"every {readable_ms(schedule.every_seconds * 1000)}"
    return "once"


def ticks_of(moments: list[datetime], zone: str) -> list[Tick]:
    """Return moments with what the clocks of a zone show."""
    where = ZoneInfo(zone)
    found: list[Tick] = []
    before: timedelta | None = None
    for at in moments:
        local = at.astimezone(where)
        offset = local.utcoffset()
        found.append(Tick(at, f"{local:%a %d %b %Y %H:%M:%S} {local.tzname()}", before is not None and offset != before))
        before = offset
    return found


async def show_schedules(view: View) -> Shown:
    """Show the schedules of the workspace."""
    page = await view.get("list_schedules", cursor=view.query.get("cursor"), limit=50)
    values = {"page": page, "words": words_of}
    return Shown(template="schedules.html", title="Schedules", values=values)


async def show_schedule(view: View) -> Shown:
    """Show a schedule: when it fires next, and its actions."""
    schedule = await view.get("get_schedule")
    moments: list[datetime] = [] if schedule.is_paused else (await view.get("list_next_ticks", count=5)).items
    values: dict[str, Any] = {
        "schedule": schedule,
        "words": words_of(schedule),
        "ticks": ticks_of(moments, schedule.zone),
        "outcomes": await _outcomes(view, schedule),
        "span": None,
    }
    if view.query.get("start") and view.query.get("end"):
        start, end = moment_field(view.query, "start"), moment_field(view.query, "end")
        found = (await view.get("list_ticks", start=start.isoformat(), end=end.isoformat())).items
        values["span"] = {"count": len(found), "ticks": ticks_of(found[:5], schedule.zone), "start": start, "end": end}
    crumbs = (Crumb(label="Schedules", url=view.url("/schedules")),)
    return Shown(template="schedule.html", title=schedule.name, values=values, crumbs=crumbs)


async def _outcomes(view: View, schedule: ScheduleSummary) -> list[ItemSummary]:
    """Return the last items that a schedule enqueued, the oldest first, among the newest of its workflow and queue."""
    terms = filter_text({"workflow": schedule.workflow_id, "queue": schedule.queue})
    items: list[ItemSummary] = (await view.get("list_items", filter=terms, limit=200)).items
    own = [each for each in items if (each.key or "").startswith(f"schedule:{schedule.name}:")]
    return own[:_OUTCOMES][::-1]


async def show_new_schedule(view: View) -> Shown:
    """Show the form that makes a schedule."""
    values = {"workflows": (await view.get("list_workflows", limit=200)).items}
    crumbs = (Crumb(label="Schedules", url=view.url("/schedules")),)
    return Shown(template="schedule_new.html", title="New schedule", values=values, crumbs=crumbs)


async def put_schedule_form(view: View) -> Response:
    """Make a schedule."""
    form = await view.form()
    name = form.get("name", "").strip()
    if not name:
        raise field_fault("name", "give the schedule a name")
    value = json_field(form, "input")
    body: dict[str, Any] = {"workflow": form.get("workflow", ""), "catch_up": form.get("catch_up", "none")}
    if value is not UNSET:
        body["input"] = value
    if form.get("cron", "").strip():
        body |= {"cron": form["cron"].strip(), "zone": form.get("zone", "").strip() or "UTC"}
    every = span_ms_field(form, "every")
    if every is not None:
        body["every_ms"] = every
    await view.act("put_schedule", {"name": name}, body=body, reason=form.get("reason"), expected=0)
    return RedirectResponse(view.url(f"/schedules/{segment(name)}", done="saved"), 303)


async def pause_schedule_form(view: View) -> Response:
    """Fire no more ticks."""
    form = await view.form()
    await view.act("pause_schedule", reason=form.get("reason"))
    return _back(view, "paused")


async def resume_schedule_form(view: View) -> Response:
    """Fire ticks again."""
    form = await view.form()
    await view.act("resume_schedule", reason=form.get("reason"))
    return _back(view, "resumed")


async def run_schedule_form(view: View) -> Response:
    """Enqueue one item now."""
    form = await view.form()
    await view.act("run_schedule", reason=form.get("reason"))
    return _back(view, "enqueued")


async def backfill_form(view: View) -> Response:
    """Enqueue an item for every tick of a span."""
    form = await view.form()
    body = {"start": moment_field(form, "start").isoformat(), "end": moment_field(form, "end").isoformat()}
    await view.act("backfill_schedule", body=body, reason=form.get("reason"))
    return _back(view, "enqueued")


async def delete_schedule_form(view: View) -> Response:
    """Delete a schedule."""
    form = await view.form()
    await view.act("delete_schedule", reason=form.get("reason"))
    return RedirectResponse(view.url("/schedules", done="removed"), 303)


def _back(view: View, done: str) -> Response:
    return RedirectResponse(view.url(f"/schedules/{segment(view.path['name'])}", done=done), 303)


SCREENS = (
    screen("GET /schedules", show_schedules),
    screen("GET /new_schedule", show_new_schedule, Role.OPERATOR, rail="/schedules"),
    screen("POST /new_schedule", put_schedule_form, Role.OPERATOR, rail="/schedules"),
    screen("GET /schedules/{name}", show_schedule, rail="/schedules"),
    screen("POST /schedules/{name}/pause", pause_schedule_form, Role.OPERATOR, rail="/schedules"),
    screen("POST /schedules/{name}/resume", resume_schedule_form, Role.OPERATOR, rail="/schedules"),
    screen("POST /schedules/{name}/run", run_schedule_form, Role.OPERATOR, rail="/schedules"),
    screen("POST /schedules/{name}/backfill", backfill_form, Role.OPERATOR, rail="/schedules"),
    screen("POST /schedules/{name}/delete", delete_schedule_form, Role.OPERATOR, rail="/schedules"),
)
