"""Parallel branches, choices and multiple instances: how they split and how they join.

A join is decided from counts alone, so each ended branch costs the same however many there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET

from stepwell.clock import to_ms
from stepwell.errors import InvalidInput, LimitExceeded
from stepwell.flow.definition.node import Choice, Each, InstanceRule, JoinRule, Parallel, continues_after_error
from stepwell.flow.definition.outline import Place
from stepwell.flow.language.expression import compile_expression
from stepwell.kernel.data_view import TemplateData, ending, output_of
from stepwell.kernel.nodes.scopes import cancel_inside, go_on_without
from stepwell.kernel.plan import At, key_of
from stepwell.kernel.protocol import Trouble, trouble
from stepwell.kernel.token import LOOSE, LiveToken
from stepwell.model.status import StepStatus
from stepwell.model.value import Value, canonical

if TYPE_CHECKING:
    from stepwell.kernel.interpreter import Interpreter

__all__ = [
    "JoinCount",
    "Verdict",
    "branch_ended",
    "enter_choice",
    "enter_each",
    "enter_parallel",
    "judge",
    "recount",
    "whole_number",
]


class Verdict(Enum):
    """The decision of a join."""

    WAIT = auto()
    PASS = auto()
    FAIL = auto()


_NEVER = (inf, 0)


class JoinCount:
    """Counts of the ended children of a join, by outcome. Kept in memory and recounted from the record after a resume.

    Of children that ended in the same millisecond, the first in document order counts as the first, because the record has no
    finer order.
    """

    __slots__ = ("_numbers", "_troubled", "_won", "error", "failed", "ignored", "pending", "succeeded", "total", "winner")

    def __init__(self, slots: Iterable[str]) -> None:
        self.pending: deque[str] = deque(slots)
        """The children that have not begun."""
        self.total = len(self.pending)
        self.succeeded = self.failed = self.ignored = 0
        self.winner: str | None = None
        """The first child that succeeded."""
        self.error: Trouble | None = None
        """The error of the first failure that counts."""
        self._numbers = {slot: number for number, slot in enumerate(self.pending)}
        self._won: tuple[float, int] = _NEVER
        self._troubled: tuple[float, int] = _NEVER

    @property
    def left(self) -> int:
        """The number of children that have not ended."""
        return self.total - self.succeeded - self.failed - self.ignored

    def count(self, slot: str, error: Trouble | None, at_ms: int, *, is_optional: bool = False) -> None:
        """Count one more child that ended."""
        # Compare by recorded time and document order, not by order of arrival, so that a recount after a resume gives the same
        # winner.
        when = (at_ms, self._numbers[slot])
        if error is None:
            self.succeeded += 1
            if when < self._won:
                self.winner, self._won = slot, when
        elif is_optional:
            self.ignored += 1
        else:
            self.failed += 1
            if when < self._troubled:
                self.error, self._troubled = error, when


def judge(rule: JoinRule | InstanceRule | int, tally: JoinCount, *, fail_fast: bool, has_failed: bool) -> Verdict:
    """Return the join's decision after one more child has ended; ``has_failed``: whether that child's failure counts."""
    match rule:
        case "all":
            # Without fail_fast, the others run to their end before the join fails.
            if tally.failed and (fail_fast or not tally.left):
                return Verdict.FAIL
            return Verdict.WAIT if tally.left else Verdict.PASS
        case "first":
            if has_failed:
                return Verdict.FAIL
            return Verdict.PASS if tally.succeeded or not tally.left else Verdict.WAIT
        case "none":
            return Verdict.PASS
        case _:
            needed = rule if isinstance(rule, int) else 1
            if tally.succeeded >= needed:
                return Verdict.PASS
            # Fail as soon as the required number can no longer be reached.
            return Verdict.WAIT if tally.succeeded + tally.left >= needed else Verdict.FAIL


def shortfall(rule: JoinRule | InstanceRule | int, tally: JoinCount) -> Trouble:
    """Return why a join failed: a branch's error, or too few successes."""
    if tally.error is not None and not isinstance(rule, int):
        return tally.error
    cause = f"; the first failure: {tally.error['kind']}: {tally.error['message']}" if tally.error else ""
    needed = rule if isinstance(rule, int) else 1
    message = f"{needed} of {tally.total} had to succeed, and only {tally.succeeded} did{cause}"
    if not tally.total:
        message = f"{needed} had to succeed, and there were none: there was nothing to begin"
    return {**trouble("JoinFailed", message), **({"step": tally.error["step"]} if tally.error and "step" in tally.error else {})}


