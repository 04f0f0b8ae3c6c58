"""Payloads for a Temporal server: payloads over its limit stay in the store, and with keys it sees nothing in the clear."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.worker import Replayer
from tests.support.temporal_server import TemporalServer
from tests.temporal.test_faults import until

import stepwell
from stepwell import EncryptionKeyMissing, InvalidInput, Limits, Retry, Run, Scope, Stepwell, TemporalWorker, step, workflow
from stepwell.app.composition import Parts
from stepwell.flow import call, define, sequence, set_variables, signal, subworkflow
from stepwell.model.cipher import KeyRing, new_key
from stepwell.temporal.codec import EncryptionCodec
from stepwell.temporal.messages import MOST_BYTES
from stepwell.temporal.service import HostInterceptor
from stepwell.temporal.workflow import StepwellWorkflow

SIZE = MOST_BYTES + 100_000
ROOMY = Limits(value_bytes=8_000_000)


@step(retry=Retry(attempts=1))
def grow(size: int) -> str:
    return "x" * size


@step(retry=Retry(attempts=1))
def measure(text: str) -> int:
    return len(text)


@step(retry=Retry(attempts=1))
def keep_in_state(size: int) -> int:
    stepwell.current().state(Scope.custom("large")).set("text", "y" * size)
    return size


@step(retry=Retry(attempts=1))
async def measure_later(text: str) -> int:
    return len(text)


@workflow
async def measured(text: str) -> int:
    return await measure_later(text)


CHILD = define("large_child", call("measure", {"text": "{{ trigger.input }}"}, name="m"), output="{{ trigger.input }}")
LARGE = define(
    "large_everywhere",
    call("grow", {"size": SIZE}, name="g"),
    call("measure", {"text": "{{ steps.g.output }}"}, name="m"),
    call("keep_in_state", {"size": SIZE}, name="k"),
    call("measure", {"text": "{{ state.custom.large.text }}"}, name="s"),
    subworkflow("large_child", "{{ steps.g.output }}", name="c"),
    signal("text", name="t"),
    output=["{{ steps.m.output }}", "{{ steps.s.output }}", "{{ steps.c.output }}", "{{ steps.t.output }}"],
)


@pytest.fixture
def roomy(url: str) -> Iterator[Stepwell]:
    with Stepwell(url, worker=False, limits=ROOMY) as well:
        well.definitions.put(CHILD)
        yield well


def history_of(server: TemporalServer, run: Run) -> Any:
    async def fetch() -> Any:
        client = await Client.connect(server.address)
        return await client.get_workflow_handle(f"execution-{run.execution_id}").fetch_history()

    return asyncio.run(fetch())


async def replayed(url: str, history: Any) -> None:
    parts = Parts(url, None, ROOMY, None)
    parts.open()
    try:
        host = parts.temporal_host(concurrency=1, lease_seconds=30)
        await Replayer(workflows=[StepwellWorkflow], interceptors=[HostInterceptor(host)]).replay_workflow(history)
    finally:
        parts.close()


def test_values_over_the_payload_limit_are_kept_in_the_store(roomy: Stepwell, url: str, temporal_server: TemporalServer) -> None:
    with TemporalWorker(url, address=temporal_server.address, grace_seconds=1, limits=ROOMY):
        run = roomy.start(LARGE, engine="temporal")
        run.signal("text", "z" * SIZE)
        assert run.result(timeout=60) == [SIZE, SIZE, "x" * SIZE, "z" * SIZE]
        assert roomy.verify(run.execution_id).ok
        inputs = [roomy.start(each, "i" * SIZE, engine="temporal") for each in (CHILD, measured)]
        items = [roomy.enqueue(each, "q" * SIZE, engine="temporal") for each in (CHILD, measured)]
        assert [each.result(timeout=60) for each in (*inputs, *items)] == ["i" * SIZE, SIZE, "q" * SIZE, SIZE]
    history = history_of(temporal_server, run)
    assert len(history.to_json()) < SIZE
    asyncio.run(replayed(url, history))


def test_value_that_no_store_takes_is_a_typed_failure_and_is_not_tried_for_ever(url: str, temporal_server: TemporalServer) -> None:
    tight = Limits(value_bytes=8_000_000, scope_bytes=2 * SIZE)
    definition = define(
        "too_large",
        call("grow", {"size": SIZE}, name="a"),
        call("grow", {"size": SIZE + 1}, name="b", on_error="continue"),
        output="{{ steps.b.error.code }}",
    )
    with (
        Stepwell(url, worker=False, limits=tight) as well,
        TemporalWorker(url, address=temporal_server.address, grace_seconds=1, limits=tight),
    ):
        run = well.start(definition, engine="temporal")
        assert run.result(timeout=60) == "SW-102"


SECRET = "the number of the card is 4242"


@step
def tell(text: str) -> str:
    if "fail" in text:
        raise ValueError(text)
    return text


SPEAKING = define(
    "speaking",
    call("tell", {"text": SECRET}, name="s"),
    call("tell", {"text": f"fail {SECRET}"}, name="f", on_error="continue", retry=Retry(attempts=1)),
    sequence(set_variables(a="{{ steps.s.output }}"), signal("go", name="go")),
    output="{{ steps.s.output }}",
)


def test_server_sees_nothing_in_the_clear_with_payload_keys(url: str, temporal_server: TemporalServer) -> None:
    keys = {"old": new_key(), "new": new_key()}
    with Stepwell(url, worker=False) as well:
        with TemporalWorker(url, address=temporal_server.address, grace_seconds=1, payload_keys={"old": keys["old"]}):
            run = well.start(SPEAKING, engine="temporal")
            item = well.enqueue(SPEAKING, engine="temporal")
            until(lambda: "f" in well.load(run.execution_id).steps)
        run.signal("go")
        with TemporalWorker(url, address=temporal_server.address, grace_seconds=1, payload_keys=keys):  # a rotated key
            assert run.result(timeout=60) == SECRET
            well.run(item.execution_id).signal("go")
            assert item.result(timeout=60) == SECRET
    for each in (run, well.run(item.execution_id)):
        told = history_of(temporal_server, each).to_json()
        found = [told, *map(_plain, re.findall(r'"data": "([^"]*)"', told))]
        assert len(found) > 10
        assert not any("4242" in each or "trigger" in each for each in found)


def _plain(data: str) -> str:
    return base64.b64decode(data).decode(errors="replace")


def test_payload_opens_under_its_key_and_namespace_alone() -> None:
    first, second = (KeyRing.of({name: new_key()}) for name in ("a", "b"))
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')

    async def sent(writer: EncryptionCodec, reader: EncryptionCodec) -> Payload:
        return (await reader.decode(await writer.encode([plain])))[0]

    assert asyncio.run(sent(EncryptionCodec(first, "n"), EncryptionCodec(first, "n"))) == plain
    with pytest.raises(EncryptionKeyMissing):
        asyncio.run(sent(EncryptionCodec(first, "n"), EncryptionCodec(second, "n")))
    with pytest.raises(stepwell.Corrupted):
        asyncio.run(sent(EncryptionCodec(first, "n"), EncryptionCodec(first, "other")))
    assert asyncio.run(EncryptionCodec(first, "n").decode([plain])) == [plain]


@pytest.mark.parametrize("keys", [{}, {"a": b"short"}])
def test_bad_payload_keys_are_refused_before_anything_is_sent(url: str, keys: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        TemporalWorker(url, address="127.0.0.1:1", payload_keys=keys)
    assert list(tmp_path.iterdir()) == []
