"""Check whether an execution that is under way can go on with another version of its definition.

An execution stands somewhere on a path: what it has passed is recorded, and its tokens are where it is. It can go on with another
version if that is a path of this version, too. Nodes ahead of the tokens may differ in any way. Where it is not plain that
nothing goes wrong, the answer is no: the execution then ends with the version that it began with.

- A token's node is the same in both, and all nodes around it are, but for what is inside them.
- What comes before it in each sequence has the same nodes in both.
- In a parallel, a graph or another node with branches that is under way, branches that have begun and hold no token are the same.
- The body of a loop that is under way is the same, since its iterations are counted by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from stepwell.flow.definition.node import Case, Each, Loop, NodeFields, Sequence
from stepwell.flow.definition.outline import Place
from stepwell.kernel.plan import At, Plan
from stepwell.kernel.token import ROOT
from stepwell.model.execution_state import ExecutionState

__all__ = ["obstacles"]

_INDEXES = re.compile(r"(?:\[\d+\])*$")


def obstacles(old: Plan, new: Plan, state: ExecutionState) -> list[str]:
    """Return why an execution of one definition cannot go on with another; empty if it can."""
    return list(dict.fromkeys(_Comparison(old, new, state).faults()))


class _Comparison:
    def __init__(self, old: Plan, new: Plan, state: ExecutionState) -> None:
        self._old, self._new = old, new
        self._version = f"version {new.definition.version}"
        self._stands: list[tuple[str, At]] = []
        """The places of all tokens but the root, each with the iterations that it is in."""
        self._root = ""
        for token in state.tokens.values():
            value = cast("Mapping[str, Any]", token.value)
            if token.token_id == ROOT:
                self._root = token.node
            else:
                self._stands.append((token.node, tuple(value["at"])))
        self._recorded: dict[str, list[At]] = {}
        for key in state.steps:
            name, at = _split(old, key)
            self._recorded.setdefault(name, []).append(at)
        self._occupied = {around.name for name, _ in self._stands for around in self._around(name)}
        """The places with a token inside, or on them."""

    def _around(self, name: str) -> Iterator[Place]:
        place = self._old.places.get(name)
        if place is not None:
            yield place
            yield from place.ancestors()

    def faults(self) -> Iterator[str]:
        """Return the reasons, some of them more than once."""
        if not self._root:
            return  # it has not begun
        if not _is_same_whole(self._old.root, self._new.root):
            yield f"it runs inside {self._root!r}, and the outermost node of {self._version} is {self._new.root.name!r}"
            return
        for name in self._recorded:
            if name in self._old.places and name not in self._new.places:
                yield f"it has passed {name!r}, which {self._version} does not have"
        for name, at in self._stands:
            yield from self._faults_at(name, at)

    def _faults_at(self, name: str, at: At) -> Iterator[str]:
        """Return what keeps one token from going on."""
        before, after = self._old.places.get(name), self._new.places.get(name)
        if before is None or after is None:
            yield f"it is at {name!r}, which {self._version} does not have"
            return
        if _alone(before) != _alone(after):
            yield f"it is at {name!r}, which is another node in {self._version}"
            return
        yield from self._faults_inside(before, after, at)
        while before.parent is not None or after.parent is not None:
            if _is_top(before) and _is_top(after):
                yield from self._faults_before(before, after)
                return
            if before.parent is None or after.parent is None or before.parent.name != after.parent.name:
                where = "outermost" if after.parent is None else f"inside {after.parent.name!r}"
                yield f"it is at {name!r}, which is {where} in {self._version}"
                return
            if _alone(before.parent) != _alone(after.parent):
                yield f"it is inside {before.parent.name!r}, which is another node in {self._version}"
                return
            if isinstance(before.parent.node, Sequence):
                yield from self._faults_before(before, after)
            elif before.slot != after.slot:
                yield f"it is at {name!r}, which is in another branch of {after.parent.name!r} in {self._version}"
            before, after = before.parent, after.parent

    def _faults_before(self, before: Place, after: Place) -> Iterator[str]:
        """Return the differences between what a sequence has before a node in both versions."""
        passed, needed = _earlier(before), _earlier(after)
        for name in needed.keys() - passed.keys():
            yield f"{self._version} has {name!r} before {after.name!r}, where the run is already"
        for name in passed.keys() - needed.keys():
            yield f"it has passed {name!r}, which {self._version} does not have before {after.name!r}"
        for name in passed.keys() & needed.keys():
            if _names(passed[name]) != _names(needed[name]):
                yield f"it has passed {name!r}, which has other nodes inside in {self._version}"

    def _faults_inside(self, before: Place, after: Place, at: At) -> Iterator[str]:
        """Return the differences inside a node that is under way, in what has begun and holds no token."""
        for slot, child in before.children.items():
            other = after.children[slot]
            if isinstance(before.node, Loop | Each):
                is_fixed = True
            else:
                is_fixed = child.name not in self._occupied and any(self._has_record(each, at) for each in _subtree(child))
            if is_fixed and _whole(child) != _whole(other):
                yield f"{child.name!r} has begun inside {before.name!r}, and is another node in {self._version}"

    def _has_record(self, place: Place, at: At) -> bool:
        return any(found[: len(at)] == at for found in self._recorded.get(place.name, ()))


def _is_top(place: Place) -> bool:
    """Return whether a node is at the top of its definition: alone, or in the outermost sequence."""
    outer = place.parent
    return outer is None or (outer.parent is None and isinstance(outer.node, Sequence))


def _is_same_whole(old: Place, new: Place) -> bool:
    """Return whether two outermost nodes can stand for each other: a definition of one node has no sequence around it."""
    if isinstance(old.node, Sequence) or isinstance(new.node, Sequence):
        return True
    return old.name == new.name


def _split(plan: Plan, key: str) -> tuple[str, At]:
    """Return the place's name and the iterations of a recorded key."""
    if key in plan.places:
        return key, ()
    found = _INDEXES.search(key)
    start = len(key) if found is None else found.start()
    return key[:start], tuple(int(each) for each in key[start + 1 : -1].split("][")) if start < len(key) else ()


def _earlier(place: Place) -> dict[str, Place]:
    """Return the nodes before a node in its sequence, by name."""
    found: dict[str, Place] = {}
    for each in () if place.parent is None else place.parent.children.values():
        if each is place:
            break
        found[each.name] = each
    return found


def _subtree(place: Place) -> Iterator[Place]:
    pending = [place]
    for each in pending:  # grows during the loop
        yield each
        pending.extend(each.children.values())


def _alone(place: Place) -> tuple[object, ...]:
    """Return what a node is, without the nodes inside it and what is said about it; of a sequence only that it is one."""
    node = place.node
    fields = {
        name: value
        for name in node.__struct_fields__
        if name not in ("name", "description") and not _has_nodes(value := getattr(node, name))
    }
    return type(node), fields, () if isinstance(node, Sequence) else tuple(place.children)


def _has_nodes(value: object) -> bool:
    if isinstance(value, dict):
        value = tuple(cast("dict[str, object]", value).values())
    if isinstance(value, tuple):
        return any(isinstance(each, NodeFields | Case) for each in cast("tuple[object, ...]", value))
    return isinstance(value, NodeFields)


def _whole(place: Place) -> list[tuple[object, ...]]:
    """Return what a node and all nodes inside it are."""
    return [(each.name, each.slot, *_alone(each)) for each in _subtree(place)]


def _names(place: Place) -> list[tuple[object, ...]]:
    """Return the names and kinds of a node and all nodes inside it."""
    return [(each.name, type(each.node)) for each in _subtree(place)]
