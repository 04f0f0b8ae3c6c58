"""A chain of commits built before it is measured, so that only the store's part of a commit is left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from benchmarks import workload
from benchmarks.measurement import Measurement
from benchmarks.plan import Plan
from benchmarks.rounds import in_turns, per_second
from stepwell.clock import SystemClock
from stepwell.model.commit import Commit, Creation, Written
from stepwell.model.draft import Planned
from stepwell.model.execution_state import State
from stepwell.model.ids import new_commit_id, new_id
from stepwell.model.limits import Limits
from stepwell.model.mutation import Create, RecordStep
from stepwell.model.receipt_chain import build_commit, settle
from stepwell.model.record import Metadata, encode_record, encode_step
from stepwell.model.validation import plan as planned
from stepwell.pipeline.group_commit import GroupCommit
from stepwell.stores.url import store_of

__all__ = ["chain", "prepared"]

_WHEN = datetime(2026, 1, 1, tzinfo=UTC)
_WORKSPACE, _WORKFLOW = "default", "manual"


def chain(execution_id: str, steps: int) -> Iterator[Commit]:
    """Return the commit that creates an execution and one for each step, as ``well.transaction`` builds them."""
    state, who = State(), Metadata(execution_id, _WORKSPACE, _WORKFLOW, 1, _WHEN)
    yield _next(state, execution_id, Create(msgspec.Raw(encode_record(who)), msgspec.Raw(b"{}")), Creation(_WORKFLOW, 1))
    for number in range(steps):
        step = workload.step(number)
        yield _next(state, execution_id, RecordStep(step.node_name, msgspec.Raw(encode_step(step))))


def _next(state: State, execution_id: str, mutation: Planned, creation: Creation | None = None) -> Commit:
    draft = planned(state, [mutation], Limits())
    commit, _ = build_commit(
        draft,
        execution_id=execution_id,
        workspace_id=_WORKSPACE,
        commit_id=new_commit_id(state.revision + 1, new_id()),
        committed_at=_WHEN,
        creation=creation,
        is_named=False,
    )
    settle(draft, commit)
    return commit


def prepared(plan: Plan, url: str, raw: workload.Yardstick, judge: workload.Judge | None = None) -> Iterator[Measurement]:
    """Yield the rate of prebuilt commits through the group committer: the cost for a worker that holds a lease."""
    size = plan.size(300, 20)
    store = store_of(url, SystemClock(), Limits())
    store.open()
    group, commits = GroupCommit(store.write), chain("prepared", size * (plan.rounds + 1))
    group.write(next(commits))
    ready = iter(list(commits))

    def write(_: int) -> None:
        if not isinstance(outcome := group.write(next(ready)), Written):
            raise AssertionError(outcome)

    try:
        ours, raws = in_turns(plan.rounds, per_second(size, write), lambda: raw.single(size))
    finally:
        group.close()
        store.close()
    yield workload.beside(plan.name, ours, raws, raw_is=raw.single_is, judge=judge)
