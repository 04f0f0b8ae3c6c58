"""Wait for the end of an execution, wherever it runs."""

from __future__ import annotations

from math import inf
from time import monotonic

from stepwell.model.status import FINAL, Status
from stepwell.model.value import recode
from stepwell.pipeline.completions import Completion
from stepwell.pipeline.notifications import Notifications, end_of
from stepwell.pipeline.operations import Operation, wait
from stepwell.state.executions import Executions

__all__ = ["run_end"]


def run_end(
    executions: Executions, notifications: Notifications, execution_id: str, timeout: float | None
) -> Operation[Completion | Status]:
    """Wait for the end of an execution; return how it ended, or its status if it has not ended after ``timeout`` seconds.

    The commit that ends it wakes the waiter if it runs in this process. Otherwise the store is read, soon at first, then seldom.
    """
    began = monotonic()
    ends = inf if timeout is None else began + timeout
    endings = executions.endings
    with notifications.listen(end_of(execution_id)) as listening, endings.watch(execution_id, listening.wake) as watch:
        while True:
            if watch.ending is not None:
                return watch.ending
            left = ends - monotonic()
            if left > 0 and endings.is_here(execution_id):
                yield from wait(listening, left)
                continue
            status = Status((yield from executions.head(execution_id)).status)
            if status in FINAL:
                state = yield from executions.load(execution_id)
                return Completion(state.status, recode(state.result))
            if left <= 0:
                return status
            yield from wait(listening, min(left, endings.look_again_seconds(monotonic() - began)))
