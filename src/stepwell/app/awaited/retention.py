"""Retention: what is kept for how long, and what was removed."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, cast

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput
from stepwell.maintenance.retention import RetentionOperations, RetentionPlan, RetentionReport
from stepwell.model.ids import Id, id_text
from stepwell.model.retention import ENDED_ITEMS, EVERY_TIER, RetentionPolicy, Tombstone
from stepwell.model.status import FINAL
from stepwell.pipeline.operations import AsyncDriver

__all__ = ["AsyncRetention"]

Spans = Span | Mapping[str, Span] | None


class AsyncRetention:
    """The retention of executions, their values and receipts, and queue items: ``well.retention``.

    Without a policy only ended queue items are removed, which stay as long as their tier says. Workers apply the policies, also to
    what was stored before.
    """

    def __init__(self, operations: RetentionOperations, driver: AsyncDriver) -> None:
        self._do, self._driver = operations, driver

    async def put(
        self,
        tier: str = EVERY_TIER,
        *,
        executions: Spans = None,
        payloads: Spans = None,
        items: Spans = None,
        receipts: int | None = None,
        tombstones: Span | None = None,
        archive: str | Path | None = None,
    ) -> RetentionPolicy:
        """Set the policy of a tier, in place of the one before, and return it. Records that no argument names are kept for ever.

        - ``tier``: the tier; ``*`` for every tier without a policy of its own.
        - ``executions``: how long after its end an execution is removed. A tombstone stays. One span for all, or one for each
          status: ``{"COMPLETED": "30d", "FAILED": "365d"}``.
        - ``payloads``: likewise, how long after its end its values are removed; it stays in the lists with its status and times.
        - ``items``: likewise, how long ended queue items stay. A status that is not named: as the tier says.
        - ``receipts``: how many of the newest receipts of each execution stay; older ones are behind a snapshot.
        - ``tombstones``: how long tombstones stay.
        - ``archive``: a folder for the receipts that are removed, which all workers reach under this path.

        Raise ``NotFound`` for an unknown tier, and ``InvalidInput`` for a status or span that is none.

        Example:

            await well.retention.put("free", executions={"COMPLETED": "30d"}, payloads="7d", archive="/mnt/archive")
        """
        final = sorted(str(status) for status in FINAL)
        policy = RetentionPolicy(
            tier=tier.lower() if isinstance(tier, str) else tier,
            executions=_by_status(executions, "executions", final),
            payloads=_by_status(payloads, "payloads", final),
            items=_by_status(items, "items", ENDED_ITEMS),
            receipts=receipts,
            tombstones=None if tombstones is None else seconds_of(tombstones, "tombstones"),
            archive=_folder(archive),
        )
        return await self._driver.run(self._do.put(policy))

    async def remove(self, tier: str = EVERY_TIER) -> bool:
        """Remove the policy of a tier; return whether it had one. Records that it removed stay removed.

        - ``tier``: the tier; ``*`` for the policy of tiers without one of their own.
        """
        return await self._driver.run(self._do.remove(tier))

    async def list(self) -> builtins.list[RetentionPolicy]:
        """Return all policies by tier."""
        return await self._driver.run(self._do.policies())

    async def plan(self, *, within: Span = 0, limit: int = 1_000) -> RetentionPlan:
        """Return what will go within a span from now, without removing anything.

        - ``within``: 0 for what the next round removes.
        - ``limit``: how many executions to list; ``counts`` counts all.

        Example:

            plan = await well.retention.plan(within="7d")
            print(plan.counts, plan.first[:3])
        """
        return await self._driver.run(self._do.plan(seconds_of(within, "within"), limit))

    async def apply(self) -> RetentionReport:
        """Remove all that is due now, and return what was removed. Workers do it regularly."""
        return await self._driver.run(self._do.sweep(inf))

    async def remove_payloads(self, execution_id: Id) -> None:
        """Remove the values of one execution now: inputs, outputs, variables and context. Its row and its proof of existence stay.

        - ``execution_id``: the execution, which must have ended.

        Raise ``NotFound`` if there is none, ``Conflict`` if it has not ended or a parent may still ask for its result, and
        ``ExecutionRemoved`` if its values were removed before.
        """
        await self._driver.run(self._do.remove_payloads(id_text(execution_id)))

    async def tombstone(self, execution_id: Id) -> Tombstone:
        """Return what is left of an execution that was removed.

        - ``execution_id``: the execution.

        Raise ``NotFound`` if retention has removed none of this id.
        """
        return await self._driver.run(self._do.tombstone(id_text(execution_id)))

    async def tombstones(
        self, *, workspace: Id | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[Tombstone]:
        """Return a page of tombstones, in an order of their own that does not change.

        - ``workspace``: only those of this workspace.
        - ``after``: the execution id of the last one of the page before.
        - ``limit``: the size of a page, 1 to 10,000.
        """
        return await self._driver.run(self._do.tombstones(id_text(workspace), after, limit))


def _folder(archive: str | Path | None) -> str | None:
    """Return the absolute path of a folder: workers may run in another one."""
    return str(Path(archive).absolute()) if isinstance(archive, Path) or (isinstance(archive, str) and archive) else archive


def _by_status(spans: Spans, what: str, statuses: Sequence[str]) -> dict[str, float]:
    """Return a span for each status: the same for all, or those that are given."""
    if spans is None:
        return {}
    if not isinstance(spans, Mapping):
        return dict.fromkeys(statuses, seconds_of(spans, what))
    given = cast("Mapping[Any, Any]", spans)
    if not all(isinstance(status, str) for status in given):
        raise InvalidInput(f"{what} has spans by the name of a status, not {spans!r}")
    return {str(status).upper(): seconds_of(span, f"{what} of {status}") for status, span in given.items()}
