"""The stream of events of a page: one for each page that is open, which only says that something changed.

The page fetches its changed parts again, and those are drawn with its caller's rights. Changes are sent at most twice a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

from stepwell.web.api.runs import STREAM_FIELDS
from stepwell.web.authentication import credentials_of
from stepwell.web.dashboard.screen import View, screen
from stepwell.web.events import Event, EventResponse
from stepwell.web.filters import parse_filter

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS", "changes"]

_PAUSE_SECONDS = 0.5


async def changes(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Yield ``changed`` for what happens, at most twice a second, and ``end`` when nothing more will.

    What happens within the pause is one ``changed``.
    """
    latest: list[Event] = []
    arrived = asyncio.Event()

    async def listen() -> None:
        try:
            async for event in events:
                latest[:] = [event]  # a snapshot, too: what changed since the page was drawn, or while it was cut off
                arrived.set()
        finally:
            await cast("Any", events).aclose()

    listening = asyncio.ensure_future(listen())
    listening.add_done_callback(lambda _: arrived.set())
    try:
        while True:
            if not latest and not listening.done():
                arrived.clear()
                await arrived.wait()
            if not latest:
                await listening  # it is over, or raises the error that ended it
                return
            event = latest.pop()
            yield Event(event="changed", id=event.id)
            if event.event == "end":
                yield Event(event="end", id=event.id)
                return
            await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def follow(view: View) -> Response:
    """Tell an open page that something changed.

    The query names a run, with the revision that the page shows, or a filter of runs.
    """
    hub = view.server.hub
    hub.check_room()
    execution_id = view.query.get("run")
    if execution_id:
        summary = await view.get("get_run", {"execution_id": execution_id})
        after = int(view.query["after"]) if view.query.get("after", "").isdecimal() else summary.revision
        events = hub.run_events(execution_id, after, None)
    else:
        terms = parse_filter(view.query.get("filter", ""), STREAM_FIELDS)
        events = hub.workspace_events(view.workspace, terms.get("status"), terms.get("workflow"), None)

    async def is_allowed() -> bool:
        return await view.server.authenticator.identity_of(view.request) == view.identity

    on_drop = view.server.metrics.dropped.inc
    credentials = credentials_of(view.request)
    who = None if credentials is None else (credentials, view.identity)
    found = EventResponse(hub, changes(events), view.server.limits, is_lines=False, who=who, is_allowed=is_allowed, on_drop=on_drop)
    return cast("Response", found)


SCREENS = (screen("GET /live", follow, is_page=False),)
