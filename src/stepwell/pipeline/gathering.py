"""Gathering: the errands of a loop set out together, when its turn is over.

Nobody waits for an errand. Set out one by one, they come to many small groups, and for each of these the writer thread asks the
loop for the interpreter a few times. So the runs that end in one turn of a busy loop are one group, with the claim that is asked
for then.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

import msgspec

from stepwell.pipeline.group_commit import Errand

__all__ = ["Gathering"]

# How long an errand may wait for others, if the turn takes longer than that.
_LONGEST_SECONDS = 0.02


class _Load(msgspec.Struct, eq=False):
    """What has gathered in this turn of a loop."""

    errands: list[Errand]
    latest: float
    """When it sets out in any case, by the loop's clock."""


class Gathering:
    """Where errands wait for the end of the turn, loop by loop."""

    def __init__(self, set_out: Callable[[list[Errand]], None]) -> None:
        self._set_out = set_out
        self._loads: dict[asyncio.AbstractEventLoop, _Load] = {}

    def add(self, errand: Errand, loop: asyncio.AbstractEventLoop) -> None:
        """Have an errand set out with the others of this turn. On its loop."""
        now, load = loop.time(), self._loads.get(loop)
        if load is None:
            load = self._loads[loop] = _Load([], now + _LONGEST_SECONDS)
            loop.call_soon(self._send_off, loop, load)
        load.errands.append(errand)
        if now >= load.latest:
            self._send_off(loop, load)

    def _send_off(self, loop: asyncio.AbstractEventLoop, load: _Load) -> None:
        if self._loads.get(loop) is load:
            del self._loads[loop]
            try:
                self._set_out(load.errands)
            except Exception as error:  # noqa: BLE001 - told to each of those who submitted one
                for errand in load.errands:
                    errand.error = copy.copy(error)
                    errand.tell()
