"""Streams of events: one hub follows the store for all clients, and each client reads at its own pace.

The hub asks for the newest receipts of all followed runs in one read, several times a second, and once a second for the newest runs
of each followed workspace. It holds no queue per client: a client that falls behind reads older commits from the store, and one
that does not read at all is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from stepwell.app.awaited import AsyncStepwell
from stepwell.errors import NotFound, StepwellError
from stepwell.model.receipt import Receipt
from stepwell.model.status import FINAL
from stepwell.state.history import ExecutionSummary
from stepwell.web.hiding import Hide, hider_of, without_secrets
from stepwell.web.problem import HttpProblem
from stepwell.web.settings import HttpLimits

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["Event", "EventHub", "EventResponse"]

log = logging.getLogger(__name__)

_RUN_SECONDS, _WORKSPACE_SECONDS = 0.2, 1.0
_PAGE = 200
_KEPT = 1_000
"""The changes of a workspace that a slow client may be behind before it gets all of the newest runs again."""
_AT_ONCE = 20
_MOST_TEXTS = 1_000
_RIGHTS_SECONDS = 5.0
_SPREAD_SECONDS = 0.0005
"""The delay between the clients of a workspace when a change is sent: a thousand at once would delay all requests."""
_MOST_SPREAD_SECONDS = 0.5


_Key = tuple[str, str | None, str | None]
"""A workspace with the status and the workflow of the runs that are followed."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    event: str
    """``snapshot``, ``commit``, ``run``, ``gone``, ``reset`` or ``end``."""
    id: int | None = None
    """Its place in the stream: resume after it with ``Last-Event-ID`` or ``after``."""
    data: Any = None


def commit_event(receipt: Receipt, hide: Hide) -> Event:
    """Return the event of a commit of a run."""
    data = {
        "execution_id": receipt.execution_id,
        "revision": receipt.revision,
        "committed_at": receipt.committed_at,
        "digest": receipt.digest,
        "mutations": without_secrets(list(receipt.mutations), hide),
    }
    return Event(event="commit", id=receipt.revision, data=data)


class _Followed:
    """A run or workspace that clients follow: they wait for its next change."""

    def __init__(self) -> None:
        self.clients = 0
        self.state: Any = None
        """The digest of a run, or the newest runs of a workspace."""
        self.events: deque[Event] = deque(maxlen=_KEPT)
        """Of a workspace: its last changes, shared by all clients."""
        self.count = 0
        """How many changes there were since somebody follows."""
        self.last_id = 0
        self.changed = asyncio.Event()

    def change(self, state: Any, events: Sequence[Event] = ()) -> None:
        """Keep what is new, and wake the clients."""
        self.state = state
        for event in events:
            # A commit may become visible after a later one: the ids of a stream never go back.
            self.last_id = max(self.last_id, event.id or 0)
            self.events.append(msgspec.structs.replace(event, id=self.last_id))
        self.count += len(events)
        self.changed.set()
        self.changed = asyncio.Event()

    def since(self, count: int) -> list[Event] | None:
        """Return the changes after the first so many; None if they are no longer kept."""
        missed = self.count - count
        return None if missed > len(self.events) else list(islice(reversed(self.events), missed))[::-1]


