"""Failed runs grouped by what went wrong, and what people decide about a group.

Groups are computed from the newest failed runs at each call; nothing is written when a run fails. Only decisions are stored: one
small row for each group that was resolved or ignored. Failed runs are cached in memory, since a failed run changes only
when it is retried.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from stepwell.clock import from_ms, to_ms
from stepwell.contract.store import ExecutionQuery
from stepwell.errors import InvalidInput, NotFound, StepwellError
from stepwell.model.commit import Head
from stepwell.model.error_group import ErrorGroup, Failure, GroupStatus, RetriedGroup, failure_of, normalised
from stepwell.model.ids import check_key
from stepwell.model.scope import internal_path
from stepwell.model.scoped_operations import Put
from stepwell.model.status import Status
from stepwell.pipeline.operations import Operation, read
from stepwell.pipeline.paged_reads import all_entries
from stepwell.runtime.run_operations import RunOperations
from stepwell.state.executions import Executions
from stepwell.state.scoped_state import StateOperations

__all__ = ["MOST_FAILURES", "ErrorOperations"]

MOST_FAILURES = 10_000
_KNOWN = 2 * MOST_FAILURES
_SHOWN = 100
_HOURS = 24
_DECISION_DAYS = 90
"""How long a decision is kept after it was made: failures of so long ago are seldom kept themselves."""


class _Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision about a group, as it is stored."""

    status: GroupStatus
    seen_ms: int
    """When the newest failure was that it is about."""
    seen: tuple[str, ...] = ()
    """The runs that had failed at that very moment."""
    by: str = ""
    reason: str = ""
    until_ms: int | None = None
    more: int | None = None
    version: int | None = None


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_Decision).decode


class ErrorOperations:
    """Operations on the groups of failures of one store.

    - ``run``: returns the operations on one execution.
    """

    def __init__(self, executions: Executions, shared: StateOperations, run: Callable[[str], RunOperations]) -> None:
        self._executions, self._shared, self._store, self._run = executions, shared, shared.store, run
        self._known: OrderedDict[tuple[str, int], Failure] = OrderedDict()

    def groups(self, workspace: str, status: str | None, limit: int) -> Operation[list[ErrorGroup]]:
        """Return the groups of a workspace, the one that failed last first."""
        if status is not None and status not in ("open", "resolved", "ignored"):
            raise InvalidInput(f"{status!r} is no status of a group; use open, resolved or ignored")
        found = yield from self._grouped(workspace, limit)
        return [group for group, _ in found if status in (None, group.status)]

    def failure(self, workspace: str, execution_id: str) -> Operation[Failure | None]:
        """Return how an execution of a workspace failed; None if it did not fail, or is not there."""
        check_key(workspace, "a workspace id")
        try:
            head = yield from self._executions.head(execution_id)
        except NotFound:
            return None
        if head.workspace_id != workspace or head.status != Status.FAILED:
            return None
        return (yield from self._failure(head))

    def group(self, workspace: str, fingerprint: str, limit: int) -> Operation[ErrorGroup]:
        """Return one group. Raise ``NotFound`` if no failure that is grouped has the fingerprint."""
        return (yield from self._found(workspace, fingerprint, limit))[0]

    def _decide(self, workspace: str, fingerprint: str, limit: int, decided: _Decision) -> Operation[ErrorGroup]:
        """Store a decision about a group, and return the group as it is now."""
        group, failures = yield from self._found(workspace, fingerprint, limit)
        newest = tuple(each.execution_id for each in failures if each.failed_at == group.last_seen)[:_SHOWN]
        decision = msgspec.structs.replace(decided, seen_ms=to_ms(group.last_seen), seen=newest)
        ttl_ms = _DECISION_DAYS * 86_400_000
        yield from self._shared.write(
            Put(_path(workspace), fingerprint, msgspec.Raw(_encode(decision)), ttl_ms=ttl_ms, strict=False)
        )
        return (yield from self.group(workspace, fingerprint, limit))

    def resolve(self, workspace: str, fingerprint: str, by: str, reason: str, limit: int) -> Operation[ErrorGroup]:
        """Call a group solved: the next failure opens it again."""
        return (yield from self._decide(workspace, fingerprint, limit, _Decision("resolved", 0, by=by, reason=reason)))

    def ignore(
        self,
        workspace: str,
        fingerprint: str,
        by: str,
        reason: str,
        until: datetime | None,
        more: int | None,
        version: int | None,
        limit: int,
    ) -> Operation[ErrorGroup]:
        """Hide a group until a moment, a number of further failures, or a version of its workflow."""
        now = yield from read(self._store.now_ms)
        if until is not None and (until.tzinfo is None or until.timestamp() * 1000 <= now):
            raise InvalidInput(f"until is an aware datetime in the future, not {until}")
        for name, number in (("more", more), ("version", version)):
            if number is not None and (type(number) is not int or not 1 <= number <= 10**9):
                raise InvalidInput(f"{name} is a whole number from 1, not {number!r}")
        until_ms = None if until is None else round(until.timestamp() * 1000)
        decision = _Decision("ignored", 0, by=by, reason=reason, until_ms=until_ms, more=more, version=version)
        return (yield from self._decide(workspace, fingerprint, limit, decision))

    def reopen(self, workspace: str, fingerprint: str, by: str, limit: int) -> Operation[ErrorGroup]:
        """Open a group that was resolved or ignored."""
        return (yield from self._decide(workspace, fingerprint, limit, _Decision("open", 0, by=by)))

    def retry(self, workspace: str, fingerprint: str, limit: int) -> Operation[RetriedGroup]:
        """Retry every run of a group. A run that cannot be retried is named with the reason."""
        _, failures = yield from self._found(workspace, fingerprint, limit)
        retried: list[str] = []
        refused: dict[str, str] = {}
        for failure in failures:
            try:
                yield from self._run(failure.execution_id).retry()
            except StepwellError as error:
                refused[failure.execution_id] = error.message
            else:
                retried.append(failure.execution_id)
        return RetriedGroup(fingerprint=fingerprint, retried=tuple(retried), refused=refused)

    def _found(self, workspace: str, fingerprint: str, limit: int) -> Operation[tuple[ErrorGroup, list[Failure]]]:
        check_key(fingerprint, "a fingerprint")
        for group, failures in (yield from self._grouped(workspace, limit)):
            if group.fingerprint == fingerprint:
                return group, failures
        raise NotFound(f"none of the newest {limit:,} failed runs has the fingerprint {fingerprint!r}")

    def _grouped(self, workspace: str, limit: int) -> Operation[list[tuple[ErrorGroup, list[Failure]]]]:
        check_key(workspace, "a workspace id")
        if type(limit) is not int or not 1 <= limit <= MOST_FAILURES:
            raise InvalidInput(f"limit is a whole number from 1 to {MOST_FAILURES:,}, not {limit!r}")
        failures = yield from self._failures(workspace, limit)
        decisions: dict[str, _Decision] = {}
        for key, row in (yield from read(lambda: list(all_entries(self._store, _path(workspace))))):
            decisions[key] = _decode(row.data or b"")
        now = from_ms((yield from read(self._store.now_ms)))
        by_print: dict[str, list[Failure]] = {}
        for failure in failures:
            by_print.setdefault(failure.fingerprint, []).append(failure)
        found = [(_group(name, several, decisions.get(name), now), several) for name, several in by_print.items()]
        return sorted(found, key=lambda each: (each[0].last_seen, each[0].fingerprint), reverse=True)

    def _failures(self, workspace: str, limit: int) -> Operation[list[Failure]]:
        """Return the failures of the newest failed runs, the one that failed last first."""
        query = ExecutionQuery(workspace_id=workspace, status=Status.FAILED, limit=limit)
        heads = yield from read(lambda: self._store.find(query))
        found: list[Failure] = []
        for head in heads:
            failure = yield from self._failure(head)
            if failure is not None:
                found.append(failure)
        return sorted(found, key=lambda each: each.failed_at, reverse=True)

    def _failure(self, head: Head) -> Operation[Failure | None]:
        key = head.execution_id, head.revision
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        try:
            state = yield from self._executions.load(head.execution_id)
        except StepwellError:  # it was deleted or retried at this moment, or is damaged: its own page says so
            return None
        if state.status != Status.FAILED:
            return None
        failure = failure_of(state, from_ms(head.updated_ms))
        if state.identity.data_key is not None:  # memory must not outlive the key of a subject
            return failure
        self._known[key] = failure
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return failure


