"""Filter runs by what is inside of them, and reply with it: for terms that no index has, and for ``?expand=``.

Each run costs reads of its own, so the callers bound how many they look at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from stepwell.errors import Corrupted, NotFound
from stepwell.model.status import FINAL
from stepwell.model.value import Value
from stepwell.queue.item import ItemSummary
from stepwell.runtime.progress import Progress
from stepwell.runtime.step_history import StepRecord
from stepwell.state.history import ExecutionSummary
from stepwell.web.filters import PATH
from stepwell.web.hiding import hider_of, without_secrets
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call

__all__ = ["CONTENT_FIELDS", "Expanded", "expanded", "expansions", "has_content", "input_of", "reads_content"]

CONTENT_FIELDS: dict[str, frozenset[str] | None] = {
    "input": PATH,
    "tag": None,
    "has": frozenset(("pause", "signal", "receipt-gap")),
}
"""The fields by which runs are filtered that have to be read: a value in the input, one of the list ``tags`` in the metadata, and
whether a run is paused, has a signal that no wait has taken, or receipts that do not verify."""

_UNREADABLE = (NotFound, Corrupted)
"""A run whose values were removed, or whose bytes are damaged, cannot be read: the others in its list are, as without it."""


def reads_content(terms: Mapping[str, str]) -> bool:
    """Return whether a filter has terms for which runs have to be read."""
    return any(key.partition(".")[0] in CONTENT_FIELDS for key in terms)


async def has_content(call: Call, run: ExecutionSummary, terms: Mapping[str, str]) -> bool:
    """Return whether what is inside of a run matches. Secrets are compared as they are shown, so that none can be guessed."""
    paths = {key.partition(".")[2]: value for key, value in terms.items() if key.startswith("input.")}
    tag, has = terms.get("tag"), terms.get("has")
    try:
        if paths or tag is not None:
            state = await call.well.load(run.execution_id)
            hide = await hider_of(call.well, run.execution_id)
            shown = without_secrets({"input": input_of(state.trigger), "tags": state.metadata.get("tags")}, hide)
            if not all(_is_at(shown["input"], path.split("."), value) for path, value in paths.items()):
                return False
            if tag is not None and not (isinstance(shown["tags"], list) and tag in shown["tags"]):
                return False
        return has is None or await _has(call, run, has)
    except _UNREADABLE:
        return False


async def _has(call: Call, run: ExecutionSummary, what: str) -> bool:
    if what == "receipt-gap":
        return not (await call.well.verify(run.execution_id)).ok
    if run.status in FINAL:
        return False
    progress = await call.well.run(run.execution_id).progress()
    return progress.pause is not None if what == "pause" else bool(progress.untaken)


def input_of(trigger: object) -> Value:
    """Return what a run was started with: the input of a plain trigger, else the whole trigger."""
    plain = cast("object", msgspec.to_builtins(trigger))
    if not isinstance(plain, dict):
        return plain
    fields = cast("dict[str, Any]", plain)
    return fields.get("input", fields)


def _is_at(value: Any, path: Sequence[str], text: str) -> bool:
    """Return whether a value has this text at a path of keys and indexes; a number, true, false and null as JSON writes them."""
    for name in path:
        if isinstance(value, dict) and name in value:
            value = cast("dict[str, Any]", value)[name]
        elif isinstance(value, list) and name.isascii() and name.isdecimal() and int(name) < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[int(name)]
        else:
            return False
    return value == text if isinstance(value, str) else msgspec.json.encode(value).decode() == text


# What a reply is expanded with.


class Expanded(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to a run, as far as the query names it in ``expand``. What was removed or is damaged is left out."""

    item: ItemSummary | UnsetType | None = UNSET
    """The queue item that it came from; null if it came from none."""
    parent: ExecutionSummary | UnsetType | None = UNSET
    """The run that started it; null without one."""
    progress: Progress | UnsetType = UNSET
    steps: list[StepRecord] | UnsetType = UNSET


_MOST_EXPANDED = 50
_AT_ONCE = 10


def expansions(text: str | None, runs: int = 1) -> tuple[str, ...]:
    """Return the names in the parameter ``expand``. Raise ``HttpProblem`` (422) for one that is unknown, and for too many runs."""
    if text is None:
        return ()
    names, known = tuple(dict.fromkeys(text.split(","))), Expanded.__struct_fields__
    for name in names:
        if name not in known:
            raise HttpProblem("invalid", f"expand: there is no {name!r} of a run; use some of {', '.join(known)}, with commas")
    if runs > _MOST_EXPANDED:
        raise HttpProblem("invalid", f"expand: with it, a page has at most {_MOST_EXPANDED} runs; set limit={_MOST_EXPANDED}")
    return names


async def expanded(call: Call, runs: Sequence[ExecutionSummary], names: Sequence[str]) -> list[Expanded]:
    """Return what belongs to each of some runs. Secrets are hidden, as each run declared them."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(run: ExecutionSummary) -> Expanded:
        async with gate:
            found: dict[str, Any] = {}
            for name in names:
                try:
                    found[name] = await _READERS[name](call, run)
                except _UNREADABLE:
                    continue
            return without_secrets(Expanded(**found), await hider_of(call.well, run.execution_id))

    return list(await asyncio.gather(*map(one, runs)))


async def _item(call: Call, run: ExecutionSummary) -> ItemSummary | None:
    item_id = (await call.well.load(run.execution_id)).identity.item_id
    return None if item_id is None else await (await call.well.queue.item(item_id)).state()


async def _parent(call: Call, run: ExecutionSummary) -> ExecutionSummary | None:
    return None if run.parent_id is None else await call.well.executions.get(run.parent_id, workspace=run.workspace_id)


async def _progress(call: Call, run: ExecutionSummary) -> Progress:
    return await call.well.run(run.execution_id).progress()


async def _steps(call: Call, run: ExecutionSummary) -> list[StepRecord]:
    return list(await call.well.run(run.execution_id).steps())


_READERS: dict[str, Callable[[Call, ExecutionSummary], Any]] = {
    "item": _item,
    "parent": _parent,
    "progress": _progress,
    "steps": _steps,
}
