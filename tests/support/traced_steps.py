"""A step in a process of its own, in a program that traces: each process that imports it exports its spans to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import opentelemetry.trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from stepwell import step

__all__ = ["SPANS", "traced"]

SPANS = "STEPWELL_TEST_SPANS"
"""The environment variable with the file; without it nothing is exported."""


class FileExporter(SpanExporter):
    """Appends a line with name, trace id and parent of each span."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ[SPANS]).open("a") as file:
            for span in spans:
                context, parent = span.get_span_context(), span.parent
                file.write(f"{span.name} {context.trace_id if context else 0:032x} {parent.span_id if parent else 0:016x}\n")
        return SpanExportResult.SUCCESS


if SPANS in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
    opentelemetry.trace.set_tracer_provider(provider)


@step(name="traced.step", process=True)
def traced(number: int) -> int:
    """Make a span of its own."""
    with opentelemetry.trace.get_tracer("shop").start_as_current_span("inner"):
        return number