def _path(workspace: str) -> str:
    return internal_path("error_group", workspace)


def _group(fingerprint: str, failures: list[Failure], decision: _Decision | None, now: datetime) -> ErrorGroup:
    newest = failures[0]
    hours = [0] * _HOURS
    for failure in failures:
        age = (now - failure.failed_at) // timedelta(hours=1)
        if 0 <= age < _HOURS:
            hours[_HOURS - 1 - age] += 1
    group = ErrorGroup(
        fingerprint=fingerprint,
        kind=newest.kind,
        message=normalised(newest.message),
        example=newest.message,
        step=newest.step,
        frame=newest.frame,
        count=len(failures),
        first_seen=failures[-1].failed_at,
        last_seen=newest.failed_at,
        workflows=tuple(sorted({failure.workflow_id for failure in failures})),
        executions=tuple(failure.execution_id for failure in failures[:_SHOWN]),
        hours=tuple(hours),
    )
    if decision is None or not _holds(decision, failures, now):
        return group
    return msgspec.structs.replace(
        group,
        status=decision.status,
        changed_by=decision.by,
        reason=decision.reason,
        ignored_until=None if decision.until_ms is None else from_ms(decision.until_ms),
        ignored_more=decision.more,
        ignored_version=decision.version,
    )


def _holds(decision: _Decision, failures: list[Failure], now: datetime) -> bool:
    """Return whether a decision still holds, after what has failed since."""
    seen = from_ms(decision.seen_ms)
    since = [each for each in failures if (each.failed_at, each.execution_id not in decision.seen) > (seen, False)]
    match decision:
        case _Decision(status="resolved"):
            return not since
        case _Decision(status="ignored"):
            is_over = decision.until_ms is not None and now >= from_ms(decision.until_ms)
            is_many = decision.more is not None and len(since) > decision.more
            is_new = decision.version is not None and any(failure.version >= decision.version for failure in since)
            return not (is_over or is_many or is_new)
        case _:
            return False
