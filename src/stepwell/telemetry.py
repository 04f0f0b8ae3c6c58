"""OpenTelemetry: spans of a run while it runs, and the export of a finished one.

Live spans come from the tracer provider that the program has set up. Without one nothing is imported and nothing is recorded. All
spans of a run have the run's trace id, in every process and after every resume; code that runs again makes none of its own, since
recorded steps do not run.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from importlib import import_module
from typing import Any, Protocol

from stepwell.errors import InvalidInput

__all__ = [
    "HasEvents",
    "HasTimes",
    "Tracer",
    "current_trace_id",
    "export_spans",
    "inside_of",
    "live_span",
    "live_tracer",
    "mark_failed",
    "span_of_caller",
]


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
    @property
    def summary(self) -> str | None: ...


class HasEvents(Protocol):
    """A trace."""

    @property
    def events(self) -> Sequence[HasTimes]: ...


class Tracer(Protocol):
    """The part of an OpenTelemetry tracer that is used."""

    def start_span(self, name: str, context: Any = None, *, attributes: Any = None, start_time: int | None = None) -> Any:
        """Return a new span that started at a time in nanoseconds since 1970."""
        ...


def live_tracer() -> Any | None:
    """Return the tracer for live spans; None if this program has set up no tracer provider."""
    api = sys.modules.get("opentelemetry.trace")  # a program that has set one up has imported it
    if api is None:
        return None
    provider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider) else provider.get_tracer("stepwell")


def current_trace_id() -> str | None:
    """Return the id of the trace that the caller is in; None if it is in none."""
    if live_tracer() is None:
        return None
    found = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
    return f"{found.trace_id:032x}" if found.is_valid else None


@contextmanager
def live_span(tracer: Any, name: str, execution_id: str, trace_id: str | None, **attributes: str | int) -> Generator[Any]:
    """Make a span of a run the current one for a block: inside the current span of the run's trace, else at its root.

    At the root the program's sampler decides by the run's trace id, so that all spans of a run are exported or none.

    The class of an error that leaves the block is noted; its message may hold what must not leave the store.
    """
    api = sys.modules["opentelemetry.trace"]
    told = {f"stepwell.{key}": value for key, value in attributes.items()} | {"stepwell.execution_id": execution_id}
    around = None if _is_inside(api, trace_id) else _root(api, execution_id, trace_id)
    keeps_errors = {"record_exception": False, "set_status_on_exception": False}
    with tracer.start_as_current_span(name, context=around, attributes=told, **keeps_errors) as span:
        try:
            yield span
        except Exception as error:
            span.set_status(api.StatusCode.ERROR, type(error).__name__)
            raise


def span_of_caller() -> tuple[str, str, int] | None:
    """Return the trace id, span id (both hexadecimal) and flags of the caller's span, for ``inside_of``; None if it is in none."""
    if live_tracer() is None:
        return None
    found = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}", int(found.trace_flags)) if found.is_valid else None


@contextmanager
def inside_of(caller: tuple[str, str, int] | None) -> Generator[None]:
    """Let spans that a block makes be inside of a span of another process, if this program has set up a tracer provider."""
    if caller is None or live_tracer() is None:
        yield
        return
    api = sys.modules["opentelemetry.trace"]
    trace_id, span_id, flags = caller
    around = api.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=api.TraceFlags(flags))
    with api.use_span(api.NonRecordingSpan(around), record_exception=False, set_status_on_exception=False):
        yield


def mark_failed(span: Any) -> None:
    """Mark the span of a run that has failed, which no error leaves."""
    span.set_status(sys.modules["opentelemetry.trace"].StatusCode.ERROR)


def _is_inside(api: Any, trace_id: str | None) -> bool:
    found = api.get_current_span().get_span_context()
    return bool(found.is_valid and (trace_id is None or f"{found.trace_id:032x}" == trace_id))


def _root(api: Any, execution_id: str, trace_id: str | None) -> Any:
    """Return the context of a run's root: the same in every process, so that all spans of the run hang together."""
    if trace_id is None:
        return None
    span_id = int(sha256(execution_id.encode()).hexdigest()[:16], 16) or 1
    flags = api.TraceFlags.SAMPLED if _is_sampled(api, int(trace_id, 16)) else api.TraceFlags.DEFAULT
    root = api.SpanContext(int(trace_id, 16), span_id, is_remote=True, trace_flags=api.TraceFlags(flags))
    return api.set_span_in_context(api.NonRecordingSpan(root))


def _is_sampled(api: Any, trace_id: int) -> bool:
    """Return whether the program's sampler, if its provider has one, exports a trace with this id that has no parent."""
    sampler = getattr(api.get_tracer_provider(), "sampler", None)
    nothing = sys.modules["opentelemetry.context"].Context()
    return sampler is None or bool(sampler.should_sample(nothing, trace_id, "run").decision.is_sampled())


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
        attributes |= {"stepwell.summary": event.summary} if event.summary else {}
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
