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
from stepwell.stores.postgres.connecting import connect_database
from stepwell.stores.postgres.link import Database
from stepwell.stores.postgres.settings import Settings
from stepwell.stores.postgres.statements import channel_of

__all__ = ["Listener"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class Listener:
    """A thread that calls ``wake`` with the topic of each notification, and with an empty one whenever some may be missing."""

    def __init__(self, settings: Settings, wake: Callable[[str], None]) -> None:
        self._settings, self._wake = settings, wake
        self._ended = threading.Event()
        self._bell, self._ear = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="stepwell-listener", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop listening and give the connection back."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._bell.send(b"\0")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._bell.close()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._ended.is_set():
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
        self._ear.close()

    def _listen(self, database: Database) -> None:
        database.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel_of(self._settings.schema))))
        # Whatever was sent before this moment was not heard.
        self._wake("")
        with selectors.DefaultSelector() as selector:
            selector.register(database.fileno(), selectors.EVENT_READ)
            selector.register(self._ear, selectors.EVENT_READ)
            while not self._ended.is_set():
                selector.select()
                database.pgconn.consume_input()
                while (notice := database.pgconn.notifies()) is not None:
                    self._wake(notice.extra.decode())
