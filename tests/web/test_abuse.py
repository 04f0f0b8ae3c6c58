"""Hostile and broken requests: large, slow, compressed, malformed. The server refuses them and goes on."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.docs.pages import ROOT
from tests.web.running import Running
from tests.web.servers import LIMITS, approve, async_test, fail, greet, served

from stepwell import AsyncStepwell, Conflict
from stepwell.model.access import Identity, Role
from stepwell.testing.store_access import parts_of
from stepwell.web import uvicorn_server
from stepwell.web.events import Event, EventHub, EventResponse
from stepwell.web.problem import HttpProblem
from stepwell.web.rate_limit import RateLimiter
from stepwell.web.settings import HttpLimits

__all__ = ["approve", "fail", "greet"]

RUNS = "/api/v1/runs"
GRAFANA, ALARMS = ROOT / "docs" / "grafana-dashboard.json", ROOT / "docs" / "how-to" / "metrics.md"
COUNTED_LATER = {
    "stepwell_commits_refused_total",
    "stepwell_webhooks_total",
    "stepwell_runs_total",
    "stepwell_queue_ready",
    "stepwell_queue_oldest_ready_seconds",
    "stepwell_queue_running",
    "stepwell_queue_capacity",
    "stepwell_queue_delayed",
    "stepwell_queue_wait_seconds",
}
"""Metrics that have no sample in a store without work."""
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"x" * 5_000, JSON, 413),
        (gzip.compress(b"0" * 1_000_000, mtime=0), {**JSON, "Content-Encoding": "gzip"}, 413),
        (zlib.compress(b"0" * 1_000_000), {**JSON, "Content-Encoding": "deflate"}, 413),
        (gzip.compress(b'{"workflow": "greet"}', mtime=0)[:-4], {**JSON, "Content-Encoding": "gzip"}, 400),
        (b"no gzip", {**JSON, "Content-Encoding": "gzip"}, 400),
        (b"{}", {**JSON, "Content-Encoding": "br"}, 415),
        (b'{"workflow": "greet"}', {"Content-Type": "text/plain"}, 415),
        (b'{"workflow": "greet"}', {"Content-Type": "application/json; charset=latin-1"}, 415),
        (b'{"workflow": "greet", "workflow": "fail"}', JSON, 400),
        (b'{"workflow": "\xff"}', JSON, 400),
        (b'{"workflow": "greet", "input": NaN}', JSON, 400),
        (b'{"workflow": "greet", "input": 1e999}', JSON, 400),
        (b'{"workflow": "greet", "input": 9223372036854775808}', JSON, 400),
        (b"[" * 4_000, JSON, 422),
        (b'{"workflow": "greet", "input": ' + b"[" * 70 + b"]" * 70 + b"}", JSON, 422),
        (b'{"workflow": 7}', JSON, 422),
        (b'{"workflow": "greet", "surprise": 1}', JSON, 422),
        (b"", JSON, 400),
        (b"null", JSON, 422),
    ],
)
@async_test
async def test_a_body_that_cannot_be_accepted_is_refused(body: bytes, headers: dict[str, str], status: int):
    async with served(worker=False, limits=LIMITS) as api, api.client() as client:
        reply = await client.post(RUNS, content=body, headers=headers)
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/problem+json"
        assert await api.well.executions.list() == []


@async_test
async def test_a_gzip_bomb_is_not_inflated_beyond_the_limit():
    bomb = gzip.compress(b"0" * 100_000_000)
    async with served(worker=False, limits=HttpLimits(body_bytes=200_000)) as api, api.client() as client:
        assert len(bomb) < 200_000
        await client.get(RUNS)
        tracemalloc.start()
        try:
            reply = await client.post(RUNS, content=bomb, headers={**JSON, "Content-Encoding": "gzip"})
            assert reply.status_code == 413
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


@async_test
async def test_a_compressed_body_is_read():
    async with served(worker=False) as api, api.client() as client:
        body = gzip.compress(json.dumps({"workflow": "greet"}).encode())
        assert (await client.post(RUNS, content=body, headers={**JSON, "Content-Encoding": "gzip"})).status_code == 202


@async_test
async def test_a_chunked_body_ends_at_the_limit():
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1_024
            yield b"x" * 1_024

    async with served(worker=False, limits=LIMITS) as api, api.client() as client:
        assert (await client.post(RUNS, content=endless(), headers=JSON)).status_code == 413
        assert sent <= 8_192


@async_test
async def test_a_body_that_does_not_arrive_is_given_up():
    async with served(worker=False, limits=LIMITS) as api:
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {api.tokens['acme']}".encode()), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "method": "POST", "path": RUNS, "raw_path": RUNS.encode(), "query_string": b"", "headers": headers,
            "http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("203.0.113.9", 1), "root_path": "",
        }  # fmt: skip
        await api.app(scope, receive, send)
        assert sent[0]["status"] == 408


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/runs?limit=201", 422),
        ("/api/v1/runs?limit=0", 422),
        ("/api/v1/runs?limit=x", 422),
        ("/api/v1/runs?nonsense=1", 422),
        ("/api/v1/runs?limit=1&limit=2", 400),
        ("/api/v1/runs?" + "&".join(f"a{number}=1" for number in range(100)), 400),
        ("/api/v1/runs/%FF", 400),
        ("/api/v1/runs/a%00b", 400),
        ("/api/v1/runs/" + "x" * 600, 422),
        ("/api/v1/nothing", 404),
        ("/api/v1/../../etc/passwd", 404),
        ("/api/v1/runs/a/state?at=-1", 422),
    ],
)
@async_test
async def test_an_address_that_makes_no_sense_is_refused(path: str, status: int):
    async with served(worker=False) as api, api.client() as client:
        assert (await client.get(path)).status_code == status


@async_test
async def test_other_methods_media_and_keys_are_refused():
    async with served(worker=False) as api, api.client() as client:
        wrong = await client.patch(RUNS)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS, POST")
        assert (await client.options(RUNS)).headers["allow"] == "GET, HEAD, OPTIONS, POST"
        head = await client.head(RUNS)
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        assert (await client.get(RUNS, headers={"Accept": "text/csv"})).status_code == 406
        long = await client.post(RUNS, json={"workflow": "greet"}, headers={"Idempotency-Key": "x" * 256})
        assert long.status_code == 400


@async_test
async def test_every_reply_has_security_headers_and_a_request_id():
    async with served(worker=False) as api, api.client() as client:
        traced = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
        for path in (RUNS, "/livez", "/login", "/api/v1/nothing", "/nothing"):
            reply = await client.get(path, headers={"Request-Id": "mine-7", "traceparent": traced})
            assert reply.headers["content-security-policy"].startswith("default-src 'none'")
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert (reply.headers["request-id"], reply.headers["traceparent"]) == ("mine-7", traced)
        forged = await client.get("/livez", headers={"Request-Id": "a b"})
        assert forged.headers["request-id"] != "a b"


@async_test
async def test_large_integers_come_as_texts_on_request():
    async with served() as api, api.client() as client:
        await client.put("/api/v1/state/workspace/keys/n", json={"value": [2**60, 7, True]}, headers={"If-None-Match": "*"})
        plain = await client.get("/api/v1/state/workspace/keys/n")
        assert plain.json()["value"] == [2**60, 7, True]
        exact = await client.get("/api/v1/state/workspace/keys/n", headers={"Accept": "application/json;ints=string"})
        assert exact.json()["value"] == [str(2**60), 7, True]


def test_requests_over_the_rate_are_refused_until_the_window_ends():
    now = 0.0
    limiter = RateLimiter(HttpLimits(reads_per_minute=2), clock=lambda: now)
    ada, eve = (Identity(name=name, role=Role.VIEWER, workspace="acme", token_id=name) for name in ("ada", "eve"))
    assert limiter.take(ada, is_write=False)["RateLimit"] == '"read";r=1;t=60'
    limiter.take(ada, is_write=False)
    with pytest.raises(HttpProblem) as refused:
        limiter.take(ada, is_write=False)
    assert (refused.value.kind.status, refused.value.headers["Retry-After"]) == (429, "60")
    limiter.take(ada, is_write=True)
    limiter.take(eve, is_write=False)
    now = 60.0
    limiter.take(ada, is_write=False)


@async_test
async def test_a_store_that_is_away_is_told_without_a_trace():
    async with served(worker=False) as api, api.client() as client, api.client(address="127.0.0.1") as local:
        token = (await client.get("/api/v1/whoami")).status_code
        assert token == 200
        parts_of(api.well).store.close()
        reply = await client.get(RUNS)
        assert (reply.status_code, reply.json()["code"], reply.json()["retryable"]) == (503, "SW-300", True)
        assert "Traceback" not in reply.text
        ready = await local.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["parts"]["read"] != "ok"
        assert (await client.get("/readyz")).json()["parts"]["read"] == "failing"
        assert (await client.get("/livez")).status_code == 200


@async_test
async def test_metrics_answer_this_machine_only():
    async with served(worker=False) as api, api.client() as client, api.client(None, address="127.0.0.1") as local:
        await client.get(RUNS)
        await api.well.start(greet, workspace="acme")
        assert (await client.get("/metrics")).status_code == 404
        text = (await local.get("/metrics")).text
        assert 'stepwell_http_requests_total{route="list_runs",status="200"} 1.0' in text
        assert "stepwell_queue_startable 0" in text
        assert 'stepwell_up{part="write"} 1' in text
        assert "stepwell_commits_total 1\n" in text
        families = list(text_string_to_metric_families(text))
        samples = {sample.name for family in families for sample in family.samples} | {family.name for family in families}
        assert "stepwell_store_write_seconds_bucket" in samples
        named = set(re.findall(r"\bstepwell_[a-z_]+", GRAFANA.read_text(encoding="utf-8") + ALARMS.read_text(encoding="utf-8")))
        assert named - samples - COUNTED_LATER == set()


async def allowed() -> bool:
    """Answer for a caller whose token stays."""
    return True


class Never:
    """An iterator of events that are always there."""

    def __aiter__(self) -> Never:
        return self

    async def __anext__(self) -> Event:
        return Event(event="run", id=1, data="x" * 1_000)


@async_test
async def test_a_client_that_does_not_read_events_is_dropped():
    dropped: list[bool] = []
    async with served(worker=False) as api:
        limits = HttpLimits(event_send_seconds=0.05)
        hub = EventHub(api.well, limits)
        response = EventResponse(hub, Never(), limits, is_lines=False, is_allowed=allowed, on_drop=lambda: dropped.append(True))
        sent = 0

        async def send(_: Any) -> None:
            nonlocal sent
            sent += 1
            if sent > 3:
                await asyncio.sleep(60)

        async def receive() -> Any:
            await asyncio.sleep(60)

        await asyncio.wait_for(response({"type": "http"}, receive, send), 5)
        assert dropped == [True]
        assert hub.clients == 0


@async_test
async def test_a_stream_ends_when_its_client_leaves():
    async with served() as api:
        await api.well.start(approve, workspace="acme", execution_id="a")
        hub = EventHub(api.well, HttpLimits())
        response = EventResponse(
            hub, hub.run_events("a", 0, None), HttpLimits(), is_lines=False, is_allowed=allowed, on_drop=lambda: None
        )
        is_gone = asyncio.Event()

        async def send(_: Any) -> None:
            is_gone.set()

        async def receive() -> Any:
            await is_gone.wait()
            return {"type": "http.disconnect"}

        await asyncio.wait_for(response({"type": "http"}, receive, send), 1)
        assert (hub.clients, hub._runs) == (0, {})
        await hub.close()


@async_test
async def test_streams_beyond_the_limit_are_refused():
    async with served(worker=False, limits=HttpLimits(event_clients=1)) as api, api.client() as client:
        hub = EventHub(api.well, HttpLimits(event_clients=1))
        hub.clients = 1
        with pytest.raises(HttpProblem, match="streams of events are open"):
            hub.check_room()
        assert (await client.get("/livez")).status_code == 200


def test_a_request_whose_head_does_not_arrive_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uvicorn_server, "_HEADER_SECONDS", 0.2)
    with Running(worker=False) as running:
        host, port = running.url.removeprefix("http://").split(":")
        slow = [socket.create_connection((host, int(port)), timeout=10) for _ in range(50)]
        for each in slow:
            each.sendall(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        with socket.create_connection((host, int(port)), timeout=10) as healthy:
            began = time.monotonic()
            healthy.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert healthy.recv(100).startswith(b"HTTP/1.1 200")
            assert time.monotonic() - began < 2
        for each in slow:
            assert each.recv(100) == b""
            each.close()


def test_two_lengths_and_smuggled_heads_are_refused():
    with Running(worker=False) as running:
        host, port = running.url.removeprefix("http://").split(":")
        head = b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\n"
        for lengths in (
            b"Content-Length: 2\r\nContent-Length: 3\r\n",
            b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n",
        ):
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(head + lengths + b"\r\n{}")
                assert client.recv(1_000).startswith(b"HTTP/1.1 400")


@async_test
async def test_a_revoked_token_ends_its_streams():
    async with served(worker=False, limits=HttpLimits(heartbeat_seconds=0.05)) as api, api.client() as client:
        await api.well.start(approve, workspace="acme", execution_id="a")
        reading = asyncio.ensure_future(client.get(f"{RUNS}/a/events?after=-1", headers={"Accept": "text/event-stream"}))
        await asyncio.sleep(0.1)
        assert not reading.done()
        [token] = [each for each in await api.well.access.tokens() if each.name == "acme"]
        await api.well.access.revoke_token(token.token_id)
        stream = (await asyncio.wait_for(reading, 5)).text
        assert "heartbeat" in stream
        assert stream.endswith('event: end\ndata: {"reason":"the token was revoked or has expired"}\n\n')


@async_test
async def test_the_head_of_a_stream_is_no_stream():
    async with served(worker=False) as api, api.client() as client:
        assert (await asyncio.wait_for(client.head("/api/v1/events"), 5)).status_code == 200


@async_test
async def test_metrics_count_refused_commits_and_leases(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/w.db"
    async with served(url) as api, api.client(None, address="127.0.0.1") as local, AsyncStepwell(url, worker=False) as other:
        await api.well.create("x", "acme")
        late, early = api.well.transaction("x"), other.transaction("x")
        await late.begin()
        await early.begin()
        late.set_variable("a", 1)
        early.set_variable("a", 2)
        await early.commit()
        with pytest.raises(Conflict):
            await late.commit()
        await api.well.start(approve, workspace="acme")
        while not api.well.leases:  # noqa: ASYNC110 - its worker has it soon
            await asyncio.sleep(0.005)
        text = (await local.get("/metrics")).text
        assert 'stepwell_commits_refused_total{error="Conflict"} 1\n' in text
        assert "stepwell_leases 1\n" in text
