"""Write groups of units: each unit is one script, which lands whole or not at all; a group is one packet of scripts."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import groupby

from redis import exceptions

from stepwell.errors import CommitUnknown, Conflict, StepwellError
from stepwell.fault_points import fault, fault_after_commit
from stepwell.model.commit import Commit, Outcome, StateBatch, Unit, Written
from stepwell.model.limits import Limits
from stepwell.stores.redis.connection import RedisConnectionLost, RedisRequestUnsent, Reply, translate
from stepwell.stores.redis.fast_path import FastPath, alone, is_fast
from stepwell.stores.redis.queue_calls import Merged, are_enqueues
from stepwell.stores.redis.reads import CheckedReader, load_scripts
from stepwell.stores.redis.script_calls import ScriptCall, ScriptCaller, outcome_of
from stepwell.stores.redis.state_plan import StatePlan

__all__ = ["RedisWriter"]

# A unit whose scope other processes keep changing is tried again with growing, random pauses: about 1.5 seconds in all.
_ROUNDS = 48
_LONGEST_PAUSE_SECONDS = 0.064
_UNKNOWN = "the server did not answer, so the write may or may not have landed; look its commit id up before you try again"


class RedisWriter:
    """Write groups of units to one store."""

    def __init__(
        self, reader: CheckedReader, caller: ScriptCaller, fast: FastPath, limits: Limits, ahead_ms: Callable[[], int]
    ) -> None:
        self._reader, self._caller, self._fast, self._limits, self._ahead_ms = reader, caller, fast, limits, ahead_ms
        self._connection, self._keys, self._settings = reader.connection, reader.keys, reader.settings

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Return an outcome for each unit. If none can be known, the error is raised instead."""
        if len(units) > 1 and are_enqueues(units):
            merged = Merged(units)
            return merged.outcomes(self._write_all(merged.units))
        return self._write_all(units)

    def _write_all(self, units: Sequence[Unit]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting: Sequence[int] = range(len(units))
        for number in range(_ROUNDS):
            try:
                outcomes |= self._round(units, waiting, is_first=number == 0)
            # An earlier round may have written units: those keep their outcomes, and the error is that of the others.
            except StepwellError as error:
                if not outcomes:
                    raise
                outcomes |= {index: _unanswered(units[index], error) for index in waiting}
            waiting = [index for index in waiting if index not in outcomes]
            if not waiting:
                break
            # Random, or two processes that met once would meet again in every round.
            time.sleep(random.uniform(0, min(0.001 * 2**number, _LONGEST_PAUSE_SECONDS)))  # noqa: S311 - no secret
        return [outcomes[index] if index in outcomes else _busy() for index in range(len(units))]

    def _round(self, units: Sequence[Unit], waiting: Sequence[int], *, is_first: bool) -> dict[int, Outcome]:
        """Write the waiting units once, in order; return the outcomes, without those of units that must be planned again."""
        fault("store.begun")
        group = [units[index] for index in waiting]
        plans = self._plan(group, is_first=is_first)
        calls = [plan for plan in plans if isinstance(plan, ScriptCall)]
        fault("store.before_commit")
        replies = iter(self._send(calls) if calls else ())
        fault_after_commit()
        outcomes: list[Outcome | None] = []
        is_behind = is_gap = False
        for plan in plans:
            if isinstance(plan, StepwellError):
                outcomes.append(plan)
                is_gap = True
                continue
            for reply in plan.shares(next(replies)):
                outcome = self._outcome(group[len(outcomes)], plan, reply)
                if outcome is plan.refusal and plan.is_conditional and is_gap:
                    outcome = None  # it was refused because of a unit that did not land
                is_behind = is_behind or outcome is None
                is_gap = is_gap or not isinstance(outcome, Written)
                if is_behind and isinstance(outcome, StepwellError) and not isinstance(outcome, CommitUnknown):
                    outcome = None  # it may have been refused because of a unit that will land in the next round
                outcomes.append(outcome)
        return {index: outcome for index, outcome in zip(waiting, outcomes, strict=True) if outcome is not None}

    def _plan(self, units: Sequence[Unit], *, is_first: bool) -> list[ScriptCall | StepwellError]:
        """Return the calls that write the units, in order; a unit that no script can write has its refusal instead."""
        ops = [op for unit in units if isinstance(unit, Commit | StateBatch) for op in unit.ops]
        state = StatePlan(self._reader.read, self._keys, self._limits, self._ahead_ms())
        if ops:
            state.read(ops)
        # Units are planned on the state that earlier units of the group will leave, before any of them is sent.
        plans: list[ScriptCall | StepwellError] = []
        # The general path finds the reason why a commit did not land by the fast one.
        on_fast_path = alone(units) if is_first else set[str]()
        for is_on_fast_path, piece in groupby(units, lambda unit: is_fast(unit) and unit.execution_id in on_fast_path):
            if is_on_fast_path:
                plans += self._fast.calls([unit for unit in piece if is_fast(unit)])
            else:
                plans += [self._plan_unit(unit, state) for unit in piece]
        return plans

    def _plan_unit(self, unit: Unit, state: StatePlan) -> ScriptCall | StepwellError:
        if not isinstance(unit, Commit | StateBatch) or not unit.ops:
            return self._caller.of(unit)
        is_conditional, resolution = not state.is_untouched(unit.ops), state.resolve(unit.ops)
        if isinstance(resolution, StepwellError):
            # The script still compares guards, fence and revision: a late writer is to hear that it was late.
            call = self._caller.of(unit, state.checks(unit.ops), state.now_ms, is_check=True)
        else:
            call = self._caller.of(unit, state.writes(unit.ops, resolution), state.now_ms)
        if isinstance(call, StepwellError):
            return call
        call.is_planned = True
        if isinstance(resolution, StepwellError):
            call.refusal, call.is_conditional = resolution, is_conditional
        else:
            call.answers = resolution.answers
        return call

    def _send(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        # Only a call that was planned on state read before can find it changed, and stop the calls after it.
        may_stop = len(calls) > 1 and any(call.is_planned for call in calls)
        group = secrets.token_hex(8) if may_stop else ""
        replies = self._connection.exchange([call.command(group, self._keys.stop) for call in calls])
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            # A restarted server has forgotten its scripts; the units are planned again in the next round.
            load_scripts(self._connection)
        _raise_if_none_answered(replies)
        return replies

    def _outcome(self, unit: Unit, call: ScriptCall, reply: Reply) -> Outcome | None:
        match reply:
            case RedisRequestUnsent():
                return reply.error
            case RedisConnectionLost():
                return _unanswered(unit, CommitUnknown(_UNKNOWN))
            case exceptions.NoScriptError():
                return None
            case exceptions.RedisError():
                return translate(reply, self._settings)
            case _:
                return outcome_of(unit, call, reply)


def _raise_if_none_answered(replies: Sequence[Reply]) -> None:
    first = replies[0]
    if isinstance(first, RedisRequestUnsent) and all(isinstance(reply, RedisRequestUnsent) for reply in replies):
        raise first.error
    if isinstance(first, RedisConnectionLost) and all(isinstance(reply, RedisConnectionLost) for reply in replies):
        raise CommitUnknown(f"{_UNKNOWN} ({first.error.message})")


def _busy() -> Conflict:
    return Conflict("other writers changed the same scope again and again; nothing was written, try again")


def _unanswered(unit: Unit, error: StepwellError) -> StepwellError:
    if isinstance(error, CommitUnknown) and isinstance(unit, Commit):
        return CommitUnknown(error.message, commit_id=unit.commit_id, execution_id=unit.execution_id)
    return error