Join = Parallel | Choice | Each


def enter_parallel(run: Interpreter, frame: LiveToken, node: Parallel) -> None:
    """Begin all branches, or as many as may run concurrently."""
    _split(run, frame, list(node.branches))


def enter_choice(run: Interpreter, token: LiveToken, node: Choice) -> None:
    """Continue with the first case whose condition holds, or split into all of them."""
    facts = TemplateData(run, token)
    chosen: list[str] = []
    for number, case in enumerate(node.cases):
        if compile_expression(case.when).holds(facts):
            chosen.append(str(number))
            if node.mode == "first":
                break
    if not chosen and node.otherwise is not None:
        chosen = ["otherwise"]
    if not chosen:
        run.fail(token, trouble("NoMatch", f"no case of choice {token.place.name!r} holds, and it has no otherwise"))
    elif node.mode == "first":
        run.move(token, token.place.children[chosen[0]])
    else:
        token.value["chosen"] = chosen
        _split(run, token, chosen)


def enter_each(run: Interpreter, frame: LiveToken, node: Each) -> None:
    """Begin an instance per item, or as many as may run concurrently."""
    facts = TemplateData(run, frame)
    if node.items is not UNSET:
        items = frame.place.form("items").fill(facts)
        if not isinstance(items, list):
            raise InvalidInput(f"the items of {frame.place.name!r} must be a list, not {type(items).__name__}")
        canonical(items, run.changes.limits, what=f"the items of {frame.place.name!r}")
        total = len(cast("list[Value]", items))
        frame.value["items"] = items
    else:
        total = whole_number(frame.place.form("count").fill(facts), f"the count of {frame.place.name!r}")
    if total > node.limit:
        frame.value.clear()
        raise LimitExceeded(f"{frame.place.name!r} has {total:,} instances; its limit is {node.limit:,}")
    frame.value["total"] = total
    run.frames[frame.key] = frame
    _split(run, frame, [str(number) for number in range(total)])


def whole_number(value: Value, what: str, low: int | None = 0) -> int:
    """Return a template's value as a count. Raise an error if it is none."""
    if type(value) is not int or (low is not None and value < low):
        raise InvalidInput(f"{what} must be a whole number{'' if low is None else f' of at least {low}'}, not {value!r}")
    return value


def _split(run: Interpreter, frame: LiveToken, slots: list[str]) -> None:
    frame.tally = JoinCount(slots)
    run.changes.touch(frame)
    rule = _rule(frame)
    if rule == "none":
        go_on_without(run, frame, b"null")
    elif not slots:
        _conclude(run, frame, judge(rule, frame.tally, fail_fast=True, has_failed=False))
        return
    _begin_more(run, frame)


def _begin_more(run: Interpreter, frame: LiveToken) -> None:
    """Begin pending branches up to the concurrency limit."""
    assert frame.tally is not None  # noqa: S101 - it has split
    pending, most = frame.tally.pending, _most(frame)
    while pending and (most is None or len(frame.children) < most):
        slot = pending.popleft()
        place, at = _branch(frame, slot)
        run.enter(run.spawn(frame, slot, place, at))
    if frame.slot == LOOSE and not frame.children and not pending:
        run.done(frame, b"null")


def branch_ended(run: Interpreter, frame: LiveToken, child: LiveToken, error: Trouble | None) -> None:
    """Count the end of a branch or instance, and act on the join's decision."""
    tally, node = frame.tally, cast("Join", frame.place.node)
    assert tally is not None  # noqa: S101 - it has split
    is_optional = isinstance(node, Parallel) and child.slot in node.optional
    run.drop(child)
    if error is not None:
        run.record_failure(*_branch(frame, child.slot), error)
    tally.count(child.slot, error, run.now_ms, is_optional=is_optional)
    if frame.slot != LOOSE:
        has_failed = error is not None and not is_optional
        verdict = judge(_rule(frame), tally, fail_fast=_is_fail_fast(node), has_failed=has_failed)
        if verdict is not Verdict.WAIT:
            _conclude(run, frame, verdict)
            return
    _begin_more(run, frame)


