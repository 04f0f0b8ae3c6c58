"""A worker as a process of its own, as in ``worker_program``, which also says when it asks a store again that did not answer."""

from __future__ import annotations

import logging
import sys

from tests.faults import worker_program

from stepwell.runtime import shutdown

__all__ = ["main"]


class Teller(logging.Handler):
    """Says that something is tried again."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it; anything else is shown with a failed test."""
        if "asked again" in record.getMessage():
            worker_program.say("again")
        else:
            print(record.getMessage(), file=sys.stderr, flush=True)


def main(url: str, lease_seconds: str, grace_seconds: str) -> None:
    """Work until told to stop."""
    shutdown.LAST_SECONDS = 60.0  # a busy machine may need more than there is in real life
    log = logging.getLogger(shutdown.__name__)
    log.addHandler(Teller())
    log.setLevel(logging.INFO)
    worker_program.main(url, lease_seconds, grace_seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
