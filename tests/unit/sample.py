"""Small things to test with: a step, a batch of changes, and a chain of commits made by the model alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import strategies as st

from stepwell.errors import ValidationFailed
from stepwell.model.commit import Creation, Head, StoredCommit
from stepwell.model.draft import Draft, Planned
from stepwell.model.execution_state import ExecutionState, State
from stepwell.model.limits import Limits
from stepwell.model.mutation import Create, Mutation
from stepwell.model.receipt import Receipt, sign_head
from stepwell.model.receipt_chain import Verification, build_commit, settle, verify
from stepwell.model.record import Metadata, StepOutput, encode_record
from stepwell.model.scope import Scope
from stepwell.model.snapshot import StoredSnapshot, store_snapshot
from stepwell.model.validation import plan
from stepwell.model.value import canonical
from stepwell.state.transaction_buffer import Buffer

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
LIMITS = Limits()

atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
)
"""Values without parts."""

values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=4)
    ),
    max_leaves=12,
)
"""Anything that may be stored."""

keys = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=40)
"""Anything that may be an id, a name or a key."""


def metadata(execution_id: str = "run-1", workspace: str = "acme") -> Metadata:
    return Metadata(execution_id, workspace, "checkout", 1, NOW)


def step(name: str = "charge", output: object = None, status: str = "COMPLETED") -> StepOutput:
    return StepOutput(f"node-{name}", name, status, output, NOW, 12)


def batch_of(change: Callable[[Buffer], object], limits: Limits = LIMITS) -> list[Planned]:
    """Return the batch that a transaction collects from these calls."""
    buffer = Buffer(limits)
    change(buffer)
    return buffer.batch()


def draft_of(state: State, change: Callable[[Buffer], object], limits: Limits = LIMITS) -> Draft:
    """Return the result of these calls on a state, without applying it."""
    return plan(state, batch_of(change, limits), limits, is_counted=True)


def creation(who: Metadata, context: dict[str, object] | None = None) -> Mutation:
    return Create(msgspec.Raw(encode_record(who)), msgspec.Raw(canonical(context or {})))


class Chain:
    """An execution with its commits, as a store would keep them, but made by the model alone."""

    def __init__(
        self,
        execution_id: str = "run-1",
        workspace: str = "acme",
        *,
        key: bytes | None = None,
        context: dict[str, object] | None = None,
    ) -> None:
        self.execution_id, self.workspace, self.key = execution_id, workspace, key
        self.state = State()
        self.rows: list[StoredCommit] = []
        self.receipts: list[Receipt] = []
        self.snapshots: list[StoredSnapshot] = []
        self.base: StoredSnapshot | None = None
        self.commit([creation(metadata(execution_id, workspace), context)])

    def commit(self, batch: Iterable[Planned], commit_id: str | None = None) -> Receipt:
        draft = plan(self.state, list(batch), LIMITS, is_counted=True)
        commit, header = build_commit(
            draft,
            execution_id=self.execution_id,
            workspace_id=self.workspace,
            commit_id=commit_id or f"{self.execution_id}-{len(self.receipts)}",
            committed_at=NOW + timedelta(seconds=len(self.receipts)),
            key=self.key,
            creation=None if self.receipts else Creation("checkout", 1),
        )
        receipt = Receipt.of(header, commit.digest, commit.body)
        settle(draft, commit)
        self.rows.append(StoredCommit(commit.revision, commit.header, commit.body))
        self.receipts.append(receipt)
        if commit.snapshot is not None:
            self.snapshots.append(commit.snapshot)
        return receipt

    def change(self, change: Callable[[Buffer], object]) -> Receipt:
        return self.commit(batch_of(change))

    def set(self, name: str, value: object) -> Receipt:
        return self.change(lambda tx: tx.set_variable(name, value))

    def archive(self, through: int, state: State) -> None:
        """Let the chain begin with a snapshot of this state at a revision."""
        self.base = store_snapshot(state)
        self.rows = [row for row in self.rows if row.revision > through]

    @property
    def view(self) -> ExecutionState:
        return ExecutionState(self.state)

    @property
    def head(self) -> Head:
        revision, digest = self.state.revision, self.state.receipt
        return Head(
            execution_id=self.execution_id,
            workspace_id=self.workspace,
            workflow_id="checkout",
            version=1,
            status=str(self.view.status),
            revision=revision,
            digest=digest,
            base_revision=-1 if self.base is None else self.base.revision,
            signature=None if self.key is None else sign_head(self.key, self.execution_id, revision, digest, self.state.digest),
        )

    def verify(
        self, rows: Iterable[StoredCommit] | None = None, *, head: Head | None = None, anchors: Iterable[Receipt] = ()
    ) -> Verification:
        return verify(head or self.head, self.base, self.rows if rows is None else rows, key=self.key, anchors=anchors)


def story(execution_id: str = "run-1", workspace: str = "acme", *, key: bytes | None = None) -> Chain:
    """A chain in which every kind of mutation that a user can make stands at least once."""
    chain = Chain(execution_id, workspace, key=key, context={"cart": ["a", "b"], "total": 12.5})
    chain.change(lambda tx: (tx.set_trigger({"by": "hand"}), tx.set_status("RUNNING")))
    chain.change(lambda tx: (tx.record_step(step("charge", {"paid": True})), tx.increment_step_count()))
    chain.change(lambda tx: (tx.enter_scope("s"), tx.add_token("t", node="ship", scope="s", value=1)))
    chain.change(lambda tx: tx.update_token("t", lambda token: {"value": token.value + 1}))
    chain.change(
        lambda tx: (
            tx.update_context(lambda context: {"z": 0, **context, "total": 13, "a": None}),
            tx.set_metadata({"who": "me"}),
        )
    )
    chain.change(lambda tx: (tx.cancel_scope("s"), tx.remove_token("t"), tx.exit_scope("s")))
    chain.change(lambda tx: (tx.set_variable("paid", "yes"), tx.state(Scope.custom("orders")).increment("count")))
    return chain


def refused(chain: Chain, change: Callable[[Buffer], object], error: type[ValidationFailed] = ValidationFailed) -> ValidationFailed:
    """The error that a batch gives; the state must be as it was."""
    before, revision = chain.view, chain.state.revision
    with pytest.raises(error) as caught:
        chain.change(change)
    assert chain.view == before
    assert chain.state.revision == revision
    return caught.value
