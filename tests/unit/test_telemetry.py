"""Spans of a run: one for the whole, one for each call, with the times of the receipts."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepwell import InvalidInput
from stepwell.model.trace import Trace, TraceEvent
from stepwell.telemetry import export_spans

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NS = 1_767_225_600_000_000_000


class Span:
    def __init__(self, name: str, attributes: Any, start: int | None) -> None:
        self.name, self.attributes, self.start, self.end_time = name, attributes, start, 0

    def end(self, *, end_time: int) -> None:
        self.end_time = end_time


class Tracer:
    """Takes the place of OpenTelemetry's."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def start_span(self, name: str, context: Any = None, *, attributes: Any = None, start_time: int | None = None) -> Span:
        self.spans.append(Span(name, attributes, start_time))
        return self.spans[-1]


def trace() -> Trace:
    at = BEGAN + timedelta(seconds=2, microseconds=5)
    return Trace(
        "full",
        [
            TraceEvent("start", at=BEGAN, revision=0),
            TraceEvent("step", "pay", "COMPLETED", at=at, duration_ms=500, revision=1),
            TraceEvent("status", "COMPLETED", at=at + timedelta(seconds=1), revision=2),
        ],
    )


def test_run_is_a_span_with_its_calls_inside():
    tracer = Tracer()
    assert export_spans(trace(), "checkout", tracer=tracer) == 2
    whole, pay = tracer.spans
    assert (whole.name, whole.start, whole.end_time) == ("checkout", NS, NS + 3_000_005_000)
    assert (pay.name, pay.start, pay.end_time) == ("pay", NS + 1_500_005_000, NS + 2_000_005_000)
    assert pay.attributes == {"stepwell.step": "pay", "stepwell.status": "COMPLETED"}


def test_trace_without_times_is_refused():
    with pytest.raises(InvalidInput, match="level 'full'"):
        export_spans(trace().reduced("min"), "checkout", tracer=Tracer())


@pytest.mark.skipif(importlib.util.find_spec("opentelemetry") is not None, reason="it is installed here")
def test_without_opentelemetry_the_error_says_what_to_install():
    with pytest.raises(InvalidInput, match="pip install opentelemetry-api"):
        export_spans(trace(), "checkout")
