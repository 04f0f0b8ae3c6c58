"""The data that templates and conditions read, as seen from one place in its iteration of the enclosing loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET

from stepwell.flow.definition.node import Loop
from stepwell.flow.definition.outline import Place
from stepwell.kernel.pending_changes import Sections
from stepwell.kernel.plan import At, key_of, last_of
from stepwell.kernel.token import LiveToken
from stepwell.model.execution_state import ONLY
from stepwell.model.record import LoopContext, StepOutput, Trigger, decode_loop, decode_trigger, plain_input
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, decode

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = ["TemplateData", "ending", "item_at", "loops_around", "output_of", "trigger_facts"]


def ending(run: Interpreter, place: Place, at: At) -> StepOutput | None:
    """Return how a place ended, or None: by its own record, or for a sequence by that of its last node."""
    found = run.changes.step(key_of(place, at))
    if found is not None:
        return found
    last = last_of(place)
    return None if last is place else run.changes.step(key_of(last, at))


def output_of(step: StepOutput | None) -> Value:
    """Return the output of a recorded step; None for a failure with ``on_error: continue``."""
    return None if step is None or step.status == StepStatus.FAILED else step.output


def item_at(frame: LiveToken, index: int) -> Value:
    """Return the item of an iteration or instance."""
    match frame.value:
        case {"items": list() as items}:  # pyright: ignore[reportUnknownVariableType]
            return items[index] if index < len(items) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case {"range": [start, _, step]}:
            return start + index * step
        case _:
            return index


def loops_around(run: Interpreter, token: LiveToken, place: Place) -> dict[str, Any]:
    """Return the enclosing loops that a place reads, as they are now: a token that outlives its loop keeps them."""
    asked, loops = run.plan.loops_asked.get(place.name, ()), TemplateData(run, token, place)["loops"]
    progress = (loops.get(loop.name) for loop in run.plan.rounds[place.name] if loop.name in asked)
    return {each["loop_id"]: each for each in progress if each is not None}


class _Lazy(Mapping[str, Any]):
    """A mapping that computes a value when its key is read."""

    def __init__(self, read: Callable[[str], Any], names: Callable[[], set[str]]) -> None:
        self._read, self._names = read, names

    def __getitem__(self, key: str) -> Any:
        return self._read(key)

    def __iter__(self) -> Iterator[str]:
        for key in sorted(self._names()):
            try:
                self._read(key)
            except KeyError:
                continue  # a known name without a value yet
            yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)


class TemplateData(Mapping[str, Any]):
    """The roots of paths. Each is computed when it is first read."""

    def __init__(self, run: Interpreter, token: LiveToken, place: Place | None = None) -> None:
        self._run, self._token, self._place = run, token, place or token.place

    def __getitem__(self, root: str) -> Any:
        read = _ROOTS.get(root)
        if read is None:
            raise KeyError(root)
        return read(self)

    def __iter__(self) -> Iterator[str]:
        return iter(_ROOTS)

    def __len__(self) -> int:
        return len(_ROOTS)

    def _trigger(self) -> Value:
        return self._run.trigger

    def _variables(self) -> Mapping[str, Value]:
        return self._entries("variables")

    def _context(self) -> Mapping[str, Value]:
        return self._entries("context")

    def _entries(self, section: str) -> Mapping[str, Value]:
        changes = self._run.changes

        def read(key: str) -> Value:
            data = changes.get(section, key)
            if data is None:
                raise KeyError(key)
            return decode(data)

        return _Lazy(read, lambda: changes.names(section))

    def _state(self) -> Value:
        return self._run.state

    def _item(self) -> Value:
        giver = self._token.item_from
        if giver is None:
            raise KeyError("item")
        if giver.item is not UNSET:
            return giver.item
        assert giver.parent is not None  # noqa: S101 - what gives items is inside of a loop
        return item_at(giver.parent, giver.at[-1])

    def _index(self) -> Value:
        if not self._token.at:
            raise KeyError("index")
        return self._token.at[-1]

    # Steps and loops, by name.

    def _steps(self) -> Mapping[str, Any]:
        return _Lazy(self._step, lambda: set(self._run.plan.places))

    def _loops(self) -> Mapping[str, Any]:
        return _Lazy(self._loop, lambda: {*self._run.plan.loops})

    def _step(self, name: str) -> Any:
        place = self._run.plan.places[name]
        at = self._iteration_of(place)
        found = ending(self._run, place, at)
        is_of_loop = bool(at) and isinstance(self._run.plan.rounds[name][-1].node, Loop)
        if found is None and is_of_loop and at[-1] and at == self._token.at[: len(at)]:
            # Not done in this iteration: return the previous iteration's output. Instances of an each have no predecessor.
            found = ending(self._run, place, (*at[:-1], at[-1] - 1))
        if found is None:
            raise KeyError(name)
        failed = found.status == StepStatus.FAILED
        return {
            "output": None if failed else found.output,
            "error": _without_traceback(found.output["error"]) if failed else None,
            "status": found.status,
            "node_id": found.node_id,
            "node_name": found.node_name,
            "executed_at": found.executed_at.isoformat(),
            "duration_ms": found.duration_ms,
        }

    def _iteration_of(self, place: Place) -> At:
        """Return the iteration of a place that is meant: ours in common loops, the newest in loops around that place alone."""
        own, its = self._run.plan.rounds[self._place.name], self._run.plan.rounds[place.name]
        at: At = ()
        for depth, loop in enumerate(its):
            if depth < len(own) and own[depth] is loop and depth < len(self._token.at):
                at = (*at, self._token.at[depth])
            else:
                at = (*at, self._loop_state(loop, at).current_index)
        return at

    def _loop_state(self, loop: Place, at: At) -> LoopContext:
        data = self._run.changes.get("loops", key_of(loop, at))
        if data is None:
            raise KeyError(loop.name)
        return decode_loop(data)

    def _loop(self, name: str) -> Any:
        place = self._run.plan.places[name]
        own = self._run.plan.rounds[self._place.name]
        depth = next((number for number, loop in enumerate(own) if loop is place), None)
        if depth is None or depth >= len(self._token.at):
            loop = self._loop_state(place, self._iteration_of(place))
            item, total, index, loop_id = loop.current_item, loop.total_items, loop.current_index, loop.loop_id
        else:
            loop_id, index = key_of(place, self._token.at[:depth]), self._token.at[depth]
            frame = self._run.frames.get(loop_id)
            if frame is None:
                return self._kept(loop_id)
            item, total = item_at(frame, index), frame.value.get("total")
        return {"loop_id": loop_id, "current_index": index, "current_item": item, "total_items": total}

    def _kept(self, loop_id: str) -> Any:
        """Return what a token that outlives its loop has kept of it."""
        token: LiveToken | None = self._token
        while token is not None and loop_id not in token.loops:
            token = token.parent
        if token is None:
            raise KeyError(loop_id)
        return token.loops[loop_id]


_ROOTS: dict[str, Callable[[TemplateData], Any]] = {
    "trigger": TemplateData._trigger,  # pyright: ignore[reportPrivateUsage] - a table of this class's own methods
    "variables": TemplateData._variables,  # pyright: ignore[reportPrivateUsage]
    "context": TemplateData._context,  # pyright: ignore[reportPrivateUsage]
    "steps": TemplateData._steps,  # pyright: ignore[reportPrivateUsage]
    "loops": TemplateData._loops,  # pyright: ignore[reportPrivateUsage]
    "state": TemplateData._state,  # pyright: ignore[reportPrivateUsage]
    "item": TemplateData._item,  # pyright: ignore[reportPrivateUsage]
    "index": TemplateData._index,  # pyright: ignore[reportPrivateUsage]
}


def trigger_facts(sections: Sections) -> dict[str, Value]:
    """Return ``trigger`` as templates read it: the input, and the fields of a typed trigger."""
    data = sections["trigger"].get(ONLY)
    found = None if data is None else decode_trigger(data)
    if data is None or not isinstance(found, Trigger):
        return {"input": found}
    return {**msgspec.to_builtins(found), "input": plain_input(data)}


def _without_traceback(error: Value) -> Value:
    """Return an error as templates see it: they may send it to others, whom the code of the user's program does not concern."""
    if not isinstance(error, dict):
        return error
    return {name: value for name, value in cast("dict[str, Value]", error).items() if name != "traceback"}
