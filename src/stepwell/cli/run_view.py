"""Show a run: events from its receipts, a bar chart of its steps, what it waits for, and a live view while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from stepwell.cli.output import Terminal, json_text, printable, shortened
from stepwell.errors import ExecutionCancelled, ExecutionFailed
from stepwell.model.receipt import Receipt
from stepwell.model.status import FINAL
from stepwell.model.value import Value
from stepwell.runtime.progress import Offer, Waiting

if TYPE_CHECKING:
    from stepwell.app.blocking import Stepwell
    from stepwell.runtime.progress import Progress

__all__ = [
    "RunEvent",
    "Ticker",
    "bars",
    "event_line",
    "events_of",
    "follow",
    "offer_text",
    "span_text",
    "waiting_text",
]


class RunEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An event of a run, with the names that the JSON output has."""

    event: str
    """``created``, ``status``, ``step``, ``attempt``, ``waiting``, ``variable``, ``loop``, ``cancelled``, ``reopened``,
    ``restored`` or ``result``.
    """
    execution_id: str
    revision: int
    at: datetime
    name: str = ""
    status: str = ""
    duration_ms: int | None = None
    detail: Value = None
    summary: str = ""
    """One line about the call of a step."""

    @property
    def began_at(self) -> datetime:
        """The start time of a step."""
        return self.at - timedelta(milliseconds=self.duration_ms or 0)


def without_secrets(well: Stepwell, event: RunEvent, secrets: Sequence[str]) -> RunEvent:
    """Return an event as it may be shown: a variable's name may be that of a secret."""
    shown = well.redact({event.name: event.detail}, secrets=secrets)
    return msgspec.structs.replace(event, detail=shown[event.name])


def events_of(receipt: Receipt) -> Iterator[RunEvent]:
    """Return the events of one commit in order."""
    for mutation in receipt.mutations:
        told = _told(mutation)
        if told is not None:
            at = told.pop("at", receipt.committed_at)
            yield RunEvent(execution_id=receipt.execution_id, revision=receipt.revision, at=at, **told)


def _told(mutation: dict[str, Any]) -> dict[str, Any] | None:
    match mutation:
        case {"type": "create", "metadata": {"workflow_id": workflow, "version": version}}:
            return {"event": "created", "name": workflow, "detail": {"version": version}}
        case {"type": "set_status", "status": status}:
            return {"event": "status", "status": status}
        case {"type": "record_step", "name": name, "step": step}:
            return _step(name, step)
        case {"type": "add_token" | "update_token", "token_id": name, "token": {"node": node, "value": value}}:
            return _token(name, node, value)
        case {"type": "set_variable", "name": name, "value": value}:
            return {"event": "variable", "name": name, "detail": value}
        case {"type": "set_loop", "loop_id": name, "loop": loop}:
            return {"event": "loop", "name": name, "detail": loop}
        case {"type": "cancel_scope", "scope_id": name}:
            return {"event": "cancelled", "name": name}
        case {"type": "reopen_step", "name": name}:
            return {"event": "reopened", "name": name}
        case {"type": "restore", "source": source, "revision": revision}:
            return {"event": "restored", "name": source, "detail": {"revision": revision}}
        case {"type": "set_result", "value": value}:
            return {"event": "result", "detail": value}
        case _:
            return None


def _step(name: str, step: dict[str, Any]) -> dict[str, Any]:
    return {
        "event": "step",
        "name": name,
        "status": step["status"],
        "duration_ms": step["duration_ms"],
        "detail": step["output"],
        "summary": step.get("summary") or "",
        "at": datetime.fromisoformat(step["executed_at"]),
    }


def _token(name: str, node: str, value: Any) -> dict[str, Any] | None:
    match value:
        case {"attempt": int(), "error": _}:
            return {"event": "attempt", "name": name, "detail": value}
        case {"due_ms": _} | {"execution_id": _} | {"title": _}:
            return {"event": "waiting", "name": name, "status": node, "detail": value}
        case _:
            return None


_MOST_ROWS = 60
_NAME_WIDTH = 40


def bars(
    steps: Sequence[RunEvent],
    *,
    width: int,
    began_at: datetime | None = None,
    paint: Callable[[RunEvent, str], str] = lambda _, text: text,
    block: str = "█",
    label: Callable[[RunEvent], str] = lambda _: "",
) -> list[str]:
    """Return the rows of the bar chart. A long run shows its first and last steps and the number of those between."""
    if not steps:
        return []
    start = min([each.began_at for each in steps] + ([began_at] if began_at is not None else []))
    total = max((max(each.at for each in steps) - start).total_seconds(), 0.001)
    names = min(max(len(printable(_named(each))) for each in steps), _NAME_WIDTH)
    labels = max(len(label(each)) for each in steps)
    room = max(width - names - labels - 14, 10)

    def row(each: RunEvent) -> str:
        first, last = (round((at - start).total_seconds() / total * room) for at in (each.began_at, each.at))
        first = min(first, room - 1)
        bar = " " * first + block * max(last - first, 1)
        name = shortened(printable(_named(each)), names).ljust(names)
        told = f"{label(each)} ".rjust(labels + 1) if labels else ""
        return f"{name}  {told}{paint(each, bar)}{' ' * (room - len(bar))} {span_text((each.duration_ms or 0) / 1000):>8}"

    if len(steps) <= _MOST_ROWS:
        return [row(each) for each in steps]
    half = _MOST_ROWS // 2
    between = f"... {len(steps) - 2 * half} more steps ..."
    return [*(row(each) for each in steps[:half]), between, *(row(each) for each in steps[-half:])]


def _named(event: RunEvent) -> str:
    return f"{event.name} · {event.summary}" if event.summary else event.name


