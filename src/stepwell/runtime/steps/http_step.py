"""The built-in HTTP step: a request to public addresses only, limited in size and time, that records no secret.

A server that fetches URLs for others can be made to fetch from inside its own network (SSRF). So every address that a host name
resolves to must be public; loopback, private, link-local (where clouds keep their metadata), shared, reserved, multicast and
unspecified addresses are refused, also when wrapped in an IPv6 address. A name is resolved once, and the connection goes to the
checked address: a second lookup could lead elsewhere.

Status, headers and body of the response are recorded. Headers of the request are not. Errors name the host and the status, never
a header, a query or a body, since any of them may hold a secret.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

from stepwell.config import HTTP_HOSTS, InternalHosts, internal_hosts
from stepwell.errors import AddressRefused, InvalidInput, RequestFailed
from stepwell.flow.definition.builtin_steps import BUILTINS, fault_of_max_bytes
from stepwell.flow.function import Step
from stepwell.flow.retry import Retry
from stepwell.model.value import Value, canonical

__all__ = [
    "Request",
    "builtin_step",
    "http_step",
    "is_public",
    "public_addresses",
    "send",
]


_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
"""NAT64: the last 32 bits are an IPv4 address."""
_COMPATIBLE = IPv6Network("::/96")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address, and an address wrapped in it, is public."""
    return all(each.is_global and not each.is_multicast and not each.is_reserved for each in _unwrapped(address))


