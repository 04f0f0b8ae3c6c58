"""Notice writes of other processes to a SQLite file, by polling ``PRAGMA data_version``.

SQLite sends no notifications. ``data_version`` of a connection changes when any other connection has committed, and costs about 2
µs to read. A connection of the listener's own sees every commit, this store's among them; the writer's connection does not see
its own. So a change on the first says when to ask the second, and a change on the second that another process wrote.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

from stepwell.stores.sqlite.connection import Database

__all__ = ["POLL_SECONDS", "data_version", "start_listener"]

POLL_SECONDS = 0.01
"""How soon a write of another process is noticed; a lock handed over between processes waits this long at most."""
_MOST_UNKNOWN = 10
"""How many polls in a row wait for a busy writer: 0.2 s, with the time that each waits for the writer's lock."""


def data_version(db: Database) -> int:
    """Return a number that changes when another connection commits."""
    return db.value("PRAGMA data_version")


def start_listener(watcher: Database, writer_version: Callable[[], object], wake: Callable[[str], None]) -> Callable[[], None]:
    """Call ``wake("")`` from a thread after another process has written; return what ends that.

    ``watcher`` is a connection that nothing else uses, and is closed at the end. ``writer_version`` returns the data version as the
    writer's connection sees it, or None while the writer is busy. Then the next polls ask again, since its own writes are the
    likeliest change; after ``_MOST_UNKNOWN`` of them the change counts as another process's.
    """
    ended = threading.Event()
    # Read here, not in the thread: what is written before the thread first runs must be noticed.
    seen, known, unknown = data_version(watcher), writer_version(), 0

    def is_foreign() -> bool:
        nonlocal seen, known, unknown
        try:
            now = data_version(watcher)
            if now == seen:
                return False
            version = writer_version()
        except apsw.Error:
            return False  # the disk fails or the store is being closed; the next poll, or a read, will show which
        if version is None and unknown < _MOST_UNKNOWN:
            # Waking every waiter of a busy process at each poll would cost it a quarter of its CPU.
            unknown += 1
            return False
        before, seen, known, unknown = known, now, version, 0
        return version is None or version != before

    def poll() -> None:
        while not ended.wait(POLL_SECONDS):
            if is_foreign():
                wake("")
        watcher.close()

    threading.Thread(target=poll, name="stepwell-listener", daemon=True).start()
    return ended.set
