"""Listen to the messages that other processes publish, in a thread with a connection of its own that reconnects after failures."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping

from redis import exceptions

from stepwell.stores.redis.connection import RedisConnection, Wire

__all__ = ["RedisListener"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 5.0


class RedisListener:
    """Call ``wake`` with the topic of each message, until it is ended."""

    def __init__(self, connection: RedisConnection, topics: Mapping[bytes, str], wake: Callable[[str], None]) -> None:
        self._connection, self._topics, self._wake = connection, topics, wake
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._wire: Wire | None = None
        threading.Thread(target=self._run, name="stepwell-listener", daemon=True).start()

    def end(self) -> None:
        """Stop listening; the thread ends by itself, at once."""
        self._ended.set()
        with self._lock:
            if self._wire is not None:
                self._wire.close()

    def _run(self) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                self._subscribe()
                failures = 0
                self._hear()
            except (exceptions.RedisError, OSError, ValueError) as error:
                failures += 1
                if not self._ended.is_set():
                    log.debug("listening to %s failed: %s", self._connection.settings.name, error)
            self._close()
            longest = min(_FIRST_PAUSE_SECONDS * 2**failures, _LONGEST_PAUSE_SECONDS)
            self._ended.wait(random.uniform(longest / 2, longest))  # noqa: S311 - so that not all processes come back at once

    def _subscribe(self) -> None:
        wire = self._connection.connect(reply_seconds=None)
        with self._lock:
            self._wire = wire
        wire.send(self._connection.pack([("SUBSCRIBE", *self._topics)]))
        for _ in self._topics:
            wire.read()
        # Messages published before this moment were missed, so wake every waiter once.
        self._wake("")

    def _hear(self) -> None:
        wire = self._wire
        while wire is not None and not self._ended.is_set():
            kind, channel, *_ = wire.read()
            if kind == b"message":
                self._wake(self._topics[channel])

    def _close(self) -> None:
        with self._lock:
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