def _unwrapped(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    if isinstance(address, IPv4Address):
        return [address]
    inner: list[IPv4Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in (*_TRANSLATED, _COMPATIBLE)):
        inner.append(IPv4Address(int(address) & 0xFFFFFFFF))
    found = [each for each in inner if each is not None]
    is_wrapper = address.ipv4_mapped is not None or any(address in network for network in _TRANSLATED)
    return [*found] if is_wrapper else [address, *found]


def public_addresses(host: str, port: int) -> list[tuple[int, str]]:
    """Return the family and address of everything that a host name resolves to.

    Raise ``AddressRefused`` if any is not public, unless the operator allows the name or the address (``STEPWELL_HTTP_HOSTS``).
    """
    allowed = internal_hosts()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise AddressRefused(f"{host!r} is no host name") from None
    addresses = list(dict.fromkeys((int(family), str(place[0])) for family, _, _, _, place in found))
    if host.lower().rstrip(".") in allowed.names:
        return addresses
    for _, text in addresses:
        if not _may_be_reached(ip_address(text.partition("%")[0]), allowed):
            raise AddressRefused(
                f"{host!r} leads to {text}, which is not a public address; the request was not sent. The operator of the worker "
                f"can allow it with {HTTP_HOSTS}"
            )
    return addresses


def _may_be_reached(address: IPv4Address | IPv6Address, allowed: InternalHosts) -> bool:
    """Return whether an address, and an address wrapped in it, is public or in a network that the operator allows."""
    return all(is_public(each) or any(each in network for network in allowed.networks) for each in _unwrapped(address))


_MAX_BYTES = 200_000
"""The response is recorded, and a recorded value has at most 256 KiB."""
_MAX_REDIRECTS = 5
_TIMEOUT_SECONDS = 30.0
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_KEEPING = frozenset({307, 308})
_REDIRECTS = frozenset({301, 302, 303}) | _KEEPING
_PRIVATE_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
_CHUNK = 65_536


class Request(NamedTuple):
    """A checked request."""

    url: str
    method: str
    headers: dict[str, str]
    secret_headers: dict[str, str]
    body: bytes | None
    expect: tuple[int, ...]
    max_bytes: int


class _Connection(http.client.HTTPConnection):
    """A connection to a checked address, no matter what the host's name resolves to by now."""

    def __init__(self, url: SplitResult, deadline: float) -> None:
        self._is_secure = url.scheme == "https"
        port = url.port or (443 if self._is_secure else 80)
        super().__init__(url.hostname or "", port, timeout=_left(deadline))
        self._deadline = deadline

    def connect(self) -> None:
        """Connect to the first of the host's addresses that accepts."""
        failure: OSError | None = None
        for _, address in public_addresses(self.host, self.port):
            try:
                self.sock = socket.create_connection((address, self.port), timeout=_left(self._deadline))
                break
            except OSError as error:
                failure = error
        else:
            raise failure or ConnectionError(f"{self.host!r} has no address")
        if self._is_secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the request took too long")
    return left


def http_request(value: Any, seconds: float = _TIMEOUT_SECONDS) -> Value:
    """Send a request, and return ``status``, ``headers`` and ``body``."""
    try:
        return send(_request_of(value), time.monotonic() + seconds)
    except TimeoutError as error:
        raise TimeoutError(f"the request took longer than {seconds:g} s, the timeout_seconds of its node") from error


def send(request: Request, deadline: float) -> Value:
    """Send a request, follow redirects (each checked like the first), and return the response."""
    for _ in range(_MAX_REDIRECTS + 1):
        url = _checked_url(request.url)
        answer = _ask(request, url, deadline)
        location = cast("dict[str, str]", answer["headers"]).get("location")
        if answer["status"] not in _REDIRECTS or location is None or answer["status"] in request.expect:
            return _expected(answer, request, url)
        request = _redirected(request, url, location, answer["status"])
    raise RequestFailed(f"{urlsplit(request.url).hostname!r} redirects more than {_MAX_REDIRECTS} times")


def _redirected(request: Request, url: SplitResult, location: str, status: int) -> Request:
    target = urljoin(request.url, location)
    there = urlsplit(target)
    is_same = (url.scheme, url.hostname, url.port) == (there.scheme, there.hostname, there.port)
    if url.scheme == "https" and there.scheme != "https":
        raise AddressRefused(f"{url.hostname!r} redirects to a connection that is not encrypted; it was not followed")
    # Authorization is not for another host or port, whether or not it was given as a secret.
    headers = {name: text for name, text in request.headers.items() if is_same or name not in _PRIVATE_HEADERS}
    request = request._replace(url=target, headers=headers, secret_headers=request.secret_headers if is_same else {})
    return request if status in _KEEPING else request._replace(method="HEAD" if request.method == "HEAD" else "GET", body=None)


def _ask(request: Request, url: SplitResult, deadline: float) -> dict[str, Value]:
    connection = _Connection(url, deadline)
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    try:
        connection.request(request.method, target, request.body, {**request.headers, **request.secret_headers})
        response = connection.getresponse()
        headers = {name.lower(): text for name, text in response.getheaders()}
        body = b"" if request.method == "HEAD" else _read(response, connection, request.max_bytes, deadline)
        return {"status": response.status, "headers": headers, "body": _body(body, headers)}
    except http.client.HTTPException as error:
        raise ConnectionError(f"{url.hostname!r} did not answer as HTTP: {type(error).__name__}") from None
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, connection: _Connection, most: int, deadline: float) -> bytes:
    """Return the body, unless it is too large or too slow."""
    parts: list[bytes] = []
    size = 0
    while chunk := response.read1(_CHUNK):
        parts.append(chunk)
        size += len(chunk)
        if size > most:
            raise RequestFailed(f"{connection.host!r} answered with more than {most:,} bytes; raise max_bytes, or ask for less")
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline))
    if response.length:
        raise ConnectionError(f"{connection.host!r} closed the connection {response.length:,} bytes before the end of its answer")
    return b"".join(parts)


