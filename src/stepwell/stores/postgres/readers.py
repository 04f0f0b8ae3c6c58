"""A few connections for reading, lent to one thread at a time; none is opened before it is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from stepwell.errors import StoreUnavailable
from stepwell.stores.postgres.connecting import connect
from stepwell.stores.postgres.link import PostgresConnection, PostgresConnectionLost, StatementRefused
from stepwell.stores.postgres.settings import PostgresSettings
from stepwell.stores.postgres.sqlstate import LOST_RACE, READ_ONLY, error_for

__all__ = ["Readers"]

T = TypeVar("T")
_TRIES = 5

# A connection that was in use a moment ago is not looked at again: if it is lost after all, the read is repeated on another.
_FRESH_SECONDS = 0.05


class Readers:
    """Lends connections and takes them back; what failed is not lent again."""

    def __init__(self, settings: PostgresSettings, statements: Mapping[str, bytes]) -> None:
        self._settings, self._statements = settings, statements
        self._idle: list[PostgresConnection] = []
        self._lent = 0
        self._lock = threading.Lock()  # taken by itself: an interrupt on the way into a Condition would leave that locked
        self._returned = threading.Condition(self._lock)
        self._is_closed = False

    def read(self, query: Callable[[PostgresConnection], T]) -> T:
        """Run something that only reads; tried again if the connection was lost or another transaction was in the way."""
        tries = 0
        while True:
            tries += 1
            try:
                return self._lend(query)
            except StatementRefused as refused:
                may_try = (
                    isinstance(refused, PostgresConnectionLost) or refused.sqlstate in LOST_RACE or refused.sqlstate == READ_ONLY
                )
                if not may_try or tries >= (2 if isinstance(refused, PostgresConnectionLost) else _TRIES):
                    raise error_for(refused.sqlstate, refused.words, self._settings) from refused

    def close(self) -> None:
        """Close everything, and wait for what is lent."""
        with self._lock:
            self._is_closed = True
            self._returned.wait_for(lambda: not self._lent, self._settings.reply_timeout)
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def _lend(self, query: Callable[[PostgresConnection], T]) -> T:
        link = self._take()
        try:
            link = link or connect(self._settings, self._statements)
            return query(link)
        except BaseException:
            # It may be in the middle of a view of several reads.
            if link is not None:
                link.close()
            raise
        finally:
            with self._lock:
                self._lent -= 1
                if link is not None and not link.is_closed:
                    link.used_at = time.monotonic()
                    self._idle.append(link)
                self._returned.notify()

    def _take(self) -> PostgresConnection | None:
        """A place, and a connection that still stands, if there is one: the one used last, so that the others can be dropped."""
        now = time.monotonic()
        deadline = now + self._settings.reply_timeout
        with self._lock:
            while self._lent >= self._settings.pool_size and not self._is_closed:
                if not self._returned.wait(deadline - time.monotonic()):
                    raise StoreUnavailable(
                        f"{self._settings.place}: all {self._settings.pool_size} connections are busy; raise ?pool_size=..."
                    )
            if self._is_closed:
                raise StoreUnavailable("the store is closed; open it again")
            self._lent += 1
            while self._idle:
                link = self._idle.pop()
                if now - link.used_at < _FRESH_SECONDS or link.is_fresh():
                    return link
        return None
