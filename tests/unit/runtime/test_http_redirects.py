"""Redirects of the built-in HTTP request: what is sent again, and what is never sent in the clear; and that it can be forbidden."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.support.tls import CA, TlsFront

from stepwell import AddressRefused, ExecutionFailed, Governance
from stepwell.flow import define, http_request
from stepwell.runtime.steps import http_step
from stepwell.testing import SkippingClock, TestWell

seen: list[tuple[str, str, bytes]] = []


class Handler(BaseHTTPRequestHandler):
    """``/302/rest`` is answered with that status, and sends to ``/rest``; ``/clear`` sends to a place without encryption."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        seen.append((self.command, self.path, self.rfile.read(length)))
        status, _, rest = self.path.strip("/").partition("/")
        where = f"http://localhost:{self.server.server_address[1]}/end" if status == "clear" else f"/{rest}"
        self.send_response(302 if status == "clear" else int(status) if status.isdecimal() else 200)
        self.send_header("location", where)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST = _answer  # noqa: N815 - the names that the server looks for


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server on localhost, which counts as public here."""
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(http_step, "public_addresses", lambda _host, _port: [(socket.AF_INET, "127.0.0.1")])
    seen.clear()
    yield found.server_port
    found.shutdown()
    found.server_close()


@pytest.mark.parametrize(("status", "method"), [(301, "GET"), (302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")])
def test_body_goes_along_only_where_the_redirect_says_so(server: int, status: int, method: str) -> None:
    http_step.http_request({"url": f"http://localhost:{server}/{status}/end", "body": "x"})
    assert seen[1] == (method, "/end", b"x" if method == "POST" else b"")


def test_redirect_out_of_encryption_is_not_followed(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CA))
    with TlsFront(server) as front, pytest.raises(AddressRefused, match="not encrypted; it was not followed"):
        http_step.http_request(f"https://localhost:{front.port}/clear")
    assert [path for _, path, _ in seen] == ["/clear"]


def test_request_is_not_sent_by_a_run_that_may_have_no_such_effect(server: int) -> None:
    definition = define("reach-out", http_request(f"http://localhost:{server}/end"))
    with TestWell(SkippingClock()) as well:
        run = well.start(definition, governance=Governance(effects=("mail",)))
        with pytest.raises(ExecutionFailed, match="effects of kind 'http', and this execution may have only mail"):
            run.result()
    assert seen == []
