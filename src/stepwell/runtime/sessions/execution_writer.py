"""The write path of a session: the commits of one execution, in order, under the fence of its lease.

One commit is under way at a time; batches that arrive meanwhile share the next one. A commit whose reply was lost is looked up
before anything follows it, and a commit from outside (a restore, a hand-made transaction) is followed, not overwritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from stepwell.errors import AlreadyExists, CommitUnknown, Conflict, LeaseLost, StepwellError, StoreUnavailable
from stepwell.model.commit import Creation, Rest
from stepwell.model.draft import Opening, Planned
from stepwell.model.execution_state import ONLY, State
from stepwell.model.ids import NewId
from stepwell.model.mutation import RemoveToken, SetStatus
from stepwell.model.queue_item import ItemMark
from stepwell.model.receipt import Receipt
from stepwell.model.record import Metadata, decode_status
from stepwell.model.status import Status
from stepwell.pipeline.operations import AsyncDriver
from stepwell.runtime.unwinding import Abandoned
from stepwell.state.executions import CachedExecution, CommitTerms, Executions, OpenTransaction
from stepwell.telemetry import live_span, live_tracer

__all__ = ["ExecutionWriter", "FirstCommit", "Retrying", "StateMoved"]

# A restore or a hand-made commit may come first now and then; a writer that always loses the race has met a loop.
_MOST_CONFLICTS = 20

_SESSION_IS_OVER = (LeaseLost, StoreUnavailable, CommitUnknown)
"""Errors that say nothing about a batch: this session could not have written any."""


class StateMoved(Conflict):
    """A commit from outside came first, so the batch was built on an old state; nothing was written."""


Retrying = Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
"""Runs a function, and runs it again while the store does not answer."""


class FirstCommit(msgspec.Struct, frozen=True):
    """The part of a queued execution's first commit beside its batch: it creates the execution and marks its item.

    The execution is created as late as possible, so that a workflow without a wait is a single commit: its creation, its result
    and the end of its queue item. Until then the item stays CLAIMED.
    """

    identity: Metadata
    creation: Creation
    opening: Opening
    mark: ItemMark

    def preview(self) -> State:
        """Return the state that the creation leads to, for the session to read before the commit."""
        state = State()
        for (section, key), data in self.opening.entries.items():
            state.sections[section][key] = data
        state.name(self.opening.entries["identity", ONLY], self.identity)
        return state


class _Waiting:
    """A batch that waits for the commit under way."""

    __slots__ = ("batch", "follows", "nudges", "receipt", "rest")

    def __init__(self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...], follows: int | None) -> None:
        self.batch, self.rest, self.nudges, self.follows = batch, rest, nudges, follows
        self.receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()


class ExecutionWriter:
    """Writes the commits of one execution that is being run.

    Args:
        executions: the operations on executions, driven by ``driver``.
        live: the execution as it was when the session took it over.
        fence: the fence of the session's lease.
    """

    def __init__(self, executions: Executions, driver: AsyncDriver, live: CachedExecution, fence: int, new_id: NewId) -> None:
        self._executions, self._driver, self._live, self._new_id = executions, driver, live, new_id
        self._terms = CommitTerms(fence=fence)
        self._followed = live.state.revision
        """The revision of the last commit that the session knows of."""
        self.on_moved: Callable[[], Awaitable[None]] | None = None
        """Called after a commit that followed one from outside, before anything continues because of it."""
        self._first: FirstCommit | None = None
        self.end: Abandoned | None = None
        """Why commits of this session are refused from now on; None while they are not."""
        self.creation_error: StepwellError | None = None
        """The error of the last try of the first commit."""
        self._buffered: list[Planned] = []
        self._sent: list[list[Planned]] = []
        """Buffered mutations whose commits are under way."""
        self._was_buffer_kept = False
        """Whether the buffer was refused once, together with another batch."""
        self._waiting: list[_Waiting] = []
        self._is_writing = False
        self._in_doubt: OpenTransaction | None = None
        """The commit whose reply was lost, for as long as it could not be looked up."""
        self._receipt: Receipt | None = None
        self._has_left = False
        """Whether the lease was given back: nothing can follow."""
        self._leaving: asyncio.Future[None] | None = None

    @classmethod
    def of_new(cls, executions: Executions, driver: AsyncDriver, first: FirstCommit, new_id: NewId) -> ExecutionWriter:
        """Return the writer of an execution that its first commit will create."""
        live = CachedExecution(first.identity.execution_id, first.identity.workspace_id, first.preview())
        writer = cls(executions, driver, live, first.creation.fence, new_id)
        writer._first = first
        return writer

    @property
    def state(self) -> State:
        """The execution's state, up to the last commit; before the first one, the state that its creation will give."""
        return self._live.state

    @property
    def identity(self) -> Metadata:
        """The execution's identity."""
        return self.state.identity

    @property
    def is_created(self) -> bool:
        """True if the execution exists."""
        return self._first is None

    @property
    def fence(self) -> int:
        """The fence of the session's lease."""
        return self._terms.fence or 0

    @property
    def is_busy(self) -> bool:
        """True while a commit is under way."""
        return self._is_writing

    def buffer(self, *mutations: Planned) -> None:
        """Keep mutations for the next commit."""
        self._buffered.extend(mutations)

    def has_ahead(self, mutation: Planned) -> bool:
        """Return whether a buffered mutation has not landed yet, so that the state does not show it."""
        return any(each is mutation for batch in (self._buffered, *self._sent) for each in batch)

    def tokens_removed_ahead(self) -> set[str]:
        """Return the ids of tokens that buffered mutations remove, so that the state still shows them."""
        ahead = (each for batch in (self._buffered, *self._sent) for each in batch)
        return {each.token_id for each in ahead if isinstance(each, RemoveToken)}

    def drop_buffer(self) -> None:
        """Forget what was buffered, since it is refused: an execution can always end."""
        self._buffered = []

    async def commit(
        self, batch: Sequence[Planned], *, rest: Rest | None = None, nudges: tuple[str, ...] = (), follows: int | None = None
    ) -> Receipt:
        """Commit mutations after those that were buffered, perhaps together with other batches of this execution.

        Args:
            batch: the mutations; empty for a commit that only gives back the lease or creates the execution.
            rest: what becomes of the lease with this commit.
            nudges: executions to be looked at because of it.
            follows: the revision of the state that the batch was made from, if it must not follow another commit.

        Raises:
            StateMoved: another commit came after the revision that the batch was to follow; the state is the newest now.
            Abandoned: the commits of this session are refused: the lease was lost, or the store does not answer.
            StepwellError: the batch was refused; nothing landed.
        """
        if self.end is not None:
            raise self.end
        buffered = self._buffered
        if buffered:
            batch, self._buffered = [*buffered, *batch], []
            self._sent.append(buffered)
        try:
            receipt = await self._submit(batch, rest, nudges, follows)
        except _SESSION_IS_OVER as error:
            # Not for the workflow's code to handle: it stops here, and resumes from the record under another lease.
            if self.end is None:
                self.end = Abandoned(error)
            raise self.end from error
        except StepwellError:
            self._keep(buffered)
            raise
        except Exception as error:
            # Not for the code to handle either. It would come back with every lease, so the session ends the execution with it.
            self.end = Abandoned(error)
            raise self.end from error
        finally:
            if buffered:
                self._sent = [each for each in self._sent if each is not buffered]
        self._was_buffer_kept = False
        return receipt

    def _keep(self, buffered: list[Planned]) -> None:
        """Keep the buffer for the next commit, since the rest of the batch was refused; but only once."""
        self._was_buffer_kept = bool(buffered) and not self._was_buffer_kept
        if self._was_buffer_kept:
            self._buffered = [*buffered, *self._buffered]

    async def create(self) -> None:
        """Create the execution now, if no commit has and none is under way."""
        if self._first is not None and not self._is_writing:
            await self._submit([], None, ())

    async def leave(self, batch: Sequence[Planned], rest: Rest, retrying: Retrying) -> None:
        """Give the lease back with a last commit, after the one under way; a second call waits for the first.

        Nothing is written if the lease was given back before, by the execution's end or by a commit whose reply was lost.
        """
        if self._leaving is None:
            last = [*self._buffered, *batch]
            self._leaving = asyncio.ensure_future(retrying(lambda: self._submit(last, rest, ())))
        await self._leaving

    # One commit at a time.

    async def _submit(
        self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...], follows: int | None = None
    ) -> Receipt:
        if self._is_writing:
            waiting = _Waiting(batch, rest, nudges, follows)
            self._waiting.append(waiting)
            return await waiting.receipt
        self._is_writing = True
        try:
            return await self._store(batch, rest, nudges, follows)
        finally:
            if self._waiting:
                self._writing_waiting = asyncio.ensure_future(self._write_all_waiting())
            else:
                self._is_writing = False

    async def _write_all_waiting(self) -> None:
        try:
            while self._waiting:
                # A caller whose time to leave was over relies on the end of its lease; other batches are not affected.
                together = [each for each in self._waiting if each.rest is None or not each.receipt.cancelled()]
                self._waiting = []
                await self._write_together(together)
        finally:
            self._is_writing = False

    async def _write_together(self, together: list[_Waiting]) -> None:
        """Write batches in one commit; if that is refused, each by itself, which shows the one at fault."""
        if not together:
            return
        batch = [mutation for each in together for mutation in each.batch]
        rest = next((each.rest for each in together if each.rest is not None), None)
        nudges = tuple(dict.fromkeys(execution_id for each in together for execution_id in each.nudges))
        follows = next((each.follows for each in together if each.follows is not None), None)
        try:
            receipt = await self._store(batch, rest, nudges, follows)
        except BaseException as error:
            is_refusal = isinstance(error, StepwellError) and not isinstance(error, _SESSION_IS_OVER)
            if is_refusal and len(together) > 1:
                for each in together:
                    await self._write_together([each])
                return
            for each in together:
                if not each.receipt.done():
                    each.receipt.set_exception(error if isinstance(error, Exception) else StepwellError(repr(error)))
            if not isinstance(error, Exception):
                raise
        else:
            for each in together:
                if not each.receipt.done():
                    each.receipt.set_result(receipt)

    async def _store(self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...], follows: int | None) -> Receipt:
        """Make one commit of a batch; look up a lost reply, and follow a commit from outside."""
        tracer = live_tracer()
        if tracer is None:
            return await self._store_batch(batch, rest, nudges, follows)
        with live_span(tracer, "commit", self._live.execution_id, self.identity.trace_id) as span:
            receipt = await self._store_batch(batch, rest, nudges, follows)
            span.set_attribute("stepwell.revision", receipt.revision)
        return receipt

    async def _store_batch(
        self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...], follows: int | None
    ) -> Receipt:
        if self._in_doubt is not None:
            await self._resolve_doubt(self._in_doubt)
        if self._has_left:
            if rest is None or self._receipt is None:
                raise LeaseLost(f"the lease of execution {self._live.execution_id!r} was given back", fence=self._terms.fence)
            return self._receipt
        if self._first is not None:
            receipt = await self._store_first(self._first, batch, rest, nudges)
        else:
            if rest is not None and not rest.is_final:
                batch = self._resting_batch(batch)
            receipt = await self._store_next(batch, rest, nudges, follows)
        self._receipt, self._has_left = receipt, rest is not None
        is_moved, self._followed = 0 <= self._followed < receipt.revision - 1, receipt.revision
        if is_moved and rest is None and self.on_moved is not None:
            await self.on_moved()
        return receipt

    def _resting_batch(self, batch: Sequence[Planned]) -> Sequence[Planned]:
        """Return the batch of a hand-back, without the change to WAITING if the execution does not run.

        A session that could not even begin, since its store was away, hands back an execution as it was: PENDING or WAITING.
        """
        statuses = [each for each in batch if isinstance(each, SetStatus)]
        is_running = decode_status(self.state.sections["status"][ONLY]) is Status.RUNNING
        if is_running or [each.status for each in statuses] != [Status.WAITING]:
            return batch
        return [each for each in batch if not isinstance(each, SetStatus)]

    async def _store_next(
        self, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...], follows: int | None
    ) -> Receipt:
        terms = self._terms
        if rest is not None or nudges:
            terms = msgspec.structs.replace(terms, rest=rest, nudges=nudges)
        for conflicts_left in reversed(range(_MOST_CONFLICTS)):
            transaction = OpenTransaction(self._live, terms, self._new_id)
            # A commit that was planned before the execution was there follows its creation, which another task may have committed.
            if follows is not None and 0 <= follows != transaction.revision:
                raise StateMoved(f"execution {self._live.execution_id!r} was changed from outside", expected=follows)
            try:
                return await self._driver.run(self._executions.commit(transaction, batch))
            except CommitUnknown:
                found = await self._resolve_doubt(transaction)
                if found is not None:
                    return found
                if not conflicts_left:
                    raise
            except Conflict as error:
                if not conflicts_left:
                    raise
                self._live = await self._driver.run(self._executions.newest(self._live.execution_id))
                if error.expected is not None and self._live.state.revision == transaction.revision:
                    raise  # no other commit to this execution: it is scoped state that was expected to be another
        raise AssertionError  # the last round returns or raises

    async def _store_first(
        self, first: FirstCommit, batch: Sequence[Planned], rest: Rest | None, nudges: tuple[str, ...]
    ) -> Receipt:
        """Make the commit that creates the execution. Its id may be taken: then the lease that came with it is another's."""
        # The state at hand is a preview, which its creation does not build on.
        live = CachedExecution(self._live.execution_id, self._live.workspace_id, State())
        terms = CommitTerms(None, None, (), rest, nudges, first.mark)
        transaction = OpenTransaction(live, terms, self._new_id)
        try:
            receipt = await self._driver.run(self._executions.commit(transaction, batch, first.creation, first.opening))
        except AlreadyExists as error:
            self.creation_error = error
            raise LeaseLost(f"execution {live.execution_id!r} exists already, and is not created twice") from error
        except StepwellError as error:
            self.creation_error = error
            found = await self._resolve_doubt(transaction) if isinstance(error, CommitUnknown) else None
            if found is None:
                raise
            return found
        self._first = None
        # No commit follows the end of an execution, and its readers ask the store.
        if rest is None or not rest.is_final:
            self._executions.keep(live)
            self._live = live
        return receipt

    async def _resolve_doubt(self, doubt: OpenTransaction) -> Receipt | None:
        """Look up a commit whose reply was lost: its receipt, or None if it did not land.

        While the store cannot say, the commit stays in doubt, and the next commit looks it up first.
        """
        self._in_doubt = doubt
        receipt = await self._find_receipt(doubt.commit_id)
        if receipt is not None or self.is_created:
            self._live = await self._driver.run(self._executions.newest(self._live.execution_id))
        self._in_doubt = None
        if receipt is not None:
            self._first = None
            self._receipt, self._has_left = receipt, doubt.terms.rest is not None
        return receipt

    async def _find_receipt(self, commit_id: str) -> Receipt | None:
        return await self._driver.run(self._executions.receipt(self._live.execution_id, commit_id))
