"""What user code raises that to Python is no failure but an order to stop. Here it fails a call, like any other error.

Let through, ``sys.exit()`` would stop the worker's loop with everybody's executions on it; a ``StopIteration`` out of a thread
cannot pass a future, so that whoever waits for it waits for ever; and a cancellation that nobody asked for would leave its
execution lying.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TypeVar

from stepwell.runtime.outcome import Told, error_names, error_value
from stepwell.runtime.waiting import Unwinding

__all__ = ["Escaped", "contain", "contained"]

T = TypeVar("T")


class Escaped(Told):
    """An order to stop that a step or a workflow gave, told as the error that it was."""

    def __init__(self, error: BaseException) -> None:
        told = error_value(error)
        message = f"the code raised {told['kind']}({told['message']}), which ends this call and nothing else"
        super().__init__(message, told | {"message": message}, error_names(error))


def contained(error: BaseException) -> BaseException:
    """What to raise on a loop instead of what is no ``Exception``: a failure, unless it is the user's, or of whoever cancels the
    task, or unwinds the code. Not ``GeneratorExit``, by which a loop ends coroutines."""
    match error:
        case GeneratorExit() | BaseExceptionGroup() | Unwinding():
            is_meant = True
        case KeyboardInterrupt():
            is_meant = threading.current_thread() is threading.main_thread()  # the only one that gets the signal
        case asyncio.CancelledError():
            task = asyncio.current_task()
            is_meant = task is None or task.cancelling() > 0
        case _:
            is_meant = False
    return error if is_meant else Escaped(error)


def contain(function: Callable[[], T]) -> T:
    """Call a function in a thread of a worker, where no order to stop is meant for the thread."""
    try:
        return function()
    except (BaseExceptionGroup, Unwinding):
        raise
    except (StopIteration, CancelledError) as error:
        raise Escaped(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise Escaped(error) from error
