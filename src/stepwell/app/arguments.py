"""Checks of the arguments that users pass to `Stepwell` and `AsyncStepwell`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict, cast

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput
from stepwell.flow.governance import Governance
from stepwell.model.ids import Id, check_key
from stepwell.model.limits import Limits
from stepwell.model.record import Trigger
from stepwell.state.request_log import KeptReply, RequestKey

__all__ = ["EnqueueOptions", "StartOptions", "check_queues", "check_settings", "file_of", "grace_of", "lease_of"]


class StartOptions(TypedDict, total=False):
    """The options of ``well.start``, for type checkers."""

    workspace: Id
    execution_id: Id | None
    governance: Governance | None
    trigger: Trigger | None
    kept: tuple[RequestKey, KeptReply] | None
    engine: str | None
    subject: Id | None


class EnqueueOptions(TypedDict, total=False):
    """The options of ``well.enqueue``, for type checkers."""

    workspace: Id
    queue: str
    priority: int
    key: Id | None
    singleton: bool | str | None
    debounce: Span | None
    delay: Span | None
    run_at: datetime | None
    execution_id: Id | None
    max_attempts: int
    engine: str | None
    governance: Governance | None
    subject: Id | None


def check_settings(worker: object, concurrency: object, clock: object, limits: object, signing_key: object) -> None:
    """Refuse settings of the wrong kind at once, and not when they are first used."""
    if not isinstance(worker, bool):
        raise InvalidInput(f"worker is True or False, not {worker!r}")
    if type(concurrency) is not int or concurrency < 1:
        raise InvalidInput(f"concurrency is a whole number, 1 or more, not {concurrency!r}")
    if clock is not None and not _is_clock(clock):
        raise InvalidInput(f"clock is a SystemClock() or FakeClock(), or has their now, now_ms and ahead_ms; not {clock!r}")
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidInput(f"limits is a stepwell.Limits(...), not {limits!r}")
    if signing_key is not None and not (isinstance(signing_key, bytes) and signing_key):
        raise InvalidInput(f"signing_key is bytes, one or more, not {type(signing_key).__name__}")


def _is_clock(clock: object) -> bool:
    # The class is not one, though it has the methods.
    has_all = all(callable(getattr(clock, name, None)) for name in ("now", "now_ms", "ahead_ms"))
    return has_all and not isinstance(clock, type)


def file_of(path: str | Path) -> Path:
    """Return the file that a path names."""
    if not isinstance(path, str | Path):
        raise InvalidInput(f"a file is named by a text or a Path, not {path!r}")
    return Path(path)


def lease_of(span: Span) -> float:
    """Return the length of a worker's lease in seconds."""
    return seconds_of(span, "lease_seconds", least=1, most=86_400)


def grace_of(span: Span | None) -> float | None:
    """Return how many seconds a stop waits for steps under way; None: until they end."""
    return None if span is None else seconds_of(span, "grace_seconds")


def check_queues(queues: object) -> tuple[str, ...]:
    """Return the names of the queues that a process serves; none: all."""
    if isinstance(queues, str):
        raise InvalidInput(f"queues is a list of names; write queues=[{queues!r}]")
    try:
        names = tuple(cast("Any", queues) or ())
    except TypeError:
        raise InvalidInput(f"queues is a list of names, not {queues!r}") from None
    return tuple(check_key(name, "a queue's name") for name in names)
