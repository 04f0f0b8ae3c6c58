"""Parse a ``postgresql:`` URL into settings, and name the server for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg import conninfo

from stepwell.config import without_secrets
from stepwell.duration import written_seconds
from stepwell.errors import InvalidInput

__all__ = ["PostgresSettings", "parse_url"]

# A dead peer (an unplugged cable, a firewall that dropped the connection) is noticed after about half a minute; the system's own
# default is two hours. Whatever the URL says about these wins.
_KEEPALIVE = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "25000"}


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one PostgreSQL store."""

    conninfo: str
    """For libpq, with the password: never shown."""
    place: str
    """The server, database and schema, as messages name them."""
    user: str
    database: str
    schema: str = "stepwell"
    pool_size: int = 4
    """How many connections may read at once; one more writes."""
    connect_timeout: int = 5
    reply_timeout: float = 60
    """Seconds after which a server that does not answer is given up."""
    is_preparing: bool = True
    """Whether statements are prepared on the server; a PgBouncer before 1.21 in transaction mode cannot have that."""
    has_row_security: bool | None = None
    """Switch row-level security on or off when opening; None leaves it as it is."""

    def __repr__(self) -> str:
        return f"<Settings {self.place}>"  # without the password, which would come into logs


def parse_url(url: str) -> PostgresSettings:
    """Return the settings in a URL such as ``postgresql://user:password@host/database?schema=stepwell``.

    Our own options are taken out, and libpq gets the rest: ``sslmode``, several hosts, and whatever else it knows.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    own = {field: read(options.pop(name)) for name, (field, read) in _OPTIONS.items() if name in options}
    has_many_hosts = "," in parts.netloc or "," in options.get("host", "")
    timeout = own.get("connect_timeout", 5)
    try:
        # A URL without a host (postgresql:///database) must keep its slashes, which urlunsplit drops.
        bare = f"postgresql://{parts.netloc}{urlunsplit(('', '', parts.path, urlencode(options, quote_via=quote), ''))}"
        given = conninfo.conninfo_to_dict(bare)
    except psycopg.Error as error:
        raise InvalidInput(f"{without_secrets(url)!r} is no PostgreSQL URL: {str(error).strip()}") from None
    defaults = {**_KEEPALIVE, "application_name": "stepwell", "client_encoding": "UTF8"}
    if has_many_hosts:
        defaults["target_session_attrs"] = "read-write"
    chosen = {**defaults, **given, "connect_timeout": str(timeout)}
    return PostgresSettings(
        conninfo=conninfo.make_conninfo("", **chosen),
        place=_place(given, own.get("schema", "stepwell")),
        user=str(given.get("user", "")),
        database=str(given.get("dbname", "")),
        **own,
    )


def _place(given: dict[str, Any], schema: str) -> str:
    host, port = given.get("host") or given.get("hostaddr") or "the local socket", given.get("port", "5432")
    return f"PostgreSQL at {host}:{port}, database {given.get('dbname', '')!r}, schema {schema!r}"


def _number(name: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise InvalidInput(f"{name} is a number from {least} to {most}, not {text!r}")
        return number

    return read


def _span(name: str, least: float, most: float) -> Callable[[str], float]:
    return lambda text: written_seconds(text, name, least=least, most=most)


def _switch(name: str) -> Callable[[str], bool]:
    def read(text: str) -> bool:
        if text not in ("on", "off"):
            raise InvalidInput(f"{name} is on or off, not {text!r}")
        return text == "on"

    return read


def _schema(text: str) -> str:
    # 63 bytes is where PostgreSQL cuts names, and two cut names could meet.
    if not text or "\0" in text or len(text.encode()) > 63 or text.startswith("pg_"):
        raise InvalidInput(f"schema is a name of 1 to 63 bytes that does not start with pg_, not {text!r}")
    return text


_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "schema": ("schema", _schema),
    # libpq counts whole seconds and takes 2 for 1.
    "connect_timeout": ("connect_timeout", _number("connect_timeout", 2, 600)),
    "reply_timeout": ("reply_timeout", _span("reply_timeout", 0.1, 86_400)),
    "pool_size": ("pool_size", _number("pool_size", 1, 1_000)),
    "prepare": ("is_preparing", _switch("prepare")),
    "rls": ("has_row_security", _switch("rls")),
}
