"""Following a run while it happens: its new receipts as events, and a line that says where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, Any

from stepwell.cli.event import RunEvent, events_of
from stepwell.cli.plaintext import json_text, printable, shortened
from stepwell.cli.screen import Screen
from stepwell.cli.timeline import span_text
from stepwell.cli.waiting import waiting_text
from stepwell.errors import ExecutionCancelled, ExecutionFailed
from stepwell.model.status import FINAL

if TYPE_CHECKING:
    from stepwell.app import Stepwell
    from stepwell.runtime.progress import Progress

__all__ = ["Ticker", "event_line", "follow"]

_LOOK_SECONDS = 0.2
_BAR = 20
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def follow(well: Stepwell, execution_id: str, *, timeout: float | None = None, ticker: Ticker | None = None) -> Iterator[RunEvent]:
    """The events of a run from its first commit on, as they come, until it has ended; ``TimeoutError`` if that takes too long."""
    run, seen = well.run(execution_id), -1
    ends = None if timeout is None else monotonic() + timeout
    while True:
        # Asked first: what it ended with is then among the receipts that are read next.
        status = run.status()
        for receipt in well.receipts(execution_id, after=seen):
            seen = receipt.revision
            yield from events_of(receipt)
        if status in FINAL:
            return
        if ticker is not None:
            ticker.look(run.progress())
        left = _LOOK_SECONDS if ends is None else min(_LOOK_SECONDS, ends - monotonic())
        if left <= 0:
            told = f"execution {execution_id!r} is still {status}; it is kept, and goes on where a worker has it"
            raise TimeoutError(f"{told}: stepwell watch {quote(execution_id)}")
        with suppress(TimeoutError, ExecutionFailed, ExecutionCancelled):
            run.result(timeout=left)


class Ticker:
    """Tells on standard error what happens; on a terminal, with a line under it that is written over."""

    def __init__(self, screen: Screen) -> None:
        self._screen, self._began, self._frame = screen, monotonic(), 0
        self._waits: tuple[str, ...] = ()
        self._is_drawn = False

    def tell(self, event: RunEvent) -> None:
        """Say an event."""
        self._say(event_line(event, self._screen))

    def look(self, progress: Progress) -> None:
        """Say what the run waits for, if that is new, and draw the line anew."""
        waits = tuple(waiting_text(each) for each in progress.waiting)
        for each in waits:
            if each not in self._waits:
                self._say(f"{' ' * 8}  waits for {printable(each)}")
        self._waits = waits
        if self._screen.is_live:
            self._draw(progress)

    def _say(self, line: str) -> None:
        if line and not self._screen.is_json:
            self.clear()
            self._screen.note(line)

    def _draw(self, progress: Progress) -> None:
        self._frame += 1
        is_wide = (self._screen.err.encoding or "").lower().startswith("utf")
        spin = (_SPINNER if is_wide else "-\\|/")[self._frame % (len(_SPINNER) if is_wide else 4)]
        part = "" if progress.percent is None else f" {_bar(progress.percent, is_wide)} {progress.percent:.0f} %"
        doing = f", {', '.join(progress.current)}" if progress.current else ""
        text = f"{progress.status.lower()}, {progress.done} done{doing}, {span_text(monotonic() - self._began)}"
        line = shortened(f"{spin}{part} {printable(text)}", self._screen.width - 1)
        self._screen.err.write(f"\r\x1b[K{self._screen.paint('cyan', line, self._screen.err)}")
        self._screen.err.flush()
        self._is_drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            self._screen.err.write("\r\x1b[K")
            self._screen.err.flush()
            self._is_drawn = False


def _bar(percent: float, is_wide: bool) -> str:
    full, empty = ("█", "░") if is_wide else ("#", ".")
    filled = round(_BAR * min(max(percent, 0), 100) / 100)
    return full * filled + empty * (_BAR - filled)


def event_line(event: RunEvent, screen: Screen) -> str:
    """An event on one line; empty for those that say nothing new."""
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
            return event.name
        case "attempt":
            error: dict[str, Any] = event.detail.get("error") or {}
            return f"{event.name} attempt {event.detail['attempt']} failed: {error.get('kind')}: {error.get('message')}"
        case "variable":
            return f"{event.name} = {shortened(json_text(event.detail), 60)}"
        case "cancelled":
            return f"scope {event.name} cancelled"
        case "reopened":
            return f"{event.name} is to be tried again"
        case "restored":
            return f"state of {event.name} at revision {event.detail['revision']}"
        case _:
            return ""
