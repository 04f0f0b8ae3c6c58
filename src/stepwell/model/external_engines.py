"""Executions that another engine than Stepwell's own workers runs.

They are created with that engine as the holder of a lease that does not end, so that no worker claims them, and with a record by
which the engine finds them. The record lands with the commit that creates or retries the execution, and goes with the commit that
ends it: what is in the list is to be started there, or under way there.
"""

from __future__ import annotations

import msgspec

from stepwell.errors import InvalidInput
from stepwell.model.mutation import WriteState
from stepwell.model.record import Metadata
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import ABSENT, Delete, Put, StoredEntry
from stepwell.model.value import decode, recode

__all__ = [
    "HOLD_SECONDS",
    "TEMPORAL",
    "WORKFLOWS_QUEUE",
    "EngineRecord",
    "check_engine",
    "engine_id",
    "first_record",
    "record_of",
    "recorded",
    "recorded_again",
    "records_path",
    "unrecorded",
]

TEMPORAL = "temporal"
"""The engine that can be named beside Stepwell's own workers."""

WORKFLOWS_QUEUE = "workflows.default"
"""The engine's task queue for executions of every workspace."""

HOLD_SECONDS = 10 * 365 * 86_400.0
"""How long an engine holds an execution: no worker takes it over by time, since only the engine knows whether it is alive."""


class EngineRecord(msgspec.Struct, frozen=True):
    """An execution that an engine is to run, or runs."""

    workspace_id: str
    workflow_id: str
    engine_id: str
    """The engine's id of this attempt at the execution. A retry of the execution has another id."""
    task_queue: str
    is_started: bool = False
    """Whether the engine has surely begun with it."""
    obstacle: str = ""
    """Why the last worker that was asked could not run it, and what to do."""


def check_engine(engine: object) -> str | None:
    """Return the engine to record for an execution: None for Stepwell's workers. Raise ``InvalidInput`` for an unknown one."""
    if engine in (None, "local"):
        return None
    if engine != TEMPORAL:
        raise InvalidInput(f"there is no engine {engine!r}; choose 'local' or {TEMPORAL!r}")
    return TEMPORAL


def first_record(identity: Metadata) -> EngineRecord:
    """Return the record of an execution that is created."""
    return EngineRecord(identity.workspace_id, identity.workflow_id, engine_id(identity.execution_id), WORKFLOWS_QUEUE)


_MARKS = str.maketrans({"%": "%25", "~": "%7E"})
"""A ``~`` ends the id: an execution may have a name that is another's id and life."""


def engine_id(execution_id: str, life: int = 0) -> str:
    """Return what an engine calls an execution; after a retry another name, since engines use a name once.

    Args:
        life: the revision of the commit that retries it; 0 for the first life.
    """
    name = f"execution-{execution_id.translate(_MARKS)}"
    return f"{name}~{life}" if life else name


def records_path(engine: str) -> str:
    """Return the scope that holds an engine's records, by execution id."""
    return internal_path("engine", DEFAULT_WORKSPACE, engine)


def recorded(
    engine: str, execution_id: str, record: EngineRecord, *, expected: int | None = None, strict: bool = True
) -> WriteState:
    """Return the mutation that puts a record."""
    data = msgspec.Raw(recode(msgspec.to_builtins(record)))
    return WriteState(Put(records_path(engine), execution_id, data, expected=expected, strict=strict))


def recorded_again(engine: str, who: Metadata, revision: int, *, only_if_absent: bool = False) -> WriteState:
    """Return the mutation by which an engine finds an execution that goes on with a commit of this revision."""
    record = msgspec.structs.replace(first_record(who), engine_id=engine_id(who.execution_id, revision))
    expected = ABSENT if only_if_absent else None
    return recorded(engine, who.execution_id, record, expected=expected, strict=not only_if_absent)


def unrecorded(engine: str, execution_id: str, *, expected: int | None = None) -> WriteState:
    """Return the mutation that removes a record."""
    return WriteState(Delete(records_path(engine), execution_id, expected=expected))


def record_of(row: StoredEntry) -> EngineRecord:
    """Return a stored record."""
    return msgspec.convert(decode(row.data or b"null"), EngineRecord)
