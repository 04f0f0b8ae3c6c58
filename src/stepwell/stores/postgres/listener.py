"""Listen for notifications of other processes (LISTEN/NOTIFY) on a connection of its own, and reconnect when it is lost."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable

import psycopg
from psycopg import sql

from stepwell.errors import StoreUnavailable
from stepwell.stores.postgres.connection import Database
from stepwell.stores.postgres.connection_pool import connect_database
from stepwell.stores.postgres.statements import channel_of
from stepwell.stores.postgres.url import PostgresSettings

__all__ = ["Listener"]

log = logging.getLogger(__name__)

Wake = Callable[[str], None]

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0

# Waiting for a lock joins and leaves again and again; opening a connection for each wait would cost more than the wait.
LINGER_SECONDS = 30.0


class Listener:
    """One connection and one thread for all listeners of a store; both start with the first and end some time after the last.

    The pipeline reports this store's own writes, so its own notifications are dropped: each would wake every listener twice. A
    notification carries its sender's server process. Behind a pooler that process may serve all, so nothing is dropped there.
    """

    def __init__(self, settings: PostgresSettings, is_own: Callable[[int], bool]) -> None:
        self._settings, self._is_own = settings, is_own
        self._lock = threading.Lock()
        self._wakes: dict[object, Wake] = {}
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def join(self, wake: Wake) -> Callable[[], None]:
        """Call ``wake`` with the topic of each notification, or with "" when some may be lost. Return a function that ends it."""
        ticket = object()
        with self._lock:
            self._wakes[ticket] = wake
            if self._thread is None and not self._ended.is_set():
                self._stop_signal, self._stop_input = socket.socketpair()
                self._thread = threading.Thread(target=self._run, name="stepwell-listener", daemon=True)
                self._thread.start()

        def leave() -> None:
            with self._lock:
                self._wakes.pop(ticket, None)

        return leave

    def close(self) -> None:
        """Stop listening, and wait until the connection is closed."""
        self._ended.set()
        with self._lock:
            thread = self._thread
            if thread is not None:
                self._stop_signal.send(b"\0")
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._is_over():
            try:
                database = connect_database(self._settings)
                try:
                    self._listen(database)
                finally:
                    database.close()
                pause = _FIRST_PAUSE_SECONDS
            except (psycopg.Error, StoreUnavailable) as error:
                log.warning("listening is interrupted, trying again in %.1f s: %s", pause, error)
                self._ended.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _is_over(self) -> bool:
        """Return whether the thread should end. If so, the next listener starts a new one."""
        with self._lock:
            if self._wakes and not self._ended.is_set():
                return False
            self._thread = None
            self._stop_signal.close()
            self._stop_input.close()
            return True

    def _listen(self, database: Database) -> None:
        is_direct = database.execute("SELECT pg_backend_pid()").fetchone() == (database.pgconn.backend_pid,)
        database.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel_of(self._settings.schema))))
        # Notifications sent before LISTEN took effect are lost: have every listener look once.
        self._wake_all("")
        with selectors.DefaultSelector() as selector:
            selector.register(database.fileno(), selectors.EVENT_READ)
            selector.register(self._stop_input, selectors.EVENT_READ)
            while not self._ended.is_set() and (selector.select(LINGER_SECONDS) or self._wakes):
                database.pgconn.consume_input()
                while (notice := database.pgconn.notifies()) is not None:
                    if not (is_direct and self._is_own(notice.be_pid)):
                        self._wake_all(notice.extra.decode())

    def _wake_all(self, topic: str) -> None:
        with self._lock:
            wakes = list(self._wakes.values())
        for wake in wakes:
            wake(topic)
