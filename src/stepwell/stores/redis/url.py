"""Read a ``redis:`` URL: where the server is, and how the store uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec
from redis.backoff import NoBackoff
from redis.retry import Retry

from stepwell.duration import LONGEST_SECONDS, written_seconds
from stepwell.errors import InvalidInput

__all__ = ["RedisSettings", "parse_url"]

_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_SENTINEL = ("sentinel_username", "sentinel_password")
_OPTIONS = {"prefix", "execution_ttl", "connect_timeout", "timeout", *_TLS, *_SENTINEL}
_SENTINEL_PORT = 26379


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a ``redis:`` URL."""

    host: str = ""
    """Host of the server; empty if Sentinels name it."""
    port: int = 6379
    sentinels: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of the Sentinels to ask for the primary; empty for a server that the URL names itself."""
    service: str = ""
    """The name under which the Sentinels watch the primary."""
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    database: int = 0
    username: str | None = None
    password: str | None = None
    is_encrypted: bool = False
    tls: Mapping[str, str] = {}
    prefix: str = "stepwell"
    """The start of every key; stores with different prefixes share a database without meeting."""
    execution_ttl_ms: int = 0
    """How long an execution is kept after its last write; 0 for ever."""
    connect_seconds: float = 5.0
    reply_seconds: float = 10.0
    """How long a reply may take; a write that takes longer is reported as unknown."""

    @property
    def name(self) -> str:
        """Return the server as messages name it, without a password."""
        scheme = "rediss" if self.is_encrypted else "redis"
        if self.sentinels:
            hosts = ",".join(f"{host}:{port}" for host, port in self.sentinels)
            return f"{scheme}+sentinel://{hosts}/{self.service}/{self.database}"
        return f"{scheme}://{self.host}:{self.port}/{self.database}"

    def __repr__(self) -> str:
        return f"<Settings {self.name}>"  # without the password, which would appear in logs

    def driver_options(self) -> dict[str, Any]:
        """Return the arguments of a driver's connection, without host and port.

        The socket's timeout is that of connecting; the connection gets the one for replies once it is open.
        """
        return {
            "db": self.database,
            "username": self.username,
            "password": self.password,
            "socket_timeout": self.connect_seconds,
            "socket_connect_timeout": self.connect_seconds,
            "socket_keepalive": True,
            "protocol": 2,
            **self.tls,
        }

    def sentinel_options(self) -> dict[str, Any]:
        """Return the arguments of a driver's client of one Sentinel, without host and port."""
        return {
            "username": self.sentinel_username,
            "password": self.sentinel_password,
            "socket_timeout": self.connect_seconds,
            "socket_connect_timeout": self.connect_seconds,
            "retry": Retry(NoBackoff(), 0),  # the next Sentinel is asked instead
            **({"ssl": True, **self.tls} if self.is_encrypted else {}),
        }


def parse_url(url: str) -> RedisSettings:
    """Return the settings in a URL; raise ``InvalidInput`` for one that cannot be right.

    ``redis://user:password@host:port/database?prefix=…&execution_ttl=…``, or with Sentinels
    ``redis+sentinel://user:password@host:port,host:port/service/database``; times as ``60`` or ``24h``.
    """
    parts = urlsplit(url)
    options = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    scheme, _, how = parts.scheme.partition("+")
    is_encrypted = scheme in ("rediss", "valkeys")
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise InvalidInput(f"a redis URL takes {', '.join(sorted(_OPTIONS))}; not {', '.join(sorted(unknown))}")
    tls = {name: options[name] for name in _TLS if name in options}
    if tls and not is_encrypted:
        raise InvalidInput(f"{', '.join(sorted(tls))} need an encrypted connection; write rediss:// instead of redis://")
    login = [name for name in _SENTINEL if name in options]
    if login and not how:
        raise InvalidInput(
            f"{', '.join(login)} need a URL with Sentinels; write redis+sentinel://host1:26379,host2:26379/mymaster/0"
        )
    ttl = _seconds(options, "execution_ttl", 0.0, 1.0, LONGEST_SECONDS)
    return RedisSettings(
        **(_sentinel_place(parts) if how else _server_place(parts)),
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        username=None if not parts.username else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        is_encrypted=is_encrypted,
        tls=tls,
        prefix=_prefix(options.get("prefix", "stepwell")),
        execution_ttl_ms=round(ttl * 1000),
        connect_seconds=_seconds(options, "connect_timeout", 5.0, 0.05, 3600.0),
        reply_seconds=_seconds(options, "timeout", 10.0, 0.05, 3600.0),
    )


def _server_place(parts: SplitResult) -> dict[str, Any]:
    return {
        "host": unquote(parts.hostname or "localhost"),
        "port": _port(parts, 6379),
        "database": _database(parts.path.removeprefix("/")),
    }


def _sentinel_place(parts: SplitResult) -> dict[str, Any]:
    service, _, database = parts.path.removeprefix("/").partition("/")
    if not service:
        raise InvalidInput("a redis+sentinel URL names its service, as in redis+sentinel://host1:26379,host2:26379/mymaster/0")
    hosts = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
    places = tuple((unquote(host.hostname or "localhost"), _port(host, _SENTINEL_PORT)) for host in hosts)
    return {"sentinels": places, "service": unquote(service), "database": _database(database)}


def _port(parts: SplitResult, default: int) -> int:
    try:
        return parts.port or default
    except ValueError:
        raise InvalidInput("the port of a redis URL is a number from 1 to 65535") from None


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 6):
        raise InvalidInput(f"the database of a redis URL is a number, as in redis://host:6379/0, not {text!r}")
    return int(text or "0")


def _prefix(text: str) -> str:
    if not text or len(text.encode()) > 64 or "\0" in text:
        raise InvalidInput("the prefix of a redis URL is 1 to 64 bytes of text")
    return text


def _seconds(options: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    if name not in options:
        return default
    return written_seconds(options[name], name, least=least, most=most)