class EventHub:
    """Follows runs and workspaces on behalf of all clients of one server."""

    def __init__(self, well: AsyncStepwell, limits: HttpLimits) -> None:
        self._well, self._limits = well, limits
        self._runs: dict[str, _Followed] = {}
        self._workspaces: dict[_Key, _Followed] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._texts: dict[int, tuple[Event, str]] = {}
        self._rights: dict[object, tuple[float, bool]] = {}
        self.clients = 0

    def check_room(self) -> None:
        """Raise ``HttpProblem`` (503) if no further stream can be opened."""
        if self.clients >= self._limits.event_clients:
            raise HttpProblem("busy", f"{self.clients:,} streams of events are open, the most that this server takes")

    def text_of(self, event: Event) -> str:
        """Return an event as a server-sent event; the same one is encoded once for all its clients."""
        known = self._texts.get(id(event))
        if known is not None and known[0] is event:  # the id of an event that is gone may be another's
            return known[1]
        number = "" if event.id is None else f"id: {event.id}\n"
        text = f"event: {event.event}\n{number}data: {msgspec.json.encode(event.data).decode()}\n\n"
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        self._texts[id(event)] = event, text
        return text

    async def may_go_on(self, who: object, is_allowed: Callable[[], Awaitable[bool]]) -> bool:
        """Return whether a caller may still read; streams with the same credentials share the answer for some seconds.

        - ``who``: what tells the caller's credentials from others.
        """
        now, known = monotonic(), self._rights.get(who)
        if known is not None and now - known[0] < _RIGHTS_SECONDS:
            return known[1]
        allowed = await is_allowed()
        if len(self._rights) >= _MOST_TEXTS:
            self._rights.clear()
        self._rights[who] = now, allowed
        return allowed

    async def close(self) -> None:
        """Stop following."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run_events(self, execution_id: str, after: int | None, snapshot: Any) -> AsyncIterator[Event]:
        """Yield what happens to a run until it ends.

        - ``after``: the revision to resume after; None to begin with a snapshot.
        - ``snapshot``: the run as it is now, with its ``revision``.
        """
        followed = self._follow(self._runs, execution_id, self._poll_runs, "runs")
        try:
            hide = await hider_of(self._well, execution_id)
            if after is None:
                yield Event(event="snapshot", id=snapshot.revision, data=without_secrets(snapshot, hide))
            seen: int = snapshot.revision if after is None else after
            while True:
                changed = followed.changed
                receipts = await self._well.receipts(execution_id, after=seen, limit=_PAGE)
                # Receipts may be archived, and the client may have seen another store.
                has_gap = bool(receipts) and receipts[0].revision != seen + 1
                for receipt in () if has_gap else receipts:
                    seen = receipt.revision
                    yield commit_event(receipt, hide)
                if len(receipts) == _PAGE and not has_gap:
                    continue
                summary = await self._well.executions.get(execution_id)
                if has_gap or summary.revision < seen or (summary.revision > seen and not receipts):
                    seen = summary.revision
                    yield Event(event="reset", id=seen, data=summary)
                if summary.revision == seen and summary.status in FINAL:
                    yield Event(event="end", id=seen, data={"status": summary.status})
                    return
                if summary.revision == seen:
                    await changed.wait()
        finally:
            self._leave(self._runs, execution_id, followed)

    async def workspace_events(
        self, workspace: str, status: str | None, workflow: str | None, after: int | None
    ) -> AsyncIterator[Event]:
        """Yield the runs of a workspace that change, among the newest two hundred that match, and those that match no longer.

        - ``after``: the id to resume after; None to begin with a snapshot.
        """
        key = workspace, status, workflow
        followed = self._follow(self._workspaces, key, self._poll_workspaces, "workspaces")
        try:
            page = await self._first_page(key, followed)
            seen = followed.count
            if after is None:
                yield Event(event="snapshot", id=followed.last_id, data=page)
            else:
                for event in _resumed(page, after, followed.last_id):
                    yield event
            while True:
                changed = followed.changed
                fresh, seen = followed.since(seen), followed.count
                if fresh is None:
                    yield Event(event="reset", id=followed.last_id, data=followed.state)
                for event in fresh or ():
                    yield event
                await changed.wait()
                spread = min(followed.clients * _SPREAD_SECONDS, _MOST_SPREAD_SECONDS)
                await asyncio.sleep(random() * spread)  # noqa: S311 - only spreads load
        finally:
            self._leave(self._workspaces, key, followed)

    async def _first_page(self, key: _Key, followed: _Followed) -> list[ExecutionSummary]:
        if followed.state is None:
            page = await self._page(key)
            if followed.state is None:  # else another client was first: changes are counted from its page
                followed.state, followed.last_id = page, _newest(page)
        return followed.state

    def _follow(self, those: dict[Any, _Followed], key: Any, poll: Any, name: str) -> _Followed:
        followed = those.setdefault(key, _Followed())
        followed.clients += 1
        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = asyncio.get_running_loop().create_task(poll())
        return followed

    def _leave(self, those: dict[Any, _Followed], key: Any, followed: _Followed) -> None:
        followed.clients -= 1
        if followed.clients == 0 and those.get(key) is followed:
            del those[key]

    async def _poll_runs(self) -> None:
        while self._runs:
            await asyncio.sleep(_RUN_SECONDS)
            try:
                digests = await self._well.executions.digests(list(self._runs))
            except StepwellError as error:
                log.warning("the runs that clients follow could not be read, trying again: %s", error)
                continue
            for execution_id, followed in self._runs.items():
                if followed.state != (now := digests.get(execution_id)):
                    followed.change(now)

    async def _poll_workspaces(self) -> None:
        while self._workspaces:
            await asyncio.sleep(_WORKSPACE_SECONDS)
            for key, followed in list(self._workspaces.items()):
                try:
                    page, before = await self._page(key), followed.state
                    events = [] if before is None else await self._changes(before, page)
                except StepwellError as error:
                    log.warning("the runs of workspace %r could not be read, trying again: %s", key[0], error)
                    continue
                if before is not None and page != before:
                    followed.change(page, events)

    async def _changes(self, before: list[ExecutionSummary], page: list[ExecutionSummary]) -> list[Event]:
        """Return what changed between two pages of the newest runs that match, in order."""
        known = {each.execution_id: each for each in before}
        events = [_run_event(each) for each in page if known.pop(each.execution_id, None) != each]
        is_full = len(page) == _PAGE
        left = [each for each in known.values() if not (is_full and each.created_at <= page[-1].created_at)]
        for first in range(0, len(left), _AT_ONCE):  # not all at once: other requests read, too
            for found in await asyncio.gather(*map(self._left, left[first : first + _AT_ONCE])):
                events += found
        return sorted(events, key=lambda event: event.id or 0)

    async def _left(self, before: ExecutionSummary) -> list[Event]:
        """Return what became of a run that no longer matches: it changed, or was deleted."""
        try:
            now = await self._well.executions.get(before.execution_id)
        except NotFound:
            return [Event(event="gone", id=_moment(before), data={"execution_id": before.execution_id})]
        return [] if now == before else [_run_event(now)]

    async def _page(self, key: _Key) -> list[ExecutionSummary]:
        workspace, status, workflow = key
        return await self._well.executions.list(workspace=workspace, status=status, workflow=workflow, limit=_PAGE)


def _moment(summary: ExecutionSummary) -> int:
    return round(summary.updated_at.timestamp() * 1000)


def _newest(page: list[ExecutionSummary]) -> int:
    return max((_moment(each) for each in page), default=0)


def _run_event(summary: ExecutionSummary) -> Event:
    return Event(event="run", id=_moment(summary), data=summary)


def _resumed(page: list[ExecutionSummary], after: int, last_id: int) -> list[Event]:
    """Return the changes of a page after an id; a reset if there may be more."""
    fresh = sorted((_run_event(each) for each in page if _moment(each) > after), key=lambda event: event.id or 0)
    return fresh if len(fresh) < _PAGE else [Event(event="reset", id=last_id, data=page)]


class EventResponse:
    """Sends events as they come, as ``text/event-stream`` or as JSON lines; ends when the client is gone or does not read.

    - ``who``: what tells the caller's credentials from others, so that their streams share one check; None: not shared.
    - ``is_allowed``: whether the caller may still read, asked as often as heartbeats are sent: a revoked token ends its streams.
    - ``on_drop``: called when a client is dropped because it does not read.
    """

    def __init__(
        self,
        hub: EventHub,
        events: AsyncIterator[Event],
        limits: HttpLimits,
        *,
        is_lines: bool,
        who: object = None,
        is_allowed: Callable[[], Awaitable[bool]],
        on_drop: Callable[[], object],
    ) -> None:
        self._hub, self._events, self._limits, self._is_lines, self._on_drop = hub, events, limits, is_lines, on_drop
        self._who = self if who is None else who
        self._is_allowed, self._checked_at = is_allowed, monotonic()
        self.status_code = 200
        self.headers: dict[str, str] = {
            "content-type": "application/x-ndjson" if is_lines else "text/event-stream; charset=utf-8",
            "cache-control": "no-store, no-transform",
            "x-accel-buffering": "no",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Send the stream."""
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        self._hub.clients += 1
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.clients -= 1
            for task in (sending, leaving):
                task.cancel()
            results = await asyncio.gather(sending, leaving, return_exceptions=True)
        error = results[0]
        if isinstance(error, Exception) and not isinstance(error, TimeoutError):
            raise error

    async def _send_all(self, send: Send) -> None:
        async def push(text: str, *, more: bool = True) -> None:
            async with asyncio.timeout(self._limits.event_send_seconds):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

        try:
            await push("" if self._is_lines else "retry: 2000\n\n")
            nexts = asyncio.ensure_future(anext(self._events))
            try:
                while True:
                    done, _ = await asyncio.wait((nexts,), timeout=self._limits.heartbeat_seconds)
                    if not await self._may_go_on():
                        await push(
                            self._text(Event(event="end", data={"reason": "the token was revoked or has expired"})), more=False
                        )
                        return
                    if not done:
                        await push("\n" if self._is_lines else ": heartbeat\n\n")
                        continue
                    await push(self._text(nexts.result()))
                    nexts = asyncio.ensure_future(anext(self._events))
            except StopAsyncIteration:
                await push("", more=False)
            finally:
                nexts.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration, StepwellError):
                    await nexts
        except TimeoutError:
            self._on_drop()
            log.warning(
                "a client of a stream of events read nothing for %g seconds, and was dropped", self._limits.event_send_seconds
            )
            raise
        finally:
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

    async def _may_go_on(self) -> bool:
        now = monotonic()
        if now - self._checked_at < self._limits.heartbeat_seconds:
            return True
        self._checked_at = now
        return await self._hub.may_go_on(self._who, self._is_allowed)

    def _text(self, event: Event) -> str:
        if self._is_lines:
            return msgspec.json.encode(event).decode() + "\n"
        return self._hub.text_of(event)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
