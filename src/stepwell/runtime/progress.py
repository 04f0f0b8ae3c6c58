"""Progress of a run, read from its state alone: how far it is, what it runs and waits for, and which answers it accepts.

The definition says what there is to do; records and tokens say where the run is. The rest of a recorded part, and branches that
were not chosen, will not come any more. A loop or an ``each`` that has begun has recorded its number of rounds. One that runs
until a condition holds has no number: each round counts as progress, and none is known to be the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from stepwell.clock import from_ms
from stepwell.flow.definition.node import Action, Approval, Choice, Deferred, Each, Loop, Range, Signal, Subworkflow, Wait
from stepwell.flow.definition.outline import Place
from stepwell.kernel.plan import Plan, key_of
from stepwell.kernel.token import ROOT, TIMES, UNDO
from stepwell.model.commit import Head
from stepwell.model.execution_state import ExecutionState
from stepwell.model.external_engines import TEMPORAL
from stepwell.model.fan_out import fan_outs
from stepwell.model.plain_data import PlainRecord
from stepwell.model.record import LoopContext, StepOutput, Token
from stepwell.model.status import FINAL, Status, StepStatus
from stepwell.model.value import Value
from stepwell.runtime.cancellation import Cancellation
from stepwell.runtime.inbox import Pause

__all__ = [
    "Estimate",
    "HeldBy",
    "Offer",
    "Progress",
    "Waiting",
    "WaitingOn",
    "away",
    "estimate_of",
    "paused",
    "progress_of",
    "waiting_on",
]


At = tuple[int, ...]
Spot = tuple[str, At]
"""A place in one round of the loops around it."""


class Estimate(NamedTuple):
    """The progress of a part of a run: recorded steps and waits, those known to come, and the share that is over."""

    done: int
    left: int
    share: float


def estimate_of(plan: Plan, steps: Mapping[str, StepOutput], tokens: Iterable[Token], loops: Mapping[str, LoopContext]) -> Estimate:
    """Return the progress of a run from its records, tokens and loop positions."""
    return _Reckoning(plan, steps, tokens, loops).of(plan.root, ())


class _Reckoning:
    def __init__(
        self, plan: Plan, steps: Mapping[str, StepOutput], tokens: Iterable[Token], loops: Mapping[str, LoopContext]
    ) -> None:
        self._plan, self._loops = plan, loops
        self._leaves = {place.name for place in plan.leaves}
        self._recorded: set[Spot] = set()
        self._begun: set[Spot] = set()
        self._inside: Counter[Spot] = Counter()
        """The number of recorded steps and waits inside each spot."""
        self._round: dict[Spot, int] = {}
        """The newest round of each loop, or the last instance that has begun."""
        self._instances: dict[Spot, int] = {}
        self._weights: dict[str, int] = {}
        for key, step in steps.items():
            place = plan.places.get(step.node_name)
            if place is not None:
                self._note(place, _at(key, place), is_recorded=True)
        for token in tokens:
            place = plan.places[token.node]
            value: dict[str, Any] = token.value
            self._note(place, tuple(value["at"]), is_recorded=False)
            if "total" in value:
                self._instances[place.name, tuple(value["at"])] = value["total"]

    def _note(self, place: Place, at: At, *, is_recorded: bool) -> None:
        if place.slot == "compensate":
            return
        if is_recorded:
            self._recorded.add((place.name, at))
        for each in (place, *place.ancestors()):
            spot = each.name, at[: len(self._plan.rounds[each.name])]
            self._begun.add(spot)
            self._inside[spot] += is_recorded and place.name in self._leaves
            if len(at) > len(spot[1]):
                self._round[spot] = max(self._round.get(spot, 0), at[len(spot[1])])

    def of(self, place: Place, at: At) -> Estimate:
        """Return the estimate of a place in one round of the loops around it."""
        spot = place.name, at
        if spot in self._recorded:
            return Estimate(self._inside[spot], 0, 1.0)  # it is over, even if not everything in it was done
        if spot not in self._begun or place.name in self._leaves:
            return Estimate(0, self._weight(place), 0.0)
        children = _children(place)
        match place.node:
            case Choice() | Deferred():
                chosen = [child for child in children if (child.name, at) in self._begun]
                return self._together(chosen, at) if chosen else Estimate(0, self._weight(place), 0.0)
            case Loop():
                return self._loop(place, at, children[0])
            case Each():
                return self._each(spot, children[0])
            case _:
                return self._together(children, at)

    def _together(self, children: list[Place], at: At) -> Estimate:
        parts = [self.of(child, at) for child in children]
        weights = [self._weight(child) for child in children]
        shares = sum(weight * part.share for weight, part in zip(weights, parts, strict=True))
        return Estimate(sum(part.done for part in parts), sum(part.left for part in parts), shares / (sum(weights) or 1))

    def _loop(self, place: Place, at: At, body: Place) -> Estimate:
        spot, told = (place.name, at), self._loops.get(key_of(place, at))
        number, rounds = self._round.get(spot, 0), None if told is None else told.total_items
        now = self.of(body, (*at, number))
        made = number + now.share
        if rounds is None:
            return Estimate(self._inside[spot], now.left, made / (made + 1))
        more = max(rounds - 1 - number, 0) * self._weight(body)
        return Estimate(self._inside[spot], now.left + more, min(made / rounds, 1.0) if rounds else 1.0)

    def _each(self, spot: Spot, body: Place) -> Estimate:
        # The token has the number of instances. A failed run has lost it, so the instances that have begun count.
        count = self._instances.get(spot, self._round.get(spot, -1) + 1)
        parts = [self.of(body, (*spot[1], number)) for number in range(count)]
        share = sum(part.share for part in parts) / count if count else 0.0
        return Estimate(self._inside[spot], sum(part.left for part in parts), share)

    def _weight(self, place: Place) -> int:
        """Return the number of steps and waits that a place has by the definition: one branch of a choice, and the rounds of
        loops with a fixed number."""
        if place.name in self._leaves:
            return 1
        if place.name not in self._weights:
            weights = [self._weight(child) for child in _children(place)]
            is_one_of = isinstance(place.node, Deferred) or (isinstance(place.node, Choice) and place.node.mode == "first")
            self._weights[place.name] = max(weights, default=0) if is_one_of else sum(weights) * _written_rounds(place)
        return self._weights[place.name]


def _children(place: Place) -> list[Place]:
    return [child for child in place.children.values() if child.slot != "compensate"]


def _at(key: str, place: Place) -> At:
    """Return the rounds in a record's key, which is a name with a number in brackets for each loop."""
    return tuple(int(number) for number in key[len(place.name) + 1 : -1].split("][") if number)


