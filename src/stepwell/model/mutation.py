"""Mutations: the changes that a commit can carry, as pure data. A function of the user is stored as its result."""

from __future__ import annotations

import msgspec

from stepwell.model.queue_item import NewItem
from stepwell.model.scoped_operations import StateOp

__all__ = [
    "LARGEST_INPUT",
    "NO_INPUT",
    "AddToken",
    "CancelScopeMutation",
    "ChangeVersion",
    "Create",
    "EnqueueItem",
    "EnterScope",
    "ExitScope",
    "IncrementStepCount",
    "KeepLog",
    "MigrateState",
    "Mutation",
    "PatchContext",
    "RecordStep",
    "RemovePayloads",
    "RemoveToken",
    "ReopenStep",
    "Restore",
    "SetContext",
    "SetLoop",
    "SetMetadata",
    "SetResult",
    "SetStatus",
    "SetTrigger",
    "SetVariable",
    "UpdateToken",
    "WriteState",
    "decode_mutations",
    "encode_mutations",
]

Raw = msgspec.Raw
NO_INPUT = Raw(b"null")
LARGEST_INPUT = 16_384
"""The bytes of a step's input that are recorded for people; a larger one is not."""
ATTEMPTS_WITH_LOG = 10
"""How many attempts at a step keep their logs although they are retried: a step may be retried a million times."""


class _Mutation(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True, gc=False):
    """Values are carried as their canonical bytes (``Raw``), so that nothing is encoded twice."""


class Create(_Mutation, frozen=True, gc=False, tag="create"):
    """The first mutation of every execution: its identity and first context."""

    metadata: Raw
    context: Raw


class Restore(_Mutation, frozen=True, gc=False, tag="restore"):
    """Replace the whole state by that of a snapshot or, in a fork, of another execution."""

    source: str
    revision: int
    entries: dict[str, dict[str, Raw]]


class SetContext(_Mutation, frozen=True, gc=False, tag="set_context"):
    """Replace the context."""

    value: Raw


class PatchContext(_Mutation, frozen=True, gc=False, tag="patch_context"):
    """Change some top-level keys of the context: the result of an update function."""

    set: dict[str, Raw] = {}
    remove: list[str] = []


class SetVariable(_Mutation, frozen=True, gc=False, tag="set_variable"):
    """Give a variable a value; the last write wins."""

    name: str
    value: Raw


class SetTrigger(_Mutation, frozen=True, gc=False, tag="set_trigger"):
    """Record what started the execution; once."""

    trigger: Raw


class RecordStep(_Mutation, frozen=True, gc=False, tag="record_step"):
    """Record a step's output; once per name."""

    name: str
    step: Raw
    input: Raw = NO_INPUT
    """What the step was called with, for people: in the receipt alone, since the state has no use for it."""


class KeepLog(_Mutation, frozen=True, gc=False, tag="keep_log"):
    """Keep what an attempt at a step logged. It is in the receipt alone, and changes no state."""

    step: str
    """The key of the step's record."""
    attempt: int
    lines: list[tuple[int, str, str]]
    """Of each line the time in milliseconds, the level and the text."""
    dropped: int = 0
    """How many other lines were dropped."""

    def if_retried(self) -> KeepLog:
        """Return what is kept if the attempt is retried: from the eleventh attempt on only the number of its lines."""
        if self.attempt <= ATTEMPTS_WITH_LOG:
            return self
        return KeepLog(self.step, self.attempt, [], self.dropped + len(self.lines))


class ReopenStep(_Mutation, frozen=True, gc=False, tag="reopen_step"):
    """Reopen a failed step, so that it runs again, or a skipped one. A step with an output keeps it."""

    name: str


class SetLoop(_Mutation, frozen=True, gc=False, tag="set_loop"):
    """Replace the position of a loop."""

    loop_id: str
    loop: Raw


class AddToken(_Mutation, frozen=True, gc=False, tag="add_token"):
    """Put a new token on a node."""

    token_id: str
    token: Raw


class RemoveToken(_Mutation, frozen=True, gc=False, tag="remove_token"):
    """Take a token away."""

    token_id: str


class UpdateToken(_Mutation, frozen=True, gc=False, tag="update_token"):
    """Replace a token by a changed one of the same id."""

    token_id: str
    token: Raw


class EnterScope(_Mutation, frozen=True, gc=False, tag="enter_scope"):
    """Open a cancel scope inside another."""

    scope_id: str
    parent: str = "root"


class ExitScope(_Mutation, frozen=True, gc=False, tag="exit_scope"):
    """Close a cancel scope that has nothing left in it."""

    scope_id: str


class CancelScopeMutation(_Mutation, frozen=True, gc=False, tag="cancel_scope"):
    """Cancel a scope with everything inside it."""

    scope_id: str


class IncrementStepCount(_Mutation, frozen=True, gc=False, tag="increment_step_count"):
    """Count one more step."""

    by: int = 1


class SetMetadata(_Mutation, frozen=True, gc=False, tag="set_metadata"):
    """Replace the execution's free metadata."""

    value: Raw


class SetResult(_Mutation, frozen=True, gc=False, tag="set_result"):
    """Record the result of the execution, or its error."""

    value: Raw


class RemovePayloads(_Mutation, frozen=True, gc=False, tag="remove_payloads"):
    """Remove all values of an execution that has ended, and note in place of its result when and by which policy."""

    removal: Raw


class SetStatus(_Mutation, frozen=True, gc=False, tag="set_status"):
    """Move the execution to another status."""

    status: str


class WriteState(_Mutation, frozen=True, gc=False, tag="write_state"):
    """Change scoped state in the same transaction as this commit."""

    op: StateOp


class EnqueueItem(_Mutation, frozen=True, gc=False, tag="enqueue_item"):
    """Add an item to the queue in the same transaction as this commit."""

    item: NewItem
    """The item without its input, which is stored beside it as a value."""
    input: Raw

    @classmethod
    def of(cls, item: NewItem) -> EnqueueItem:
        """Return the mutation that adds an item."""
        return cls(msgspec.structs.replace(item, input=b""), Raw(item.input))

    def whole(self) -> NewItem:
        """Return the item as the store takes it."""
        return msgspec.structs.replace(self.item, input=bytes(self.input))


class MigrateState(_Mutation, frozen=True, gc=False, tag="migrate_state"):
    """Bring the context and the variables to another version: the result of a state migration."""

    version: int
    context: dict[str, Raw] = {}
    """The keys of the context that changed."""
    variables: dict[str, Raw] = {}
    """The variables that changed."""
    without_context: list[str] = []
    without_variables: list[str] = []


class ChangeVersion(_Mutation, frozen=True, gc=False, tag="change_version"):
    """Go on with another version of the workflow."""

    version: int


Mutation = (
    Create
    | Restore
    | SetContext
    | PatchContext
    | SetVariable
    | SetTrigger
    | RecordStep
    | KeepLog
    | ReopenStep
    | SetLoop
    | AddToken
    | RemovePayloads
    | RemoveToken
    | UpdateToken
    | EnterScope
    | ExitScope
    | CancelScopeMutation
    | IncrementStepCount
    | SetMetadata
    | SetResult
    | SetStatus
    | WriteState
    | EnqueueItem
    | MigrateState
    | ChangeVersion
)

encode_mutations = msgspec.json.Encoder(order="deterministic").encode
decode_mutations = msgspec.json.Decoder(list[Mutation]).decode
