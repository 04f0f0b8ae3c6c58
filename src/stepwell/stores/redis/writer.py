"""Write groups of units: each unit is one script, which lands whole or not at all; a group is one packet of scripts."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from redis import exceptions

from stepwell.errors import CommitUnknown, Conflict, StepwellError
from stepwell.fault_points import fault
from stepwell.model.commit import Commit, Outcome, Seen, StateBatch, Unit, Written
from stepwell.model.limits import Limits
from stepwell.model.scoped_operations import StateOp
from stepwell.stores.redis.connection import RedisConnectionLost, RedisRequestUnsent, Reply, translate
from stepwell.stores.redis.fast_path import PlainCommits, WholeRuns, is_ordinary
from stepwell.stores.redis.queue_calls import Merged, are_enqueues
from stepwell.stores.redis.reads import Asking, RedisReads, load_scripts
from stepwell.stores.redis.script_calls import ScriptCall, ScriptCaller, outcome_of
from stepwell.stores.redis.state_plan import StatePlan

__all__ = ["RedisWriter"]

# A scope that other processes write to all the time is tried again with growing, random pauses: about 1.5 seconds in all.
_ROUNDS = 48
_LONGEST_PAUSE_SECONDS = 0.064
_FAILURES = (RedisRequestUnsent, RedisConnectionLost, exceptions.RedisError)
_WRITTEN = Written()
_UNKNOWN = "the server did not answer, so the write may or may not have landed; look its commit id up before you try again"


class _Refused(NamedTuple):
    """A unit that was answered without a script; ``is_conditional`` if the answer builds on units before it in the group."""

    outcome: Outcome
    is_conditional: bool = False


class RedisWriter:
    """Writes to one store."""

    def __init__(
        self,
        asking: Asking,
        reading: RedisReads,
        caller: ScriptCaller,
        limits: Limits,
        ahead_ms: Callable[[], int],
        appending: PlainCommits,
        runs: WholeRuns,
    ) -> None:
        self._appending, self._runs = appending, runs
        self._asking, self._reading, self._caller, self._limits = asking, reading, caller, limits
        self._ahead_ms = ahead_ms
        self._connection, self._keys, self._settings = asking.connection, asking.keys, asking.settings

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """An outcome for each unit. If none can be known, the error is raised instead."""
        if not units:
            return []
        if is_ordinary(units):
            return self._write_ordinary(units)
        if len(units) > 1 and are_enqueues(units):
            merged = Merged(units)
            return merged.outcomes(self._write_few(merged.units))
        return self._write_few(units)

    def _write_few(self, units: Sequence[Unit]) -> list[Outcome]:
        if len(units) == 1:
            outcome = self._write_alone(units[0])
            if outcome is not None:
                return [outcome]
        return self._write_all(units)

    def _write_ordinary(self, commits: Sequence[Commit]) -> list[Outcome]:
        fault("store.begun")
        commands = [self._appending.command(commit) for commit in commits]
        fault("store.before_commit")
        replies = self._connection.exchange(commands)
        _raise_if_none_answered(replies)
        _note_committed()
        pairs = zip(commits, replies, strict=True)
        outcomes: list[Outcome | None] = [_WRITTEN if reply == b"ok" else self._failed(commit, reply) for commit, reply in pairs]
        others = [position for position, outcome in enumerate(outcomes) if outcome is None]
        if others:
            decided = self._write_all([commits[position] for position in others], is_told=len(others) < len(commits))
            for position, outcome in zip(others, decided, strict=True):
                outcomes[position] = outcome
        return cast("list[Outcome]", outcomes)

    def _write_alone(self, unit: Unit) -> Outcome | None:
        """The outcome of a unit that builds on nothing read before; None for any other, and for one that has to be tried again."""
        if isinstance(unit, Commit | StateBatch) and unit.ops:
            return None
        fault("store.begun")
        call = self._caller.of(unit, (), 0)
        if isinstance(call, StepwellError):
            return call
        fault("store.before_commit")
        replies = self._connection.exchange((call.command(),))
        _raise_if_none_answered(replies)
        _note_committed()
        return self._outcome(unit, call, replies[0])

    def _write_all(self, units: Sequence[Unit], *, is_told: bool = False) -> list[Outcome]:
        """The general path. Once anything of the group ``is_told``, what cannot be known of the others is told to those alone."""
        outcomes: dict[int, Outcome] = {}
        waiting = list(range(len(units)))
        for number in range(_ROUNDS):
            try:
                outcomes |= self._round(units, waiting, is_first=number == 0)
            except StepwellError as error:
                if not outcomes and not is_told:
                    raise
                outcomes |= {index: _unanswered(units[index], error) for index in waiting}
            waiting = [index for index in waiting if index not in outcomes]
            if not waiting:
                break
            time.sleep(random.uniform(0, min(0.001 * 2**number, _LONGEST_PAUSE_SECONDS)))  # noqa: S311 - no secret
        return [outcomes[index] if index in outcomes else _busy() for index in range(len(units))]

    def _round(self, units: Sequence[Unit], waiting: Sequence[int], *, is_first: bool) -> dict[int, Outcome]:
        """Try to write units, in order; those without an outcome afterwards have to be tried again, on newer state."""
        fault("store.begun")
        plans = self._plan([units[index] for index in waiting], is_first=is_first)
        calls = list(dict.fromkeys(plan for plan in plans if isinstance(plan, ScriptCall)))
        fault("store.before_commit")
        replies = self._send(calls)
        _note_committed()
        shares = (share for call, reply in zip(calls, replies, strict=True) for share in call.shares(reply))
        outcomes = self._outcomes([units[index] for index in waiting], plans, shares)
        return {index: outcome for index, outcome in zip(waiting, outcomes, strict=True) if outcome is not None}

    def _outcomes(
        self, units: Sequence[Unit], plans: Sequence[ScriptCall | _Refused], replies: Iterator[Reply]
    ) -> list[Outcome | None]:
        """The outcome of each unit; None for those that have to be tried again, and those refused only because of them."""
        outcomes: list[Outcome | None] = []
        is_behind = is_gap = False
        for number, (unit, plan) in enumerate(zip(units, plans, strict=True)):
            if isinstance(plan, _Refused):
                is_open = plan.is_conditional and (is_gap or _is_repeat(unit, units[:number]))
                outcome = None if is_open else plan.outcome
            else:
                outcome = self._outcome(unit, plan, next(replies))
                is_behind = is_behind or outcome is None
                is_gap = is_gap or not isinstance(outcome, Written)
                if is_behind and isinstance(outcome, StepwellError) and not isinstance(outcome, CommitUnknown):
                    outcome = None
            outcomes.append(outcome)
        return outcomes

    def _plan(self, units: Sequence[Unit], *, is_first: bool) -> list[ScriptCall | _Refused]:
        ops = [op for unit in units if isinstance(unit, Commit | StateBatch) for op in unit.ops]
        if not ops and is_first:
            pieces = self._runs.found_in(units)
            return [call or self._plan_plain(unit) for piece, call in pieces for unit in piece]
        if not ops:
            return [self._plan_plain(unit) for unit in units]
        draft = StatePlan(self._asking.ask, self._keys, self._limits, self._ahead_ms())
        draft.read(ops)
        return [
            self._plan_scoped(unit, unit.ops, draft)
            if isinstance(unit, Commit | StateBatch) and unit.ops
            else self._plan_plain(unit)
            for unit in units
        ]

    def _plan_plain(self, unit: Unit) -> ScriptCall | _Refused:
        call = self._caller.of(unit, (), 0)
        return _Refused(call) if isinstance(call, StepwellError) else call

    def _plan_scoped(self, unit: Commit | StateBatch, ops: Sequence[StateOp], draft: StatePlan) -> ScriptCall | _Refused:
        is_conditional = not draft.is_untouched(ops)
        resolution = draft.resolve(ops)
        if isinstance(resolution, StepwellError):
            seen = self._seen(unit)  # a retry meets its own first writes
            return _Refused(resolution, is_conditional) if seen is None else _Refused(seen)
        is_idle = not (resolution.entries or resolution.totals or unit.guards or unit.nudges)
        if is_idle and not is_conditional and isinstance(unit, StateBatch):
            return _Refused(Written(resolution.answers))
        call = self._caller.of(unit, draft.writes(ops, resolution), draft.now_ms)
        if isinstance(call, StepwellError):
            return _Refused(call)
        call.answers, call.is_planned = resolution.answers, True
        return call

    def _seen(self, unit: Unit) -> Seen | None:
        row = self._reading.commit_of(unit.execution_id, unit.commit_id) if isinstance(unit, Commit) else None
        return None if row is None else Seen(row.header, row.body)

    def _send(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        if not calls:
            return []
        # Only a call that was worked out on state read before can find it changed, and stop those after it.
        may_stop = len(calls) > 1 and any(call.is_planned for call in calls)
        group = secrets.token_hex(8) if may_stop else ""
        replies = self._connection.exchange([call.command(group, self._keys.stop) for call in calls])
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            load_scripts(self._connection)
        _raise_if_none_answered(replies)
        return replies

    def _outcome(self, unit: Unit, call: ScriptCall, reply: Reply) -> Outcome | None:
        return self._failed(unit, reply) if isinstance(reply, _FAILURES) else outcome_of(unit, call, reply)

    def _failed(self, unit: Unit, reply: Reply) -> StepwellError | None:
        """What a reply that is no answer of a script means; None if the unit has to be tried again."""
        if isinstance(reply, RedisRequestUnsent):
            return reply.error
        if isinstance(reply, RedisConnectionLost):
            return _unanswered(unit, CommitUnknown(_UNKNOWN))
        is_failure = isinstance(reply, exceptions.RedisError) and not isinstance(reply, exceptions.NoScriptError)
        return translate(reply, self._settings) if is_failure else None


def _raise_if_none_answered(replies: Sequence[Reply]) -> None:
    first = replies[0]
    if isinstance(first, RedisRequestUnsent) and all(isinstance(reply, RedisRequestUnsent) for reply in replies):
        raise first.error
    if isinstance(first, RedisConnectionLost) and all(isinstance(reply, RedisConnectionLost) for reply in replies):
        raise CommitUnknown(f"{_UNKNOWN} ({first.error.message})")


def _note_committed() -> None:
    try:
        fault("store.committed")
    except Exception as error:
        raise CommitUnknown from error


def _is_repeat(unit: Unit, before: Sequence[Unit]) -> bool:
    """Whether a commit came earlier in the group, too: what it met may be its own first writes, which are in the store by now."""
    if not isinstance(unit, Commit):
        return False
    name = unit.execution_id, unit.commit_id
    return any(isinstance(each, Commit) and (each.execution_id, each.commit_id) == name for each in before)


def _busy() -> Conflict:
    return Conflict("other writers changed the same scope again and again; nothing was written, try again")


def _unanswered(unit: Unit, error: StepwellError) -> StepwellError:
    if isinstance(error, CommitUnknown) and isinstance(unit, Commit):
        return CommitUnknown(error.message, commit_id=unit.commit_id, execution_id=unit.execution_id)
    return error