def _written_rounds(place: Place) -> int:
    """Return the number of rounds that a definition gives for a loop; 1 if it gives none."""
    node = place.node
    if not isinstance(node, Loop | Each):
        return 1
    if isinstance(node.count, int):
        return node.count
    if isinstance(node.items, list):
        return len(cast("list[object]", node.items))
    match node.range if isinstance(node, Loop) else None:
        case Range(start=int() as start, stop=int() as stop, step=int() as step) if step:
            return len(range(start, stop, step))
        case _:
            return 1


class WaitingOn(PlainRecord, frozen=True):
    """The reason why a run does not move."""

    kind: str
    """``signal``, ``approval``, ``timer``, ``child``, ``retry``, ``paused``, ``capacity``, ``worker_missing`` or ``store_away``."""
    message: str
    """The same as a sentence."""
    name: str = ""
    """The name of the signal, the child execution, the missing step or workflow, the workspace without a free slot, or whoever
    paused the run."""
    step: str = ""
    """The key of the waiting node or call, if it is one."""
    until: datetime | None = None
    """When the wait ends by itself, such as the time of the next attempt; None if it does not."""
    error: str | None = None
    """The error of the attempt before a retry, or that of the store."""


class Waiting(PlainRecord, frozen=True):
    """One thing that a run waits for."""

    step: str
    """The key of the waiting node or call."""
    kind: str
    """``time``, ``signal``, ``approval``, ``child``, ``retry``, or ``step`` for a step that no worker has had yet."""
    name: str = ""
    """The name of the signal, the child execution or the step."""
    until: datetime | None = None
    """When the wait ends by itself; None if it does not."""
    error: str | None = None
    """The error of the attempt before a retry."""
    summary: str | None = None
    """One line about the call, if the workflow gives one."""


class Offer(PlainRecord, frozen=True):
    """An answer that a run accepts now: send it with ``run.signal(name, value)``."""

    name: str
    kind: str
    """``signal``, ``choice`` (one of several signals that decide) or ``approval``."""
    step: str
    title: str = ""
    approvers: tuple[str, ...] = ()
    details: Value = None


class HeldBy(PlainRecord, frozen=True):
    """The worker that has a run."""

    holder: str
    until: datetime
    """The end of its lease. It renews the lease; another worker takes the run over if it does not."""


