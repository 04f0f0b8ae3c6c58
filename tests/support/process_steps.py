"""Steps that run in processes of their own, in a module that imports little, since each process imports it anew."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import stepwell
from stepwell import Retry, RetryAfter, Scope, step

__all__ = ["Order", "ask_to_wait", "crash", "hang", "nothing_a_process_can_give", "read_state", "repeat", "square", "tell", "total"]


@dataclass
class Order:
    """A typed argument."""

    pieces: int


@step(process=True, retry=Retry(attempts=3, first_seconds="5h"))
def ask_to_wait(seconds: float) -> str:
    """Ask to be tried again, twice."""
    if stepwell.current().attempt < 3:
        raise RetryAfter(seconds)
    return "done"


@step(process=True)
def square(number: int) -> tuple[int, int]:
    """The square of a number, and who worked it out."""
    print("what a step prints does not get between the frames", file=sys.stdout)
    return number * number, os.getpid()


@step(process=True)
async def total(order: Order, *, price: int = 3) -> int:
    """An async one, with state that lands with it."""
    stepwell.current().state(Scope.custom("totals")).set("last", order.pieces * price)
    return order.pieces * price


@step(process=True, retry=Retry(attempts=3, first_seconds=0))
def crash(folder: str, how: str) -> str:
    """Brings down its process, but not the third time if it is told so."""
    with (Path(folder) / "attempts").open("a") as file:
        file.write(f"{stepwell.current().attempt} {stepwell.current().idempotency_key}\n")
    if how == "recovers" and stepwell.current().attempt == 3:
        return "made it"
    if how == "segfaults":
        ctypes.string_at(0)
    if how == "exits":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@step(process=True, timeout_seconds=2)
def hang(folder: str) -> None:
    """Holds the processor and never ends."""
    (Path(folder) / "pid").write_text(str(os.getpid()))
    while True:
        time.monotonic()


@step(process=True, retry=Retry(attempts=3, first_seconds=0, non_retryable=(LookupError,)))
def tell(what: str) -> None:
    """Raises."""
    raise KeyError(what)


@step(process=True)
def nothing_a_process_can_give():
    """Return something that is no value."""
    return object()


@step(process=True)
def read_state() -> object:
    """Asks for what it cannot have: there is no store in its process."""
    return stepwell.current().state(Scope.custom("totals")).get("last")


@step(process=True)
def repeat(text: str, times: int) -> str:
    """A text of any size."""
    return text * times


@step(process=True)
def gives_text_for_a_number() -> int:
    return "text"  # pyright: ignore[reportReturnType] - that is the mistake
