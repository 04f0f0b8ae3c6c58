"""Internal hosts that the operator allows, and secret headers that stay with the port they are for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stepwell import AddressRefused, ExecutionFailed, InvalidInput
from stepwell.config import internal_hosts
from stepwell.flow import define, http_request
from stepwell.runtime.steps import http_step
from stepwell.testing import SkippingClock, TestWell

seen: list[tuple[int, str | None]] = []


class Handler(BaseHTTPRequestHandler):
    """Redirects ``/to/PORT`` to that port of the same host."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        seen.append((int(self.server.server_address[1]), self.headers.get("authorization")))
        port = self.path.removeprefix("/to/")
        self.send_response(302 if port.isdecimal() else 200)
        self.send_header("location", f"http://localhost:{port}/end")
        self.send_header("content-length", "0")
        self.end_headers()


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """The ports of two servers on localhost."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    seen.clear()
    yield servers[0].server_port, servers[1].server_port
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("hosts", ["localhost", "LOCALHOST, billing.internal", "127.0.0.0/8,::1", "127.0.0.1,::1"])
def test_hosts_that_the_operator_allows_are_reached(ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch, hosts: str) -> None:
    monkeypatch.setenv("STEPWELL_HTTP_HOSTS", hosts)
    assert http_step.http_request(f"http://localhost:{ports[0]}/end")["status"] == 200


@pytest.mark.parametrize("hosts", ["", "billing.internal", "10.0.0.0/8", "localhost.example"])
def test_other_internal_hosts_stay_refused(ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch, hosts: str) -> None:
    monkeypatch.setenv("STEPWELL_HTTP_HOSTS", hosts)
    with pytest.raises(AddressRefused, match="STEPWELL_HTTP_HOSTS"):
        http_step.http_request(f"http://localhost:{ports[0]}/end")
    assert seen == []


@pytest.mark.parametrize("entry", ["http://localhost", "localhost:80", "10.0.0.0/33", "*.internal", "a b"])
def test_entry_that_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(InvalidInput, match="STEPWELL_HTTP_HOSTS lists"):
        internal_hosts({"STEPWELL_HTTP_HOSTS": entry})


def test_definition_cannot_allow_an_internal_host_by_itself(ports: tuple[int, int]) -> None:
    definition = define("reach-in", http_request(f"http://localhost:{ports[0]}/end", max_bytes=10))
    with TestWell(SkippingClock()) as well, pytest.raises(ExecutionFailed, match="not a public address"):
        well.start(definition).result()


def test_secret_headers_do_not_follow_to_another_port_of_the_host(ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_HTTP_HOSTS", "localhost")
    first, second = ports
    http_step.http_request({"url": f"http://localhost:{first}/to/{second}", "secret_headers": {"authorization": "Bearer x"}})
    assert seen == [(first, "Bearer x"), (second, None)]


def test_node_in_python_limits_the_size_of_an_answer() -> None:
    node: Any = http_request("https://example.com", max_bytes=5_000)
    assert node.args["max_bytes"] == 5_000