def _conclude(run: Interpreter, frame: LiveToken, verdict: Verdict) -> None:
    tally, node = frame.tally, cast("Join", frame.place.node)
    assert tally is not None  # noqa: S101 - it has split
    if verdict is Verdict.FAIL:
        cancel_inside(run, frame)
        run.fail(frame, shortfall(_rule(frame), tally))
        return
    try:
        output = canonical(_merged(run, frame), run.changes.limits, what=f"the output of {frame.place.name!r}")
    except (InvalidInput, LimitExceeded) as error:
        cancel_inside(run, frame)
        run.fail_with(frame, error)
        return
    has_losers = bool(frame.children or tally.pending)
    if has_losers and (_rule(frame) == "discriminator" or not _cancels_losers(node)):
        go_on_without(run, frame, output)
        _begin_more(run, frame)
        return
    cancel_inside(run, frame, is_for_good=True)
    run.record_and_go_on(frame, output)


def _merged(run: Interpreter, frame: LiveToken) -> Value:
    """Return the output of a join by its merge rule."""
    node, tally = cast("Join", frame.place.node), frame.tally
    assert tally is not None  # noqa: S101 - it has split
    outputs: dict[str, Value] = {}
    for slot in _slots(frame):
        found = ending(run, *_branch(frame, slot))
        if found is not None and (found.status != StepStatus.FAILED or _rule(frame) == "all"):
            outputs[slot] = output_of(found)
    if isinstance(node, Each):
        return list(outputs.values())
    match node.merge:
        case "list":
            return list(outputs.values())
        case "winner":
            return None if tally.winner is None else outputs.get(tally.winner)  # a failure with on_error: continue has no output
        case "combine":
            return _combined(frame, outputs)
        case _:
            return outputs if isinstance(node, Parallel) else {_branch(frame, slot)[0].name: outputs[slot] for slot in outputs}


def _combined(frame: LiveToken, outputs: dict[str, Value]) -> Value:
    combined: dict[str, Value] = {}
    for slot, output in outputs.items():
        if not isinstance(output, dict) and output is not None:
            raise InvalidInput(f"{frame.place.name!r} combines objects, and branch {slot!r} gave {type(output).__name__}")
        combined.update(cast("dict[str, Value]", output or {}))
    return combined


def recount(run: Interpreter, frame: LiveToken) -> None:
    """Recount a join from its live tokens and the record."""
    node = cast("Join", frame.place.node)
    if isinstance(node, Each):
        run.frames[frame.key] = frame
    optional = node.optional if isinstance(node, Parallel) else ()
    tally = frame.tally = JoinCount(_slots(frame))
    running = {child.slot for child in frame.children.values()}
    tally.pending.clear()
    for slot in _slots(frame):
        found = None if slot in running else ending(run, *_branch(frame, slot))
        if found is not None:
            tally.count(slot, _failure_of(run, frame, slot), to_ms(found.executed_at), is_optional=slot in optional)
        elif slot not in running:
            tally.pending.append(slot)


def resume_join(run: Interpreter, frame: LiveToken) -> None:
    """Begin pending branches after a resume; a retried execution may have failed branches to run again."""
    _begin_more(run, frame)


def _failure_of(run: Interpreter, frame: LiveToken, slot: str) -> Trouble | None:
    place, at = _branch(frame, slot)
    own = run.changes.step(key_of(place, at))
    if own is None or own.status != StepStatus.FAILED or continues_after_error(place.node):
        return None
    return own.output["error"]


def _slots(frame: LiveToken) -> Iterator[str]:
    match frame.place.node:
        case Parallel(branches=branches):
            yield from branches
        case Each():
            yield from (str(number) for number in range(frame.value["total"]))
        case _:
            yield from frame.value["chosen"]


def _branch(frame: LiveToken, slot: str) -> tuple[Place, At]:
    """Return the place of a branch, and its iteration."""
    if isinstance(frame.place.node, Each):
        return frame.place.children["do"], (*frame.at, int(slot))
    return frame.place.children[slot], frame.at


# A choice of all matching cases has no settings of its own: it waits for all of them, and fails with the first.


def _rule(frame: LiveToken) -> Any:
    node = frame.place.node
    return node.join if isinstance(node, Parallel | Each) else "all"


def _cancels_losers(node: Join) -> bool:
    return isinstance(node, Choice) or node.cancel_losers


def _is_fail_fast(node: Join) -> bool:
    return isinstance(node, Choice) or node.fail_fast


def _most(frame: LiveToken) -> int | None:
    match frame.place.node:
        case Each(concurrency=most) | Parallel(max_concurrency=most):
            return most
        case _:
            return None