class Progress(PlainRecord, frozen=True):
    """The progress of a run."""

    status: Status
    percent: float | None
    """The share of the definition that is over, with rounds and instances. Of a function, whose end is not known: that of the steps
    until the end of its open maps; None without one."""
    done: int
    """How many steps and waits are on record, without those that a run failed by."""
    total: int | None
    """The number of steps and waits as far as known now: a loop that has begun counts its rounds, and a branch that was not
    chosen does not count. Of a function, as far as its open maps say; None without one."""
    current: tuple[str, ...]
    """The steps that run now; of a function, the items of its open maps, by their labels, and on Temporal its steps."""
    waiting: tuple[Waiting, ...]
    offers: tuple[Offer, ...]
    waiting_on: WaitingOn | None = None
    """What it waits for if it does not move, as ``run.waiting_on()`` returns it."""
    untaken: tuple[str, ...] = ()
    """The names of the signals that were sent and that no wait has taken, in the order in which they were sent."""
    held_by: HeldBy | None = None
    """The worker that has it; None while it rests, and for a run of another engine."""
    pause: Pause | None = None
    """Who paused it, when and why; None unless it is paused. What was under way then may still run."""
    cancellation: Cancellation | None = None
    """When it was asked to end and took that, if it was."""


_BROKEN_OFF = (Status.FAILED, Status.CANCELLED)
_NOT_DONE = (StepStatus.FAILED, StepStatus.CANCELLED)
_MOST_BEFORE_THE_END = 99.9
"""100 per cent is said of a run that has completed, and of no other."""


def progress_of(state: ExecutionState, plan: Plan | None) -> Progress:
    """Return the progress of a run; with a plan, of its definition."""
    tokens = {token_id: token for token_id, token in state.tokens.items() if token_id != ROOT}
    if plan is None:
        return _of_function(state, tokens)
    live = [token for token in tokens.values() if not _is_dormant(token)]
    waiting = tuple(each for token in live for each in _waiting(plan, token))
    current = tuple(_key(token) for token in live if _is_running(plan, token))
    offers = tuple(each for token in live for each in _offers(plan, token))
    is_over = state.status is Status.COMPLETED
    # A failed step is not done: retry() runs it again.
    steps = {key: each for key, each in state.steps.items() if state.status not in _BROKEN_OFF or each.status not in _NOT_DONE}
    estimate = estimate_of(plan, steps, live, state.loops)
    percent = 100.0 if is_over else min(round(100 * estimate.share, 1), _MOST_BEFORE_THE_END)
    total = estimate.done + (0 if is_over else estimate.left)
    return Progress(state.status, percent, estimate.done, total, current, waiting, offers)


def _is_dormant(token: Token) -> bool:
    return token.value.get("slot") == UNDO and not token.value.get("is_running")


def _key(token: Token) -> str:
    return token.node + "".join(f"[{index}]" for index in token.value["at"])


def _until(value: dict[str, Any]) -> datetime | None:
    times = [value[field] for field in TIMES if value.get(field) is not None]
    return from_ms(min(times)) if times else None


def _is_running(plan: Plan, token: Token) -> bool:
    node = plan.places[token.node].node
    is_waiting = any(field in token.value for field in ("retries_ms", "begins_ms", "missing", "left"))
    return isinstance(node, Action) and not isinstance(node, Subworkflow) and not is_waiting


def _waiting(plan: Plan, token: Token) -> list[Waiting]:
    value: dict[str, Any] = token.value
    key, until = _key(token), _until(value)
    if "left" in value:
        return []
    if "retries_ms" in value:
        return [Waiting(key, "retry", token.node, until, value["error"]["message"], value.get("summary"))]
    if "missing" in value:
        return [Waiting(key, "step", value["missing"], summary=value.get("summary"))]
    if "begins_ms" in value:
        return [Waiting(key, "time", "", until)]
    match plan.places[token.node].node:
        case Wait():
            return [Waiting(key, "time", "", until)]
        case Signal(signal=name):
            return [Waiting(key, "signal", name, until)]
        case Deferred(branches=branches) if "chosen" not in value:
            return [Waiting(key, "signal", name, until) for name in branches]
        case Approval():
            return [Waiting(key, "approval", key, until)]
        case Subworkflow():
            return [Waiting(key, "child", value.get("child", ""), until)]
        case _:
            return []


def _offers(plan: Plan, token: Token) -> list[Offer]:
    value: dict[str, Any] = token.value
    place, key = plan.places[token.node], _key(token)
    if "left" in value or "begins_ms" in value:
        return []  # it has not begun: it waits for edges of its graph, or for the next iteration
    match place.node:
        case Signal(signal=name):
            return [Offer(name, "signal", key)]
        case Deferred(branches=branches) if "chosen" not in value:
            return [Offer(name, "choice", key) for name in branches]
        case Approval():
            people = tuple(str(each) for each in value.get("approvers", ()))
            return [Offer(key, "approval", key, str(value.get("title", "")), people, value.get("details"))]
        case _:
            return []


