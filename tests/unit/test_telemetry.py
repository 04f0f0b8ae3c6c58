"""Spans of a run: one for the whole, one for each call, with the times of the receipts."""

from __future__ import annotations

import sys
import tomllib
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import opentelemetry.trace
import pytest

from stepwell import InvalidInput
from stepwell.model.trace import Trace, TraceEvent
from stepwell.telemetry import export_spans

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NS = 1_767_225_600_000_000_000


class Span(opentelemetry.trace.NonRecordingSpan):
    def __init__(self, name: str, attributes: Any, start: int | None, context: Any) -> None:
        super().__init__(opentelemetry.trace.INVALID_SPAN_CONTEXT)
        self.name, self.attributes, self.start, self.context, self.end_time = name, attributes, start, context, 0

    def end(self, end_time: int | None = None) -> None:
        self.end_time = end_time


class Tracer:
    """Takes the place of OpenTelemetry's."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def start_span(self, name: str, context: Any = None, *, attributes: Any = None, start_time: int | None = None) -> Span:
        self.spans.append(Span(name, attributes, start_time, context))
        return self.spans[-1]


def trace() -> Trace:
    at = BEGAN + timedelta(seconds=2, microseconds=5)
    return Trace(
        "full",
        [
            TraceEvent("start", at=BEGAN, revision=0),
            TraceEvent("step", "pay", "COMPLETED", at=at, duration_ms=500, revision=1, summary="for a lamp"),
            TraceEvent("status", "COMPLETED", at=at + timedelta(seconds=1), revision=2),
        ],
    )


def test_run_is_a_span_with_its_calls_inside():
    tracer = Tracer()
    assert export_spans(trace(), "checkout", tracer=tracer) == 2
    whole, pay = tracer.spans
    assert (whole.name, whole.start, whole.end_time) == ("checkout", NS, NS + 3_000_005_000)
    assert (pay.name, pay.start, pay.end_time) == ("pay", NS + 1_500_005_000, NS + 2_000_005_000)
    assert pay.attributes == {"stepwell.step": "pay", "stepwell.status": "COMPLETED", "stepwell.summary": "for a lamp"}


def test_trace_without_times_is_refused():
    with pytest.raises(InvalidInput, match="level 'full'"):
        export_spans(trace().reduced("min"), "checkout", tracer=Tracer())


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(InvalidInput, match=r"pip install 'stepwell\[otel\]'"):
        export_spans(trace(), "checkout")
    assert export_spans(trace(), "checkout", tracer=Tracer()) == 2


def test_calls_are_inside_the_span_of_their_run():
    tracer = Tracer()
    export_spans(trace(), "checkout", tracer=tracer)
    whole, pay = tracer.spans
    assert whole.context is None
    assert opentelemetry.trace.get_current_span(pay.context) is whole


def test_without_a_tracer_that_of_the_program_is_used():
    assert export_spans(trace(), "checkout") == 2


def test_extra_installs_what_is_imported():
    """``stepwell[otel]`` and the error name the same thing, and it is there."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (need,) = project["optional-dependencies"]["otel"]
    name, _, least = need.partition(">=")
    assert name == "opentelemetry-api"
    assert tuple(map(int, version(name).split("."))) >= tuple(map(int, least.split(".")))
