"""Live spans: of a run, its steps, commits and dispatch, in one trace over processes and resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opentelemetry.trace
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from tests.acceptance.conftest import OpenWell
from tests.support import traced_steps

import stepwell
from stepwell import ExecutionFailed, Stepwell, step, workflow
from stepwell.flow import call, define

WAIT = 20


@step(name="t.charge")
async def charge(cents: int) -> int:
    with opentelemetry.trace.get_tracer("shop").start_as_current_span("bank"):
        if cents < 0:
            raise ValueError("a secret number")
    return cents


@step(name="t.pack")
def pack(cents: int) -> int:
    with opentelemetry.trace.get_tracer("shop").start_as_current_span("shelf"):
        return cents


@workflow(name="t.order")
async def order(cents: int) -> int:
    paid = await charge(cents)
    await stepwell.wait_signal("go")
    return await pack.aio(paid)


@workflow(name="t.told")
async def told(cents: int) -> int:
    return await charge.with_summary(f"a lamp for {cents}")(cents)


TOLD = define("t.declared", call("t.charge", {"cents": "{{ trigger.input }}"}, summary="a lamp for {{ trigger.input }}"))


@workflow(name="t.plain")
def plain(cents: int) -> int:
    return pack(cents)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Return the spans that a program with a tracer provider exports."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> list[Any]:
    return [each for each in spans.get_finished_spans() if each.name == name]


def ended(spans: InMemorySpanExporter, name: str, count: int) -> list[Any]:
    while len(found := named(spans, name)) < count:
        pass
    return found


@pytest.fixture
def well(open_well: OpenWell, url: str) -> Any:
    return open_well(url)


def test_spans_of_a_run_share_its_trace_over_a_rest_and_none_comes_twice(well: Stepwell, spans: InMemorySpanExporter) -> None:
    run = well.start(order, 7, execution_id="order-7")
    while run.status() != "WAITING":
        pass
    run.signal("go")
    assert run.result(WAIT) == 7
    sessions = ended(spans, "run t.order", 2)
    [charged], [packed] = named(spans, "t.charge"), named(spans, "t.pack")
    trace = well.load("order-7").identity.trace_id
    assert {f"{each.context.trace_id:032x}" for each in spans.get_finished_spans()} == {trace}
    assert charged.parent.span_id == sessions[0].context.span_id
    assert packed.parent.span_id == sessions[1].context.span_id
    assert named(spans, "bank")[0].parent.span_id == charged.context.span_id
    assert named(spans, "shelf")[0].parent.span_id == packed.context.span_id
    assert len({each.parent.span_id for each in sessions}) == 1  # the run's root
    assert dict(charged.attributes) == {
        "stepwell.execution_id": "order-7",
        "stepwell.step": "t.charge",
        "stepwell.attempt": 1,
        "stepwell.workflow": "t.order",
    }
    assert [each.attributes["stepwell.status"] for each in sessions] == ["WAITING", "COMPLETED"]
    revisions = [each.attributes["stepwell.revision"] for each in named(spans, "commit")]
    assert len(revisions) == len(set(revisions))


def test_failed_step_is_an_error_without_its_message(well: Stepwell, spans: InMemorySpanExporter) -> None:
    run = well.start(order, -1)
    with pytest.raises(ExecutionFailed):
        run.result(WAIT)
    [charged] = ended(spans, "t.charge", 1)
    assert (charged.status.status_code.name, charged.status.description) == ("ERROR", "ValueError")
    assert not any("secret number" in each.to_json() for each in [charged, *ended(spans, "run t.order", 1)])


def test_failed_run_is_an_error(well: Stepwell, spans: InMemorySpanExporter) -> None:
    with pytest.raises(ExecutionFailed):
        well.start(order, -1).result(WAIT)
    [session] = ended(spans, "run t.order", 1)
    assert (session.attributes["stepwell.status"], session.status.status_code.name) == ("FAILED", "ERROR")


@pytest.mark.parametrize("of", [told, TOLD], ids=["function", "declared"])
def test_summary_of_a_call_is_on_its_span(well: Stepwell, spans: InMemorySpanExporter, of: Any) -> None:
    run = well.start(of, 7)
    assert run.result(WAIT) == 7
    [charged] = ended(spans, "t.charge", 1)
    assert charged.attributes["stepwell.summary"] == "a lamp for 7"


def test_sampler_of_the_program_decides_for_all_spans_of_a_run(well: Stepwell, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.5)))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    runs = [well.start(plain, number) for number in range(40)]
    assert [run.result(WAIT) for run in runs] == list(range(40))
    sampled = {run.execution_id for run in runs if int(well.load(run.execution_id).identity.trace_id or "", 16) % 2**64 < 2**63}
    while len(named(exporter, "run t.plain")) < len(sampled):
        pass
    provider.shutdown()
    assert {each.attributes["stepwell.execution_id"] for each in named(exporter, "run t.plain")} == sampled
    assert len(named(exporter, "shelf")) == len(sampled)
    assert 0 < len(sampled) < len(runs)


@workflow(name="t.apart")
async def apart(cents: int) -> int:
    return await traced_steps.traced.aio(cents)


def test_spans_of_a_step_in_a_process_are_inside_of_the_steps_span(
    well: Stepwell, spans: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(traced_steps.SPANS, str(tmp_path / "spans.txt"))
    assert well.start(apart, 7).result(WAIT) == 7
    [made] = ended(spans, "traced.step", 1)
    name, trace_id, parent = (tmp_path / "spans.txt").read_text().split()
    assert (name, trace_id, parent) == ("inner", f"{made.context.trace_id:032x}", f"{made.context.span_id:016x}")


def test_run_belongs_to_the_trace_of_its_caller(well: Stepwell, spans: InMemorySpanExporter) -> None:
    with opentelemetry.trace.get_tracer("shop").start_as_current_span("request") as request:
        run = well.start(plain, 7)
    assert run.result(WAIT) == 7
    [packed] = ended(spans, "t.pack", 1)
    assert packed.context.trace_id == request.get_span_context().trace_id


def test_dispatch_of_a_queue_item_is_a_span(well: Stepwell, spans: InMemorySpanExporter) -> None:
    item = well.enqueue(plain, 7)
    assert item.result(WAIT) == 7
    [dispatch] = ended(spans, "dispatch t.plain", 1)
    assert dispatch.attributes["stepwell.item_id"] == item.item_id
    [session] = ended(spans, "run t.plain", 1)
    assert dispatch.context.trace_id == session.context.trace_id


def test_without_a_tracer_provider_nothing_is_recorded(well: Stepwell) -> None:
    from stepwell.telemetry import current_trace_id, live_tracer

    assert (live_tracer(), current_trace_id()) == (None, None)
    assert well.start(plain, 7).result(WAIT) == 7
