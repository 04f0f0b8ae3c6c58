"""The built-in HTTP request, against a server of the test's own: whom it calls, what it follows, and what it gives."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

import pytest

from stepwell import AddressRefused, ExecutionFailed, InvalidInput, RequestFailed, Stepwell
from stepwell.flow import define
from stepwell.flow import http_request as request_node
from stepwell.runtime.steps import http_step
from stepwell.runtime.steps.http_step import builtin_step, http_request, is_public, public_addresses

seen: list[tuple[str, str, dict[str, str], bytes]] = []


class Handler(BaseHTTPRequestHandler):
    """Answers by the path that is asked for."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, self.rfile.read(length)))
        path = self.path.partition("?")[0]
        if path.startswith("/to/"):
            self.send_response(302)
            self.send_header("location", path.removeprefix("/to/").replace("%3A", ":"))
            self.send_header("content-length", "0")
            self.end_headers()
            return
        status = int(path.removeprefix("/status/")) if path.startswith("/status/") else 200
        body = b"x" * 300_000 if path == "/large" else b"plain" if path == "/text" else json.dumps({"n": 1}).encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain" if path == "/text" else "application/json; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_HEAD = _answer  # noqa: N815 - the names that the server looks for


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server whose name is resolved to its loopback address, as a public name would be to a public one."""
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    here = {"api.example": "127.0.0.1", "other.example": "127.0.0.1"}

    def resolve(host: str, port: int) -> list[tuple[int, str]]:
        return [(socket.AF_INET, here[host])] if host in here else public_addresses(host, port)

    monkeypatch.setattr(http_step, "public_addresses", resolve)
    seen.clear()
    yield f"http://api.example:{found.server_port}"
    found.shutdown()
    found.server_close()


def test_request_gives_status_headers_and_body(server: str) -> None:
    answer: Any = http_request({"url": f"{server}/json", "query": {"q": "a b"}, "headers": {"X-Trace": "7"}})
    assert (answer["status"], answer["body"]) == (200, {"n": 1})
    assert answer["headers"]["content-type"].startswith("application/json")
    method, path, headers, _ = seen[0]
    assert (method, path, headers["x-trace"]) == ("GET", "/json?q=a+b", "7")
    assert headers["host"].startswith("api.example:")
    assert http_request(f"{server}/text")["body"] == "plain"


def test_json_is_posted(server: str) -> None:
    http_request({"url": f"{server}/", "json": {"a": [1]}})
    method, _, headers, body = seen[0]
    assert (method, headers["content-type"], json.loads(body)) == ("POST", "application/json", {"a": [1]})


def test_status_that_is_not_expected_is_a_failure_with_its_class(server: str) -> None:
    with pytest.raises(RequestFailed, match="404") as caught:
        http_request(f"{server}/status/404")
    assert caught.value.status == 404
    answer: Any = http_request({"url": f"{server}/status/404", "expect": [404]})
    assert answer["status"] == 404


def test_answer_that_is_too_large_is_refused(server: str) -> None:
    with pytest.raises(RequestFailed, match="more than 200,000 bytes"):
        http_request(f"{server}/large")


def test_redirect_is_followed_and_secrets_stay_with_the_host_they_are_for(server: str) -> None:
    secret = {"authorization": "Bearer hush"}
    http_request({"url": f"{server}/to//text", "secret_headers": secret})
    assert [headers.get("authorization") for _, _, headers, _ in seen] == ["Bearer hush", "Bearer hush"]
    seen.clear()
    elsewhere = server.replace("api.example", "other.example").replace(":", "%3A")
    http_request({"url": f"{server}/to/{elsewhere}/text", "secret_headers": secret})
    assert [headers.get("authorization") for _, _, headers, _ in seen] == ["Bearer hush", None]


def test_redirect_to_another_host_takes_no_authorization_along(server: str) -> None:
    headers = {"Authorization": "Bearer hush", "Cookie": "id=1", "X-Trace": "7"}
    elsewhere = server.replace("api.example", "other.example").replace(":", "%3A")
    http_request({"url": f"{server}/to//text", "headers": headers})
    http_request({"url": f"{server}/to/{elsewhere}/text", "headers": headers})
    assert [found.get("authorization") for _, _, found, _ in seen] == ["Bearer hush"] * 3 + [None]
    assert [found.get("cookie") for _, _, found, _ in seen] == ["id=1"] * 3 + [None]
    assert [found.get("x-trace") for _, _, found, _ in seen] == ["7"] * 4


def test_redirect_to_an_inner_address_is_refused(server: str) -> None:
    with pytest.raises(AddressRefused, match=r"169\.254\.169\.254"):
        http_request(f"{server}/to/http%3A//169.254.169.254/latest/meta-data")


def test_endless_redirects_end(server: str) -> None:
    path = "/text"
    for _ in range(7):
        path = f"/to/{path}"
    with pytest.raises(RequestFailed, match="redirects more than 5 times"):
        http_request(server + path)


def test_slow_server_is_not_waited_for() -> None:
    request = http_step._request_of("http://api.example/")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(TimeoutError):
        http_step.send(request, time.monotonic() - 1)


_PATIENCE_SECONDS = 10
"""Of a server that is to be left before: far more than a request to it may take, and far less than one takes without a limit."""


class Silent:
    """A server that hears a request and says nothing more, until the other side has left or a long time has passed."""

    def __init__(self, says: bytes) -> None:
        self._says, self._socket = says, socket.create_server(("127.0.0.1", 0))
        self.url = f"http://api.example:{self._socket.getsockname()[1]}/"
        self._socket.settimeout(_PATIENCE_SECONDS)
        self.was_left = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._socket, self._socket.accept()[0] as connection:
            connection.settimeout(_PATIENCE_SECONDS)
            try:
                with connection.makefile("rb") as heard:
                    while heard.readline() not in (b"\r\n", b""):
                        pass
                connection.sendall(self._says)
                self.was_left = connection.recv(1) == b""
            except ConnectionError:
                self.was_left = True
            except TimeoutError:
                connection.sendall(b"" if self._says else b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    def is_left(self) -> bool:
        """Whether the other side closed its connection while it had no answer."""
        self._thread.join()
        return self.was_left


@pytest.fixture(params=[b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nplain"], ids=["says nothing", "stops in the middle"])
def silent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Silent:
    """A server that does not answer, or not to the end."""
    monkeypatch.setattr(http_step, "public_addresses", lambda _host, _port: [(socket.AF_INET, "127.0.0.1")])
    return Silent(request.param)


def test_request_ends_when_its_own_time_is_over_though_the_server_has_not_answered(silent: Silent) -> None:
    step = builtin_step("stepwell.http_request", 0.05)
    assert step is not None
    with pytest.raises(TimeoutError):
        step.function(silent.url)
    assert silent.is_left()


def test_request_of_a_run_fails_when_its_time_is_over_and_leaves_no_connection_behind(silent: Silent) -> None:
    with Stepwell("memory://") as well:
        run = well.start(define("reach-out", request_node(silent.url, timeout_seconds=0.05)))
        with pytest.raises(ExecutionFailed, match="TimeoutError"):
            run.result(60)
        assert silent.is_left()


def test_answer_that_is_cut_off_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_step, "public_addresses", lambda _host, _port: [(socket.AF_INET, "127.0.0.1")])

    def cut_off(server: socket.socket) -> None:
        with server, server.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nplain")

    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=cut_off, args=(server,))
    thread.start()
    with pytest.raises(ConnectionError, match="4 bytes before the end"):
        http_request(f"http://api.example:{server.getsockname()[1]}/")
    thread.join()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://[::1]/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://172.16.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://0.0.0.0/",
        "http://100.64.0.1/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://2130706433/",
        "http://0x7f.1/",
    ],
)
def test_inner_addresses_are_refused_however_they_are_written(url: str) -> None:
    with pytest.raises((AddressRefused, socket.gaierror)):
        http_request(url)


@pytest.mark.parametrize(
    ("address", "is_it"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("224.0.0.1", False),
        ("::", False),
        ("2002:7f00:1::", False),
    ],
)
def test_public_means_the_open_internet(address: str, is_it: bool) -> None:
    assert is_public(ip_address(address)) is is_it


@pytest.mark.parametrize(
    "given",
    [
        "ftp://api.example/",
        "file:///etc/passwd",
        "http://user:pass@api.example/",
        "http:///nowhere",
        "http://api.example/\r\nX: 1",
        {"url": "http://api.example/", "method": "TRACE"},
        {"url": "http://api.example/", "headers": {"x": "a\r\nb: c"}},
        {"url": "http://api.example/", "headers": {"host": "other"}},
        {"url": "http://api.example/", "max_bytes": 0},
        {"url": "http://api.example/", "body": 5},
        {"url": "http://api.example/", "bdy": "x"},
        {"method": "GET"},
        7,
    ],
)
def test_requests_that_make_no_sense_are_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        http_request(given)


def test_secret_header_is_in_no_error() -> None:
    with pytest.raises(InvalidInput) as caught:
        http_request({"url": "http://api.example/", "secret_headers": {"authorization": "hush\r\nx: y"}})
    assert "hush" not in str(caught.value)