def span_text(seconds: float) -> str:
    """Return a duration as people read it."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def waiting_text(waiting: Waiting) -> str:
    """Return what the run waits for, and until when."""
    until = "" if waiting.until is None else f" until {waiting.until:%Y-%m-%d %H:%M:%S} UTC"
    match waiting.kind:
        case "retry":
            told = f" ({waiting.summary})" if waiting.summary else ""
            return f"another attempt at {waiting.name}{told}{until}, after: {waiting.error}"
        case "step":
            return f"a worker that has step {waiting.name}"
        case kind:
            return f"{kind} {waiting.name}".strip() + until


def offer_text(execution_id: str, offer: Offer) -> str:
    """Return an answer that the run accepts now, with the command that sends it."""
    title = f" ({offer.title})" if offer.title else ""
    people = f" by {', '.join(offer.approvers)}" if offer.approvers else ""
    value = "JSON"
    if offer.kind == "approval":
        value = quote(json_text({"is_approved": True, "by": offer.approvers[0] if offer.approvers else None}))
    return f"{offer.kind} {offer.name}{title}{people}: stepwell signal {quote(execution_id)} {quote(offer.name)} {value}"


_LOOK_SECONDS = 0.2
_BAR = 20
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def follow(well: Stepwell, execution_id: str, *, timeout: float | None = None, ticker: Ticker | None = None) -> Iterator[RunEvent]:
    """Iterate over the events of a run from its first commit until it has ended. Raise ``TimeoutError`` after the timeout."""
    run, seen = well.run(execution_id), -1
    ends = None if timeout is None else monotonic() + timeout
    while True:
        # Read the status before the receipts, so that the receipts of an ended run are complete.
        status = run.status()
        for receipt in well.receipts(execution_id, after=seen):
            seen = receipt.revision
            yield from events_of(receipt)
        if status in FINAL:
            return
        if ticker is not None:
            ticker.look(execution_id, run.progress())
        left = _LOOK_SECONDS if ends is None else min(_LOOK_SECONDS, ends - monotonic())
        if left <= 0:
            told = f"execution {execution_id!r} is still {status}; it is kept, and continues on a worker that has its workflow"
            raise TimeoutError(f"{told}: stepwell watch {quote(execution_id)}")
        with suppress(TimeoutError, ExecutionFailed, ExecutionCancelled):
            run.result(timeout=left)


class Ticker:
    """Writes events to standard error, on a terminal with a status line below them."""

    def __init__(self, screen: Terminal) -> None:
        self._screen, self._began, self._frame = screen, monotonic(), 0
        self._waits: tuple[str, ...] = ()

    def report(self, event: RunEvent) -> None:
        """Write an event."""
        self._say(event_line(event, self._screen))

    def look(self, execution_id: str, progress: Progress) -> None:
        """Write what the run waits for, and how it is answered, if that changed; redraw the status line."""
        waits = (
            *(f"waits for {waiting_text(each)}" for each in progress.waiting),
            *(f"takes {offer_text(execution_id, each)}" for each in progress.offers),
        )
        for each in waits:
            if each not in self._waits:
                self._say(f"{' ' * 8}  {printable(each)}")
        self._waits = waits
        if self._screen.is_live:
            self._draw(progress)

    def _say(self, line: str) -> None:
        if line and not self._screen.is_json:
            self._screen.note(line)

    def _draw(self, progress: Progress) -> None:
        self._frame += 1
        is_wide = (self._screen.err.encoding or "").lower().startswith("utf")
        spin = (_SPINNER if is_wide else "-\\|/")[self._frame % (len(_SPINNER) if is_wide else 4)]
        part = "" if progress.percent is None else f" {_bar(progress.percent, is_wide)} {progress.percent:.0f} %"
        doing = f", {', '.join(progress.current)}" if progress.current else ""
        done = f"{progress.done}" if progress.total is None else f"{progress.done}/{progress.total}"
        text = f"{progress.status.lower()}, {done} done{doing}, {span_text(monotonic() - self._began)}"
        line = shortened(f"{spin}{part} {printable(text)}", self._screen.width - 1)
        self._screen.show_status(self._screen.paint("cyan", line, self._screen.err))

    def clear(self) -> None:
        """Erase the status line."""
        self._screen.clear_status()


def _bar(percent: float, is_wide: bool) -> str:
    full, empty = ("█", "░") if is_wide else ("#", ".")
    filled = round(_BAR * min(max(percent, 0), 100) / 100)
    return full * filled + empty * (_BAR - filled)


def event_line(event: RunEvent, screen: Terminal) -> str:
    """Return an event as one line; empty for an event without news."""
    err = screen.err
    what = _in_words(event)
    if not what:
        return ""
    status = f"  {screen.paint_status(event.status, err)}" if event.event in ("step", "status") else ""
    took = f"  {span_text(event.duration_ms / 1000)}" if event.duration_ms else ""
    return f"{screen.paint('dim', f'{event.at:%H:%M:%S}', err)}  {printable(what)}{status}{took}"


def _in_words(event: RunEvent) -> str:
    match event.event:
        case "created":
            return f"created {event.execution_id} of {event.name}"
        case "status":
            return "" if event.status == "PENDING" else "run"
        case "step":
            return _named(event)
        case "attempt":
            error: dict[str, Any] = event.detail.get("error") or {}
            return f"{event.name} attempt {event.detail['attempt']} failed: {error.get('kind')}: {error.get('message')}"
        case "variable":
            return f"{event.name} = {shortened(json_text(event.detail), 60)}"
        case "cancelled":
            return f"scope {event.name} cancelled"
        case "reopened":
            return f"{event.name} will be retried"
        case "restored":
            return f"state of {event.name} at revision {event.detail['revision']}"
        case _:
            return ""
