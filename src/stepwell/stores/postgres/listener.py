"""Hears what other processes notify, on a connection of its own, and comes back by itself when that is lost."""

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

# Who waits for a lock listens for as long as it waits, again and again; a connection for each time would cost more than that.
LINGER_SECONDS = 30.0


class Listener:
    """One connection and one thread for all who listen to a store. They come with the first, and go some time after the last.

    What the store itself writes is told by who writes it, so its own notifications are not passed on: each would be news twice, and
    have everybody look again. A notification says which process of the server it is from. Behind a pooler that may be anybody's by
    now, and then all are passed on.
    """

    def __init__(self, settings: PostgresSettings, is_own: Callable[[int], bool]) -> None:
        self._settings, self._is_own = settings, is_own
        self._lock = threading.Lock()
        self._wakes: dict[object, Wake] = {}
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def join(self, wake: Wake) -> Callable[[], None]:
        """Call ``wake`` with the topic of each notification, and with an empty one whenever some may be missing; what ends it."""
        ticket = object()
        with self._lock:
            self._wakes[ticket] = wake
            if self._thread is None and not self._ended.is_set():
                self._bell, self._ear = socket.socketpair()
                self._thread = threading.Thread(target=self._run, name="stepwell-listener", daemon=True)
                self._thread.start()

        def leave() -> None:
            with self._lock:
                self._wakes.pop(ticket, None)

        return leave

    def close(self) -> None:
        """Stop listening, and wait until the connection is given back."""
        self._ended.set()
        with self._lock:
            thread = self._thread
            if thread is not None:
                self._bell.send(b"\0")
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
        """Whether nobody listens any more; then the next who comes starts a new thread."""
        with self._lock:
            if self._wakes and not self._ended.is_set():
                return False
            self._thread = None
            self._bell.close()
            self._ear.close()
            return True

    def _listen(self, database: Database) -> None:
        is_direct = database.execute("SELECT pg_backend_pid()").fetchone() == (database.pgconn.backend_pid,)
        database.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel_of(self._settings.schema))))
        # Whatever was sent before this moment was not heard.
        self._tell("")
        with selectors.DefaultSelector() as selector:
            selector.register(database.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            while not self._ended.is_set() and (selector.select(LINGER_SECONDS) or self._wakes):
                database.pgconn.consume_input()
                while (notice := database.pgconn.notifies()) is not None:
                    if not (is_direct and self._is_own(notice.be_pid)):
                        self._tell(notice.extra.decode())

    def _tell(self, topic: str) -> None:
        with self._lock:
            wakes = list(self._wakes.values())
        for wake in wakes:
            wake(topic)
