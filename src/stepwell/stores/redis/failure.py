"""What Redis's errors mean in our words, and what to do about them."""

from __future__ import annotations

import re
import ssl

from redis import exceptions

from stepwell.errors import StoreForeign, StoreFull, StoreUnavailable
from stepwell.stores.redis.settings import RedisSettings

__all__ = ["translate"]

# Before version 7 the error of a command inside a script comes wrapped; its code stands behind the line number.
_INSIDE_SCRIPT = re.compile(r"Error running script \(call to \w+\): @user_script: ?\d+: (?:@user_script: ?\d+: )?-?(.*)", re.DOTALL)

_CLASSES: tuple[tuple[type[exceptions.RedisError], str], ...] = (
    (exceptions.AuthenticationError, "NOAUTH"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.NoScriptError, "NOSCRIPT"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.TryAgainError, "MOVED"),
    (exceptions.InvalidResponse, "protocol"),
    (exceptions.TimeoutError, "timeout"),
    (exceptions.ConnectionError, "connection"),
)

# By the first word of an error, or the words that the ones without a code of their own begin with.
_MEANINGS: tuple[tuple[str, type[StoreUnavailable], str], ...] = (
    ("timeout", StoreUnavailable, "did not answer in time; check the server and the network, or raise the timeouts in the URL"),
    (
        "silence",
        StoreUnavailable,
        "did not answer in time; check the server and the network, or write redis:// if it does not encrypt",
    ),
    ("connection", StoreUnavailable, "cannot be reached; start it, or correct the host and port in the URL"),
    (
        "encryption",
        StoreUnavailable,
        "cannot be reached by TLS; check its certificate and ssl_ca_certs in the URL, or write redis:// if it does not encrypt",
    ),
    (
        "protocol",
        StoreForeign,
        "answered as no Redis server does; correct the host and port in the URL, or write rediss:// if it wants TLS",
    ),
    ("NOAUTH", StoreUnavailable, "refused the user or password; correct them in the URL"),
    (
        "NOPERM",
        StoreUnavailable,
        "does not allow this user a command or key; give it +@all -@dangerous +info, ~PREFIX:* and &PREFIX:* by ACL SETUSER",
    ),
    ("The user executing the script", StoreUnavailable, "does not allow this user a command of a script; allow it by ACL SETUSER"),
    ("LOADING", StoreUnavailable, "is still loading its data; try again when it has finished"),
    ("READONLY", StoreUnavailable, "is a read-only replica; point the URL at its primary"),
    ("OOM", StoreFull, "has reached its maxmemory; raise it or free some memory, then the same call works again"),
    ("NOSCRIPT", StoreUnavailable, "forgets scripts as soon as they are loaded; allow SCRIPT LOAD and EVALSHA"),
    ("unknown command", StoreUnavailable, "lacks a command that this store needs; allow EVALSHA, SCRIPT and INFO"),
    ("DB index is out of range", StoreUnavailable, "has no such database; correct the number at the end of the URL"),
    ("SELECT is not allowed in cluster mode", StoreUnavailable, "is a cluster, which has database 0 only; correct the URL"),
    ("MISCONF", StoreUnavailable, "cannot write to its disk and has stopped all writing; see its log and free some space"),
    ("NOREPLICAS", StoreUnavailable, "has fewer replicas than min-replicas-to-write asks for; bring them back"),
    ("BUSY", StoreUnavailable, "is busy with a script of somebody else; end it by SCRIPT KILL"),
    ("CLUSTERDOWN", StoreUnavailable, "is a cluster that is down; bring its nodes back"),
    ("MASTERDOWN", StoreUnavailable, "is a replica that has lost its primary; bring the primary back"),
    ("MOVED", StoreUnavailable, "is a cluster whose slots are moving; try again"),
    ("WRONGTYPE", StoreForeign, "has keys of another program under this prefix; choose another one by ?prefix= in the URL"),
)


def translate(error: BaseException, settings: RedisSettings) -> StoreUnavailable:
    """The Stepwell error for one of Redis's."""
    if isinstance(error, StoreUnavailable):
        return error
    said = _said(error)
    if said == "timeout" and settings.is_encrypted:
        said = "silence"
    for start, ours, advice in _MEANINGS:
        if said.startswith(start):
            return ours(f"the Redis server {settings.name} {advice.replace('PREFIX', settings.prefix)} ({error})")
    return StoreUnavailable(f"the Redis server {settings.name} refused a command ({type(error).__name__}: {error})")


def _said(error: BaseException) -> str:
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return "encryption"  # the driver's error is that of any failed connection
    for kind, code in _CLASSES:
        if isinstance(error, kind):
            return code
    text = str(error).removeprefix("ERR ")
    inside = _INSIDE_SCRIPT.match(text)
    return text if inside is None else inside[1]
