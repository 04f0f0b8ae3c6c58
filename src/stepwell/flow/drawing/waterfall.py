"""Draw a run as a waterfall: one bar for each step on a common axis of time, with long idle times folded.

Everything is placed in per cent of the width, so that a page may draw the same picture at any width without distorting text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from html import escape
from math import ceil
from statistics import median
from typing import Literal, NamedTuple

__all__ = [
    "MOST_ROWS",
    "OVERVIEW_PARTS",
    "Axis",
    "Bar",
    "WaterfallRow",
    "axis_of",
    "draw_overview",
    "draw_waterfall",
    "grouped",
    "moment",
]

MOST_ROWS = 200
"""More rows are drawn as groups of the same name, or in windows of so many."""
ROW_HEIGHT = 24
_FOLD_SHARE, _FOLD_MS, _FOLD_PERCENT = 0.1, 60_000.0, 3.0
"""An idle time is folded if it is longer than this share of all and this long; then it gets so much of the width."""
OVERVIEW_PARTS = 24
"""The parts of the overview, each of which leads to its part of the time."""
_LABEL, _WIDTH, _HEADER = 240, 720, 24

BarKind = Literal["queued", "work", "failed", "wait"]


class Bar(NamedTuple):
    """A stretch of time in a row, in milliseconds since the epoch."""

    kind: BarKind
    begin: float
    end: float


class WaterfallRow(NamedTuple):
    """A row: a step, or several of the same name."""

    key: str
    label: str
    status: str
    bars: tuple[Bar, ...]
    is_open: bool = False
    """Whether it has not ended, so that its last bar ends now."""
    commits: tuple[float, ...] = ()
    """The moments of commits, which are drawn as dots."""
    size: int = 1
    """How many steps it stands for."""
    spans: tuple[float, float, float] | None = None
    """Of several steps: the least, median and largest duration."""
    is_critical: bool = False
    """Whether the run would have been shorter without it."""

    @property
    def begin(self) -> float:
        """The time of its begin."""
        return min((bar.begin for bar in self.bars), default=0.0)

    @property
    def length(self) -> float:
        """The time that it took, without the time in the queue."""
        return self.end - min((bar.begin for bar in self.bars if bar.kind != "queued"), default=self.end)

    @property
    def end(self) -> float:
        """The time of its end."""
        return max((bar.end for bar in self.bars), default=0.0)


class Fold(NamedTuple):
    """An idle time that is folded."""

    begin: float
    end: float


class Axis:
    """The axis of time: a moment as per cent of the width.

    - ``origin``: the moment that is called 0; the begin by default.
    """

    def __init__(self, begin: float, end: float, folds: Sequence[Fold], origin: float | None = None) -> None:
        self.origin = begin if origin is None else origin
        self.begin, self.end, self.folds = begin, max(end, begin + 1), tuple(folds)
        left = 100.0 - _FOLD_PERCENT * len(self.folds)
        busy = self.end - self.begin - sum(fold.end - fold.begin for fold in self.folds)
        self._moments, self._places = [self.begin], [0.0]
        scale = left / max(busy, 1.0)
        for fold in self.folds:
            self._add(fold.begin, (fold.begin - self._moments[-1]) * scale)
            self._add(fold.end, _FOLD_PERCENT)
        self._add(self.end, (self.end - self._moments[-1]) * scale)

    def _add(self, moment: float, width: float) -> None:
        self._moments.append(moment)
        self._places.append(self._places[-1] + width)

    def place(self, moment: float) -> float:
        """Return where a moment is, from 0 to 100."""
        moment = min(max(moment, self.begin), self.end)
        at = min(bisect_right(self._moments, moment), len(self._moments) - 1)
        before, after = self._moments[at - 1], self._moments[at]
        share = (moment - before) / (after - before) if after > before else 0.0
        return round(self._places[at - 1] + share * (self._places[at] - self._places[at - 1]), 3)

    def moment(self, place: float) -> float:
        """Return the moment at a place from 0 to 100."""
        at = min(max(bisect_right(self._places, place), 1), len(self._places) - 1)
        before, after = self._places[at - 1], self._places[at]
        share = (place - before) / (after - before) if after > before else 0.0
        return self._moments[at - 1] + share * (self._moments[at] - self._moments[at - 1])

    def ticks(self, most: int = 6) -> Iterator[tuple[float, str]]:
        """Yield round moments with their places, as time since the beginning; none inside of a fold."""
        total = self.end - self.begin - sum(fold.end - fold.begin for fold in self.folds)
        step = next((each for each in _STEPS if total / each <= most), _STEPS[-1] * ceil(total / _STEPS[-1] / most))
        last = -100.0
        number = ceil((self.begin - self.origin) / step)
        moment = self.origin + number * step
        while moment <= self.end:
            inside = next((fold for fold in self.folds if fold.begin <= moment < fold.end), None)
            if inside is not None:
                number = ceil((inside.end - self.origin) / step)
                moment = self.origin + number * step
                continue
            place = self.place(moment)
            if place - last >= 100 / (most + 4) and place <= 95:
                yield place, span_text(moment - self.origin)
                last = place
            number += 1
            moment = self.origin + number * step


_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_STEPS = (
    *(size * unit for unit in (1, 10, 100) for size in (1, 2, 5)),
    *(size * _SECOND for size in (1, 2, 5, 10, 15, 30)),
    *(size * _MINUTE for size in (1, 2, 5, 10, 15, 30)),
    *(size * _HOUR for size in (1, 2, 4, 8, 12)),
    *(size * _DAY for size in (1, 2, 7, 14)),
)


def span_text(ms: float) -> str:
    """Return a duration in its two largest units."""
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < _MINUTE:
        return f"{ms / _SECOND:.1f}".removesuffix(".0") + " s"
    seconds = round(ms / _SECOND)
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {unit} {rest} {name}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"


def moment(at: datetime) -> float:
    """Return a moment as milliseconds since the epoch."""
    return at.timestamp() * 1000


def axis_of(
    rows: Iterable[WaterfallRow],
    now: float,
    *,
    whole: Axis | None = None,
    part: tuple[float, float] | None = None,
    has_folds: bool = True,
) -> Axis:
    """Return the axis for rows.

    - ``now``: the end of what is still open.
    - ``whole``, ``part``: the axis of the whole time, and the part of it to show; all of the time by default.
    - ``has_folds``: False to draw idle times as long as they were.
    """
    drawn = list(rows)
    begins = [bar.begin for row in drawn for bar in row.bars]
    ends = [now if row.is_open and bar is row.bars[-1] else bar.end for row in drawn for bar in row.bars]
    if not begins:
        return Axis(now - 1, now, ())
    begin, end = part or (min(begins), max(ends))
    origin = None if whole is None else whole.begin
    if not has_folds:
        return Axis(begin, end, (), origin)
    busy = sorted((bar.begin, bar.end) for row in drawn for bar in row.bars if bar.kind in ("work", "failed"))
    # The begin and end of a wait are worth seeing as well; only the time between them is idle.
    busy += [(at, at) for row in drawn for bar in row.bars for at in (bar.begin, bar.end)]
    busy = [(max(start, begin), min(stop, end)) for start, stop in busy if stop >= begin and start <= end]
    longest = max((end - begin) * _FOLD_SHARE, _FOLD_MS)
    folds: list[Fold] = []
    reached = begin
    for start, stop in sorted(busy):
        if start - reached > longest:
            margin = (start - reached) * 0.02
            folds.append(Fold(reached + margin, start - margin))
        reached = max(reached, stop)
    if end - reached > longest:
        folds.append(Fold(reached + (end - reached) * 0.02, end - (end - reached) * 0.02))
    return Axis(begin, end, folds, origin)


def grouped(rows: Sequence[WaterfallRow], names: Sequence[str], most: int = MOST_ROWS) -> list[WaterfallRow]:
    """Return the rows with those of the same name as one, if there are more than ``most``; failed ones stay on their own.

    - ``names``: the name of each row, by which they are grouped.
    """
    if len(rows) <= most:
        return list(rows)
    by_name: dict[str, list[WaterfallRow]] = {}
    shown: list[WaterfallRow] = []
    for row, name in zip(rows, names, strict=True):
        if row.status == "FAILED":
            shown.append(row)
        else:
            by_name.setdefault(name, []).append(row)
    for name, several in by_name.items():
        shown += several if len(several) == 1 else [_group(name, several)]
    return sorted(shown, key=lambda row: row.begin)


def _group(name: str, rows: Sequence[WaterfallRow]) -> WaterfallRow:
    lengths = sorted(row.length for row in rows)
    is_open = any(row.is_open for row in rows)
    status = "RUNNING" if is_open else rows[0].status if len({row.status for row in rows}) == 1 else "COMPLETED"
    bars = sorted((bar for row in rows for bar in row.bars), key=lambda bar: (bar.kind, bar.begin))
    return WaterfallRow(
        key=name,
        label=name,
        status=status,
        bars=tuple(bars),
        is_open=is_open,
        size=len(rows),
        spans=(lengths[0], median(lengths), lengths[-1]),
    )


def merged(bars: Iterable[Bar]) -> list[Bar]:
    """Return bars of one kind that touch as one, so that a group of a thousand steps is a few shapes."""
    found: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: (bar.kind, bar.begin)):
        last = found[-1] if found else None
        if last is not None and last.kind == bar.kind and bar.begin <= last.end:
            found[-1] = last._replace(end=max(last.end, bar.end))
        else:
            found.append(bar)
    return found


def draw_waterfall(
    rows: Sequence[WaterfallRow], axis: Axis, now: float, *, title: str, selected: str = "", is_embedded: bool = False
) -> str:
    """Return the waterfall as SVG.

    - ``rows``: one for each line.
    - ``axis``: what `axis_of` returned.
    - ``now``: the end of what is still open.
    - ``title``: for readers who do not see it.
    - ``selected``: the key of a row to mark.
    - ``is_embedded``: True for a page that has the style itself, and the names of the rows beside the picture.
    """
    height = _HEADER + ROW_HEIGHT * len(rows)
    lines = [
        *_axis_lines(axis, height),
        *(line for number, row in enumerate(rows) for line in _row(row, number, axis, now, selected)),
    ]
    described = f"<title>{_text(title)}</title>"
    if is_embedded:
        return (
            f'<svg class="waterfall" role="img" width="100%" height="{height}" font-family="inherit">{described}{_PATTERNS}'
            f"{''.join(lines)}</svg>"
        )
    names = (
        f'<text class="name" x="8" y="{_HEADER + ROW_HEIGHT * number + 16}">{_text(_short(row))}</text>'
        for number, row in enumerate(rows)
    )
    width = _LABEL + _WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="waterfall" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">{described}<style>{_STYLE}</style>{_PATTERNS}'
        f'{"".join(names)}<svg x="{_LABEL}" width="{_WIDTH - 16}" height="{height}" overflow="visible">'
        f"{''.join(lines)}</svg></svg>\n"
    )


def draw_overview(rows: Sequence[WaterfallRow], axis: Axis, now: float, links: Sequence[str], begin: float, end: float) -> str:
    """Return a strip of the whole time as SVG, with how much ran in each part of it; a part leads to its address.

    - ``links``: `OVERVIEW_PARTS` addresses.
    - ``begin``, ``end``: what is shown now, which is marked.
    """
    width = 100 / OVERVIEW_PARTS
    weights = [0] * OVERVIEW_PARTS
    for row in rows:
        for bar in row.bars:
            if bar.kind in ("work", "failed"):
                first, last = axis.place(bar.begin), axis.place(now if row.is_open else bar.end)
                for part in range(min(int(first // width), OVERVIEW_PARTS - 1), min(int(last // width), OVERVIEW_PARTS - 1) + 1):
                    weights[part] += 1
    most = max(*weights, 1)
    left, right = axis.place(begin), axis.place(end)
    parts: list[str] = []
    for part, link in enumerate(links):
        height = round(1 + 21 * weights[part] / most, 1)
        x = round(part * width, 3)
        what = (
            f"{span_text(axis.moment(x) - axis.begin)} to {span_text(axis.moment(x + width) - axis.begin)}: {weights[part]} steps"
        )
        parts.append(
            f'<a href="{_text(link)}" aria-label="{what}"><title>{what}</title>'
            f'<rect class="part" x="{x}%" width="{round(width, 3)}%" y="0" height="24"/>'
            f'<rect class="density" x="{x}%" width="{round(width - 0.4, 3)}%" y="{round(23 - height, 1)}" height="{height}"/></a>'
        )
    shown = f'<rect class="shown" x="{left}%" width="{round(right - left, 3)}%" y="0" height="24"/>'
    return (
        f'<svg class="overview" role="group" aria-label="Parts of the time" width="100%" height="24">{shown}{"".join(parts)}</svg>'
    )


def _short(row: WaterfallRow) -> str:
    label = row.label if row.size == 1 else f"{row.label} ×{row.size}"  # noqa: RUF001 - the sign for times
    return label if len(label) <= 32 else f"{label[:31]}…"


def _text(text: str) -> str:
    return escape("".join(each if each.isprintable() else "\ufffd" for each in text))


def _axis_lines(axis: Axis, height: int) -> Iterator[str]:
    for place, words in axis.ticks():
        yield f'<line class="grid" x1="{place}%" x2="{place}%" y1="{_HEADER - 6}" y2="{height}"/>'
        yield f'<text class="tick" x="{place}%" y="14" dx="3">{words}</text>'
    for fold in axis.folds:
        left, right = axis.place(fold.begin), axis.place(fold.end)
        words = span_text(fold.end - fold.begin)
        yield (
            f'<g class="fold"><title>Nothing happened for {words}</title><rect x="{left}%" width="{round(right - left, 3)}%" y="0" '
            f'height="{height}"/><text x="{round((left + right) / 2, 3)}%" y="14" text-anchor="middle">{words}</text></g>'
        )


def _row(row: WaterfallRow, number: int, axis: Axis, now: float, selected: str) -> Iterator[str]:
    top = _HEADER + ROW_HEIGHT * number
    if row.key == selected:
        yield f'<rect class="selected" x="0" width="100%" y="{top}" height="{ROW_HEIGHT}"/>'
    if not row.bars:
        return
    end = now if row.is_open else row.end
    tip = f"{row.label}: {row.status}, {span_text(row.length + end - row.end)}"
    if row.spans is not None:
        low, middle, high = map(span_text, row.spans)
        tip = f"{row.label}: {row.size} times, {low} to {high}, median {middle}"
    yield f'<g class="bars b-{row.status}"><title>{_text(tip)}</title>'
    last = row.bars[-1]
    bars = merged(row.bars) if row.size > 1 else row.bars
    for bar in bars[:_MOST_BARS]:
        yield _bar(Bar(bar.kind, bar.begin, now) if row.is_open and bar is last else bar, axis, top)
    if row.size == 1:
        for bar in [bar for bar in row.bars if bar.kind in ("work", "failed")][1:]:
            place = axis.place(bar.begin)
            yield f'<line class="retry" x1="{place}%" x2="{place}%" y1="{top + 3}" y2="{top + 21}"/>'
    if row.is_open:
        place = axis.place(now)
        yield f'<line class="edge" x1="{place}%" x2="{place}%" y1="{top + 4}" y2="{top + 20}"/>'
    elif row.status == "FAILED":
        place = axis.place(row.end)
        yield f'<svg x="{place}%" y="{top + 7}" overflow="visible"><rect class="cap" x="-2" width="8" height="10"/></svg>'
    if row.is_critical:
        left, right = axis.place(row.begin), axis.place(end)
        yield f'<rect class="critical" x="{left}%" width="{max(round(right - left, 3), 0.15)}%" y="{top + 20}" height="2"/>'
    for at in row.commits:
        yield f'<circle class="commit" cx="{axis.place(at)}%" cy="{top + 12}" r="2"/>'
    yield "</g>"


_MOST_BARS = 400


def _bar(bar: Bar, axis: Axis, top: int) -> str:
    left = axis.place(bar.begin)
    width = max(round(axis.place(bar.end) - left, 3), 0.15)
    if bar.kind == "queued":
        return f'<rect class="queued" x="{left}%" width="{width}%" y="{top + 11}" height="2"/>'
    return f'<rect class="{bar.kind}" x="{left}%" width="{width}%" y="{top + 6}" height="12" rx="2"/>'


_PATTERNS = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hatch" width="3" height="6"/></pattern></defs>'
)
_STYLE = """
.waterfall{background:#fff}
.name{fill:#16191d;font-size:12px}.tick,.fold text{fill:#565e68;font-size:11px}.grid{stroke:#d5d9de}
.work{fill:#1d7062}.failed{fill:#be2315}.queued{fill:#7b858f}.hatch{fill:#513787}.wait{fill:url(#hatch);stroke:#513787}
.b-RUNNING .work{fill:#458af1}.b-CANCELLED .work,.b-SKIPPED .work{fill:none;stroke:#2c2f31}
.cap{fill:#be2315}.retry{stroke:#16191d;stroke-width:1.5}.edge{stroke:#458af1;stroke-width:3}
.commit,.critical{fill:#16191d}.fold rect{fill:#f6f7f9}.selected{fill:#e8eef5}
@media (prefers-color-scheme:dark){
.waterfall{background:#0f1215}
.name{fill:#e8ebee}.tick,.fold text{fill:#a3abb5}.grid{stroke:#2c333b}
.work{fill:#8eedc0}.failed{fill:#d60725}.queued{fill:#78828d}.hatch{fill:#d8a8fa}.wait{stroke:#d8a8fa}
.b-RUNNING .work{fill:#4485e5}.b-CANCELLED .work,.b-SKIPPED .work{stroke:#9a9a9a}
.cap{fill:#d60725}.retry{stroke:#e8ebee}.edge{stroke:#4485e5}
.commit,.critical{fill:#e8ebee}.fold rect{fill:#171b20}.selected{fill:#1c2733}
}"""
