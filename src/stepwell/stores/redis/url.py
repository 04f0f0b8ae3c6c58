"""What a ``redis:`` URL says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

from stepwell.duration import LONGEST_SECONDS, written_seconds
from stepwell.errors import InvalidInput

__all__ = ["RedisSettings", "parse_url"]

_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_OPTIONS = {"prefix", "execution_ttl", "connect_timeout", "timeout", *_TLS}


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is, and how this store uses it."""

    host: str
    port: int = 6379
    database: int = 0
    username: str | None = None
    password: str | None = None
    is_encrypted: bool = False
    tls: Mapping[str, str] = {}
    prefix: str = "stepwell"
    """What every key begins with; stores with different prefixes share a database without meeting."""
    execution_ttl_ms: int = 0
    """How long an execution is kept after its last write; 0 for ever."""
    connect_seconds: float = 5.0
    reply_seconds: float = 10.0
    """How long a reply may take; a write that takes longer is reported as unknown."""

    @property
    def name(self) -> str:
        """The server as messages name it: without a password."""
        return f"redis{'s' if self.is_encrypted else ''}://{self.host}:{self.port}/{self.database}"

    def __repr__(self) -> str:
        return f"<Settings {self.name}>"  # without the password, which would come into logs

    def connection(self) -> dict[str, Any]:
        """The arguments of a driver's connection. Its timeout is that of connecting; replies get theirs later."""
        return {
            "host": self.host,
            "port": self.port,
            "db": self.database,
            "username": self.username,
            "password": self.password,
            "socket_timeout": self.connect_seconds,
            "socket_connect_timeout": self.connect_seconds,
            "socket_keepalive": True,
            "protocol": 2,
            **self.tls,
        }


def parse_url(url: str) -> RedisSettings:
    """The settings in ``redis://user:password@host:port/database?prefix=…&execution_ttl=…``; times as ``60`` or ``24h``."""
    parts = urlsplit(url)
    options = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    is_encrypted = parts.scheme in ("rediss", "valkeys")
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise InvalidInput(f"a redis URL takes {', '.join(sorted(_OPTIONS))}; not {', '.join(sorted(unknown))}")
    tls = {name: options[name] for name in _TLS if name in options}
    if tls and not is_encrypted:
        raise InvalidInput(f"{', '.join(sorted(tls))} need an encrypted connection; write rediss:// instead of redis://")
    ttl = _seconds(options, "execution_ttl", 0.0, 1.0, LONGEST_SECONDS)
    return RedisSettings(
        host=unquote(parts.hostname or "localhost"),
        port=_port(parts),
        database=_database(parts.path),
        username=None if not parts.username else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        is_encrypted=is_encrypted,
        tls=tls,
        prefix=_prefix(options.get("prefix", "stepwell")),
        execution_ttl_ms=round(ttl * 1000),
        connect_seconds=_seconds(options, "connect_timeout", 5.0, 0.05, 3600.0),
        reply_seconds=_seconds(options, "timeout", 10.0, 0.05, 3600.0),
    )


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or 6379
    except ValueError:
        raise InvalidInput("the port of a redis URL is a number from 1 to 65535") from None


def _database(path: str) -> int:
    text = path.removeprefix("/")
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
