"""A run as a picture in text: one row for each step, and a bar from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from stepwell.cli.event import RunEvent
from stepwell.cli.plaintext import printable, shortened

__all__ = ["bars", "span_text"]

_MOST_ROWS = 60
_NAME_WIDTH = 28


def bars(
    steps: Sequence[RunEvent],
    *,
    width: int,
    began_at: datetime | None = None,
    paint: Callable[[RunEvent, str], str] = lambda _, text: text,
    block: str = "█",
    label: Callable[[RunEvent], str] = lambda _: "",
) -> list[str]:
    """The rows of the picture. A long run shows its first and last steps, and says how many are between."""
    if not steps:
        return []
    start = min([each.began_at for each in steps] + ([began_at] if began_at is not None else []))
    total = max((max(each.at for each in steps) - start).total_seconds(), 0.001)
    names = min(max(len(printable(each.name)) for each in steps), _NAME_WIDTH)
    labels = max(len(label(each)) for each in steps)
    room = max(width - names - labels - 14, 10)

    def row(each: RunEvent) -> str:
        first, last = (round((at - start).total_seconds() / total * room) for at in (each.began_at, each.at))
        first = min(first, room - 1)
        bar = " " * first + block * max(last - first, 1)
        name = shortened(printable(each.name), names).ljust(names)
        told = f"{label(each)} ".rjust(labels + 1) if labels else ""
        return f"{name}  {told}{paint(each, bar)}{' ' * (room - len(bar))} {span_text((each.duration_ms or 0) / 1000):>8}"

    if len(steps) <= _MOST_ROWS:
        return [row(each) for each in steps]
    half = _MOST_ROWS // 2
    between = f"... {len(steps) - 2 * half} more steps ..."
    return [*(row(each) for each in steps[:half]), between, *(row(each) for each in steps[-half:])]


def span_text(seconds: float) -> str:
    """A span of time for people."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
