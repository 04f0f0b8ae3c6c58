"""Export a finished run to OpenTelemetry. Its API is imported only when a run is exported."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, Protocol

from stepwell.errors import InvalidInput

__all__ = ["HasEvents", "HasTimes", "Tracer", "export_spans"]


class HasTimes(Protocol):
    """An event of a full trace."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def at(self) -> datetime | None: ...
    @property
    def duration_ms(self) -> int | None: ...


class HasEvents(Protocol):
    """A trace."""

    @property
    def events(self) -> Sequence[HasTimes]: ...


class Tracer(Protocol):
    """The part of an OpenTelemetry tracer that is used."""

    def start_span(self, name: str, context: Any = None, *, attributes: Any = None, start_time: int | None = None) -> Any:
        """Return a new span that started at a time in nanoseconds since 1970."""
        ...


def export_spans(trace: HasEvents, name: str, *, tracer: Tracer | None = None) -> int:
    """Export a run as a span of this name with one child span per recorded call. Return the number of spans.

    The trace must be a full one. Without a ``tracer``, the program's OpenTelemetry setup is used.
    """
    timed = [(event, event.at) for event in trace.events if event.at is not None]
    if not timed:
        raise InvalidInput("spans need times: take a trace of level 'full', of a run that has begun")
    api = _api(is_needed=tracer is None)
    used: Tracer = tracer if tracer is not None else api.get_tracer("stepwell")
    whole = used.start_span(name, start_time=_ns(timed[0][1]))
    inside = None if api is None else api.set_span_in_context(whole)
    calls = [(event, at) for event, at in timed if event.kind == "step"]
    for event, at in calls:
        began = at - timedelta(milliseconds=event.duration_ms or 0)
        attributes = {"stepwell.step": event.name, "stepwell.status": event.status}
        used.start_span(event.name, inside, attributes=attributes, start_time=_ns(began)).end(end_time=_ns(at))
    whole.end(end_time=_ns(timed[-1][1]))
    return 1 + len(calls)


def _api(*, is_needed: bool) -> Any:
    """Return OpenTelemetry's API, or None; without it, spans have no parent."""
    try:
        return import_module("opentelemetry.trace")
    except ModuleNotFoundError as error:
        if not is_needed:
            return None
        raise InvalidInput(f"spans need OpenTelemetry; run pip install 'stepwell[otel]' ({error})") from error


def _ns(moment: datetime) -> int:
    seconds = moment.timestamp()
    return int(seconds) * 1_000_000_000 + moment.microsecond * 1_000
