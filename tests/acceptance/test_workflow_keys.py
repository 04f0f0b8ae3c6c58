"""Keys of calls stay the same from run to run, whatever a call does by itself meanwhile."""

from __future__ import annotations

import asyncio

from stepwell import step, workflow
from stepwell.testing import Seeded, crash_everywhere, rehearse


@step
async def key_letter(letter: str) -> str:
    return letter


@workflow
async def key_child(letter: str) -> str:
    return await key_letter(letter)


async def twice(letter: str) -> list[str]:
    return [await key_letter(letter), await key_letter(letter * 2)]


@workflow
async def key_parent(letter: str) -> list[list[str]]:
    first = [await key_child(letter)]
    return [first, *await asyncio.gather(twice("b"), twice("c"))]


@workflow
async def key_nested(letter: str) -> list[list[list[str]]]:
    async def both(one: str) -> list[list[str]]:
        await key_letter(one)
        return list(await asyncio.gather(twice(one), twice(one)))

    return list(await asyncio.gather(both(letter), both("b")))


def test_tasks_that_a_call_starts_do_not_shift_the_workflows_keys():
    """Starting a child starts a task here; answering it from the record does not. The branches after it are numbered alike."""
    report = crash_everywhere(key_parent, "a")
    assert report.result == [["a"], ["b", "bb"], ["c", "cc"]]


def test_branches_inside_of_branches_keep_their_keys_when_their_commits_are_shared():
    """T05: the key is made of the branches' numbers, so every interleaving and every crash gives the same ones."""
    assert crash_everywhere(key_nested, "a").result == [[["a", "aa"]] * 2, [["b", "bb"]] * 2]
    for seed in range(3):
        events = rehearse(key_nested, "a", scheduler=Seeded(seed)).trace.events
        inside = {f"{one}/{two}/key_letter{number}" for one in (1, 2) for two in (1, 2) for number in ("", "#2")}
        assert {event.name for event in events if event.kind == "step"} == inside | {"1/key_letter", "2/key_letter"}