def _body(data: bytes, headers: Mapping[str, str]) -> Value:
    """Return JSON as a value, anything else as text."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    text = data.decode(errors="replace").replace("\0", "\ufffd")
    if kind == "application/json" or kind.endswith("+json"):
        try:
            value = json.loads(text)
            canonical(value, what="the answer")
            return value
        except (ValueError, InvalidInput, RecursionError):
            pass  # labelled as JSON, but is none
    return text


def _expected(answer: dict[str, Value], request: Request, url: SplitResult) -> Value:
    status = answer["status"]
    if status in request.expect or (not request.expect and status < 400):
        return answer
    raise RequestFailed(f"{request.method} to {url.hostname!r} was answered with {status}", status=status)


# Checks of the request.


def _request_of(value: Any) -> Request:
    given = {"url": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise InvalidInput(f"http_request takes an object or a URL, not {type(value).__name__}")
    asked = cast("Mapping[str, Any]", given)
    builtin = BUILTINS["http_request"]
    unknown = sorted(asked.keys() - builtin.required - builtin.optional)
    if unknown or "url" not in asked:
        raise InvalidInput(
            f"http_request needs a url, and does not take {', '.join(unknown)}" if unknown else "http_request needs a url"
        )
    method = str(asked.get("method") or ("GET" if asked.get("json") is None and asked.get("body") is None else "POST")).upper()
    if method not in _METHODS:
        raise InvalidInput(f"the method is one of {', '.join(sorted(_METHODS))}, not {method!r}")
    body, kind = _content(asked)
    headers = {
        "accept": "*/*",
        "accept-encoding": "identity",
        "user-agent": "stepwell",
        **kind,
        **_headers(asked.get("headers"), "headers"),
    }
    expect = asked.get("expect") or ()
    wanted = tuple(cast("list[int]", expect)) if isinstance(expect, list) else (expect,) if isinstance(expect, int) else ()
    return Request(
        _url(asked), method, headers, _headers(asked.get("secret_headers"), "secret_headers"), body, wanted, _most(asked)
    )


def _content(asked: Mapping[str, Any]) -> tuple[bytes | None, dict[str, str]]:
    if asked.get("json") is not None:
        return canonical(asked["json"]), {"content-type": "application/json"}
    body = asked.get("body")
    if body is None:
        return None, {}
    if not isinstance(body, str):
        raise InvalidInput(f"the body is a text, not {type(body).__name__}; for a value there is json")
    return body.encode(), {"content-type": "text/plain; charset=utf-8"}


def _headers(given: Any, what: str) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{what} is an object of texts by name")
    headers = {str(name).lower(): str(text) for name, text in cast("Mapping[Any, Any]", given).items()}
    for name, text in headers.items():
        if not name.isascii() or any(letter in name + text for letter in "\r\n\0") or name in ("host", "content-length"):
            raise InvalidInput(
                f"{what} has a name or text that cannot be a header: {name!r}"
            )  # without its value, which may be secret
    return headers


def _url(asked: Mapping[str, Any]) -> str:
    url = str(asked["url"])
    query = asked.get("query")
    if isinstance(query, Mapping) and query:
        url += ("&" if "?" in url else "?") + urlencode(cast("dict[str, Any]", query), doseq=True)
    return url


def _most(asked: Mapping[str, Any]) -> int:
    most = asked.get("max_bytes", _MAX_BYTES)
    if fault := fault_of_max_bytes(most):
        raise InvalidInput(fault)
    return most


def _checked_url(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        raise InvalidInput("the url cannot be read") from None
    if url.scheme not in ("http", "https") or not url.hostname:
        raise InvalidInput(f"the url must begin with http:// or https:// and name a host, not {url.scheme!r}")
    if url.username is not None or url.password is not None:
        raise InvalidInput("the url has a name or password in it; put them into secret_headers")
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in text):
        raise InvalidInput("the url has a space or control character in it")
    return url


def http_step(seconds: float | None) -> Step[..., Any]:
    """Return the request as a step: a plain one, so that it runs in a thread."""
    limit = _TIMEOUT_SECONDS if seconds is None else seconds

    def request(value: Any) -> Value:
        return http_request(value, limit)

    return Step(request, BUILTINS["http_request"].uses, Retry(attempts=1), limit, effect="http")


def builtin_step(uses: str, seconds: float | None) -> Step[..., Any] | None:
    """Return the built-in step of a name, if it is one, with its timeout."""
    if uses != BUILTINS["http_request"].uses:
        return None

    return http_step(seconds)
