"""The first commit of an execution that comes from the queue: it makes the execution, and moves the item on, in one.

The execution is made as late as it can be: by whatever its session commits first. A workflow that has nothing to wait for is then a
single commit, with its creation, its result and the end of its queue item. Until then the item is CLAIMED, and what the session
sees of the execution is what the creation will come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stepwell.errors import AlreadyExists, CommitUnknown, LeaseLost, StepwellError, StoreUnavailable
from stepwell.model.commit import Creation, Rest
from stepwell.model.draft import Planned, opening_of
from stepwell.model.execution_state import State
from stepwell.model.ids import NewId
from stepwell.model.queue_item import Claimed, ItemMark, ItemStatus
from stepwell.model.record import Metadata, encode_plain_trigger, encode_record
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.sessions.execution_writer import Recorder
from stepwell.state.executions import CachedExecution, CommitTerms, Executions, OpenTransaction

__all__ = ["FENCE", "FirstCommit", "Host"]

FENCE = 1
"""The fence of the lease that a creation comes with."""


class Host(Protocol):
    """Who started the session, and is told how it goes."""

    def finishing(self) -> None:
        """All that is left of the session is to wait for its last commit."""
        ...

    def ended(self, recorder: FirstCommit) -> None:
        """The session is over."""
        ...


class FirstCommit(Recorder):
    """The recorder of an execution that does not exist before its first commit."""

    def __init__(
        self,
        executions: Executions,
        driver: AsyncDriver,
        new_id: NewId,
        host: Host,
        claimed: Claimed,
        identity: Metadata,
        creation: Creation,
    ) -> None:
        preview = State()
        super().__init__(executions, driver, CachedExecution(identity.execution_id, identity.workspace_id, preview), FENCE, new_id)
        self._host, self.claimed, self._creation = host, claimed, creation
        record, trigger = encode_record(identity), encode_plain_trigger(claimed.input)
        self._opening = opening_of(record, trigger)
        self._preview: State | None = preview
        for (section, key), data in self._opening.entries.items():
            preview.sections[section][key] = data
        preview.name(record, identity)
        self.is_taken = False
        """Whether somebody else had made an execution with this id."""
        self.is_finishing = False
        """Whether all that is left of the session is to wait for its last commit."""
        self.is_hindered = False
        """Whether it was the store that could not take the first commit."""

    def end(self) -> None:
        self._host.ended(self)

    @property
    def is_made(self) -> bool:
        """Whether the execution exists."""
        return self._preview is None

    @property
    def state(self) -> State:
        """The execution's state; before the first commit, what is known of it."""
        return self._live.state if self._preview is None else self._preview

    async def _store(self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...]) -> None:
        if rest is not None and rest.is_final and not self.is_finishing:
            self.is_finishing = True
            self._host.finishing()
        if self._doubt is not None and await self._settle_doubt(self._doubt):
            self._preview = None
        if self._preview is None:
            return await super()._store(batch, rest, nudges)
        self._live = CachedExecution(self._live.execution_id, self._live.workspace_id, State())
        session = self._session(rest, nudges)
        try:
            await self._driver.run(self._executions.commit(session, batch, self._creation, self._opening))
            if not self.is_finishing:  # whoever wants to know of one that has ended is told, or asks the store
                self._executions.keep(self._live)
        except StepwellError as error:
            await self._meet(error, session)
        self._preview, self._has_left = None, rest is not None
        return None

    def _session(self, rest: Rest | None, nudges: tuple[str, ...] = ()) -> OpenTransaction:
        mark = ItemMark(self.claimed.item_id, ItemStatus.DISPATCHED, self.claimed.fence)
        return OpenTransaction(self._live, CommitTerms(None, None, (), rest, nudges, mark), self._new_id)

    async def _meet(self, error: StepwellError, session: OpenTransaction) -> None:
        """See what it means that the first commit was not taken: raises, unless only its reply was lost."""
        if isinstance(error, AlreadyExists):
            self.is_taken = True
            raise LeaseLost(f"execution {self._live.execution_id!r} exists already, and is not made twice") from error
        self.is_hindered = self.is_hindered or isinstance(error, StoreUnavailable | CommitUnknown)
        if not isinstance(error, CommitUnknown) or not await self._settle_doubt(session):
            raise error

    async def make(self) -> None:
        """Make the execution now, if nothing has been committed yet."""
        if self._preview is not None and not self.is_busy:
            await self.commit([])
