"""A child that takes turns in a conversation and ends, as the kernel would end it, at a point of the save that it is told."""

from __future__ import annotations

import sys
from typing import Any

from tests.faults.hooks import at, kill_this_process

from stepwell import Answer, Stepwell
from stepwell.fault_points import armed

__all__ = ["reply"]


def reply(state: dict[str, Any], message: Any) -> Answer:
    """Remember every message, in order."""
    return Answer(message, {"seen": [*state.get("seen", []), message]})


def main(url: str, point: str, hit: str) -> None:
    well = Stepwell(url)
    well.conversations.turn("c", reply, "first", user="ada")
    saving = at(point, int(hit), kill_this_process)
    is_saving = False

    def run(state: dict[str, Any], message: Any) -> Answer:
        nonlocal is_saving
        is_saving = True
        return reply(state, message)

    with armed(lambda name: saving(name) if is_saving else None):
        well.conversations.turn("c", run, "second", user="ada")
    print("survived", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