def _of_function(state: ExecutionState, tokens: dict[str, Token]) -> Progress:
    """Return the waiting calls of a function, which is all that is known without running it."""
    waiting: list[Waiting] = []
    offers: list[Offer] = []
    running: list[str] = []
    for key, token in tokens.items():
        value = cast("dict[str, Any]", token.value if isinstance(token.value, dict) else {})
        until = _until(value)
        match token.node:
            case "sleep":
                waiting.append(Waiting(key, "time", "", until))
            case "signal":
                waiting.append(Waiting(key, "signal", str(value.get("name", "")), until))
                offers.append(Offer(str(value.get("name", "")), "signal", key))
            case "approval":
                people = tuple(str(each) for each in cast("list[Any]", value.get("approvers") or ()))
                waiting.append(Waiting(key, "approval", key, until))
                offers.append(Offer(key, "approval", key, str(value.get("title", "")), people, value.get("details")))
            case "child":
                waiting.append(Waiting(key, "child", str(value.get("execution_id", "")), until))
            case "retry":
                error: dict[str, Any] = value.get("error") or {}
                waiting.append(Waiting(key, "retry", key, until, error.get("message"), value.get("summary")))
            case "step":  # under way on another engine
                running.append(key)
            case _:
                pass
    positions = [each.node_id for each in state.steps.values()]
    left, current = 0, running
    for each in [] if state.status in FINAL else fan_outs(tokens.values()):
        estimate = each.estimate(positions)
        left += estimate.calls_left
        current += [each.item_name(index) for index in estimate.current]
    done, percent = len(state.steps), 100.0 if state.status is Status.COMPLETED else None
    if left:
        percent = min(round(100 * done / (done + left), 1), _MOST_BEFORE_THE_END)
    return Progress(state.status, percent, done, done + left if left else None, tuple(current), tuple(waiting), tuple(offers))


# Of several waits, the one that says most about why nothing happens.
_NEVER = datetime.max.replace(tzinfo=UTC)
_ORDER = ("step", "retry", "approval", "signal", "child", "time")


def waiting_on(head: Head, progress: Progress, obstacle: str | None, now_ms: int) -> WaitingOn | None:
    """Return what a run waits for; None if it is under way or has ended.

    - ``head``: the execution's row.
    - ``progress``: its progress.
    - ``obstacle``: why this process cannot run it, if it cannot.
    - ``now_ms``: the store's time.
    """
    if head.status in FINAL or progress.current:
        return None
    if head.status == Status.PENDING and head.wake_ms is None:
        text = f"it waits for a free slot of workspace {head.workspace_id!r}; well.queue.why(item_id) says what holds it up"
        return WaitingOn("capacity", text, head.workspace_id)
    if obstacle is not None and head.holder == TEMPORAL and not progress.waiting:
        return WaitingOn("worker_missing", obstacle, head.workflow_id)
    is_held = head.holder is not None and (head.lease_until_ms or 0) > now_ms
    if not is_held and head.wake_ms is not None and head.wake_ms <= now_ms:
        text = obstacle or f"no worker has taken it yet; start one that has workflow {head.workflow_id!r}"
        return WaitingOn("worker_missing", text, head.workflow_id)
    if not progress.waiting:
        return None
    first = min(progress.waiting, key=lambda each: (_ORDER.index(each.kind), each.until is None, each.until or _NEVER))
    return _of_wait(first, [each.name for each in progress.waiting if (each.kind, each.step) == (first.kind, first.step)])


def paused(pause: Pause) -> WaitingOn:
    """Return the answer for a paused run."""
    return WaitingOn("paused", f"{pause.message}; run.resume() lets it go on", pause.by)


def away(error: Exception) -> WaitingOn:
    """Return the answer for a run whose store cannot be asked."""
    return WaitingOn("store_away", "its store does not answer, so it cannot go on; nothing of it is lost", error=str(error))


def _of_wait(wait: Waiting, names: list[str]) -> WaitingOn:
    """Return the answer for a wait. A deferred choice waits for one of several names."""
    until = "" if wait.until is None else f" until {wait.until:%Y-%m-%d %H:%M:%S} UTC"
    match wait.kind:
        case "step":
            text = f"it waits for a worker that has step {wait.name!r}; import the module that defines it"
            return WaitingOn("worker_missing", text, wait.name, wait.step)
        case "retry":
            text = f"it waits for the next attempt at {wait.name!r}{until}, after: {wait.error}"
            return WaitingOn("retry", text, wait.name, wait.step, wait.until, wait.error)
        case "time":
            return WaitingOn("timer", f"it waits{until}", "", wait.step, wait.until)
        case kind:
            shown = " or ".join(map(repr, names))
            return WaitingOn(kind, f"it waits for {kind} {shown}{until}", wait.name, wait.step, wait.until)
