"""A child that forks with an open well, idle or in the middle of a write, and says what the forked process gets to see."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from stepwell import Stepwell, StepwellError
from stepwell.fault_points import armed


def ending(call: Callable[[], object]) -> str:
    try:
        call()
    except StepwellError as error:
        return error.code
    return "fine"


def use_after_fork(well: Stepwell) -> None:
    """In the forked process: every use is refused, and closing harms nobody."""
    endings = [
        ending(lambda: well.load("run")),
        ending(lambda: well.create("forked")),
        ending(lambda: well.state.globals.set("key", 1)),
        ending(lambda: well.state.globals.get("key")),
        ending(lambda: well.transaction("run").begin()),
        ending(well.close),
    ]
    print(*endings, flush=True)
    os._exit(0)


def main(url: str, when: str) -> None:
    well = Stepwell(url)
    well.create("run")
    if when == "idle":
        fork_and_wait(well)
    else:
        fork_during_a_write(well)
    with well.transaction("run") as tx:
        tx.set_variable("by", "parent")
    print("parent", well.load("run").variables["by"], well.verify("run").ok, flush=True)
    well.close()


def fork_during_a_write(well: Stepwell) -> None:
    is_writing, may_go = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "store.begun":
            is_writing.set()
            may_go.wait()

    with armed(hold):
        thread = threading.Thread(target=lambda: well.create("other"))
        thread.start()
        is_writing.wait()
        fork_and_wait(well)
        may_go.set()
        thread.join()


def fork_and_wait(well: Stepwell) -> None:
    child = os.fork()
    if child == 0:
        use_after_fork(well)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
