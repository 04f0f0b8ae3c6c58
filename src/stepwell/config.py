"""Find the store's URL, and hide the password in one that is logged."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from stepwell.errors import InvalidInput

__all__ = ["DEFAULT_URL", "HTTP_HOSTS", "InternalHosts", "choose_url", "internal_hosts", "without_secrets"]

DEFAULT_URL = "sqlite:///.stepwell/well.db"


def choose_url(given: str | None, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the store's URL and its origin: the argument, ``STEPWELL_URL``, ``REDIS_URL``, or the embedded default."""
    if given is not None:
        return given, "the argument"
    for name in ("STEPWELL_URL", "REDIS_URL"):
        if environ.get(name):
            return environ[name], name
    return DEFAULT_URL, "the default"


HTTP_HOSTS = "STEPWELL_HTTP_HOSTS"
"""The environment variable in which the operator of a worker lists internal hosts that HTTP steps may reach."""

Network = IPv4Network | IPv6Network


class InternalHosts(NamedTuple):
    """Internal hosts that HTTP steps may reach."""

    names: frozenset[str]
    networks: tuple[Network, ...]


def internal_hosts(environ: Mapping[str, str] = os.environ) -> InternalHosts:
    """Return the hosts of ``STEPWELL_HTTP_HOSTS``: names, addresses and networks, separated by commas.

    Only the environment of the process says so, since a definition or an input may come from people who must not. Raise
    ``InvalidInput`` for an entry that is none of them.
    """
    names: set[str] = set()
    networks: list[Network] = []
    for entry in filter(None, (part.strip().lower() for part in environ.get(HTTP_HOSTS, "").split(","))):
        try:
            networks.append(ip_network(entry))
        except ValueError:
            if not _HOST_NAME.fullmatch(entry):
                message = f"{HTTP_HOSTS} lists host names, addresses and networks such as 10.1.0.0/16, not {entry!r}"
                raise InvalidInput(message) from None
            names.add(entry.rstrip("."))
    return InternalHosts(frozenset(names), tuple(networks))


_HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\.?")

# Use a pattern and no parser: in a malformed URL, an unencoded password (with a slash or hash) must not leak.
_PASSWORD = re.compile(r"^([^:/?#]+://[^:/?#@]*):.*@", re.DOTALL)
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)


def without_secrets(url: str) -> str:
    """Return the URL without its password, for logs."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))
