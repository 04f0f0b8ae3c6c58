"""Every error that Stepwell raises on purpose, as one tree.

    StepwellError
    ├── ValidationFailed        an input was refused before anything was written
    │   ├── InvalidInput        a value, id, URL or argument that can never be accepted
    │   ├── LimitExceeded       over a configured limit
    │   ├── AlreadyRecorded     the step or trigger already has its output
    │   ├── ChangeCancelled     a hook refused the change
    │   ├── InvalidSnapshot     snapshot bytes that cannot be restored here
    │   ├── InvalidBackup       files that are no backup, or a damaged one
    │   └── InvalidDefinition   a workflow definition with faults
    ├── NotFound                no such execution, revision or receipt
    │   ├── ValueErased         the value was erased together with the key of its subject
    │   └── ExecutionRemoved    retention removed the execution, or its payloads
    ├── Conflict                another writer was first
    │   ├── AlreadyExists       the id is taken
    │   ├── ExecutionEnded      the execution has ended and accepts no messages
    │   └── NotActive           the workflow is a draft or paused
    ├── ReceiptArchived         the commit landed, but its receipt was archived
    ├── LeaseLost               the lease expired or another holder took it
    ├── LockHeld                another holder has the lock
    ├── StoreUnavailable        the store cannot serve requests now
    │   ├── StoreFull           no space left for a write
    │   ├── StoreForeign        the file or database is not Stepwell's
    │   ├── StoreNewer          written by newer code than this
    │   ├── StoreUnsafe         a server or library version known to lose data
    │   ├── EncryptionKeyMissing  values are encrypted with a key that is not given here
    │   └── Corrupted           stored bytes do not match their digests
    ├── CommitUnknown           the reply to a commit was lost
    ├── StepFailed              a step failed after its last attempt
    ├── ProcessDied             the process of a step died
    ├── NoScriptEngine          no engine for this language of scripts is installed
    ├── ScriptFailed            a script raised an error, or is not written correctly
    ├── RequestFailed           a server answered with a status that was not expected
    ├── AddressRefused          a private or local address was not called
    ├── GovernanceViolated      a step was refused: its budget is used up, or its kind of effect is not allowed
    ├── StateNewer              a value was written by newer code than this
    ├── MigrationFailed         a state migration raised, is not pure, or is missing
    ├── EngineUnavailable       the engine that was named does not answer
    ├── ExecutionFailed
    ├── ExecutionTimedOut       the execution exceeded its timeout
    └── ExecutionCancelled

Each class has a stable ``code``; ``str(error)`` says what happened and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "AddressRefused",
    "AlreadyExists",
    "AlreadyRecorded",
    "ChangeCancelled",
    "CommitUnknown",
    "Conflict",
    "Corrupted",
    "EncryptionKeyMissing",
    "EngineUnavailable",
    "ExecutionCancelled",
    "ExecutionEnded",
    "ExecutionFailed",
    "ExecutionRemoved",
    "ExecutionTimedOut",
    "GovernanceViolated",
    "InvalidBackup",
    "InvalidDefinition",
    "InvalidInput",
    "InvalidSnapshot",
    "LeaseLost",
    "LimitExceeded",
    "LockHeld",
    "MigrationFailed",
    "NoScriptEngine",
    "NotActive",
    "NotFound",
    "Problem",
    "ProcessDied",
    "ReceiptArchived",
    "RequestFailed",
    "ScriptFailed",
    "StateNewer",
    "StepFailed",
    "StepwellError",
    "StoreForeign",
    "StoreFull",
    "StoreNewer",
    "StoreUnavailable",
    "StoreUnsafe",
    "ValidationFailed",
    "ValueErased",
]


class StepwellError(Exception):
    """Stepwell refused a request or could not carry it out."""

    code: ClassVar[str] = "SW-000"

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of an input: its position, its error code, and what to do."""

    code: str
    message: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def to_dict(self) -> dict[str, str]:
        """Return the fault as plain data."""
        return {"code": self.code, "message": self.message, "where": self.where}


class ValidationFailed(StepwellError):
    """The input was refused; nothing was written."""

    code = "SW-100"

    def __init__(self, errors: Sequence[Problem] | str) -> None:
        if isinstance(errors, str):
            errors = (Problem(self.code, errors),)
        self.errors: tuple[Problem, ...] = tuple(errors)
        super().__init__("; ".join(str(problem) for problem in self.errors))


class InvalidInput(ValidationFailed):
    """The value, id, URL or argument can never be accepted; nothing was written."""

    code = "SW-101"


class LimitExceeded(ValidationFailed):
    """The input is over a limit; nothing was written."""

    code = "SW-102"

    def __init__(
        self,
        errors: Sequence[Problem] | str,
        *,
        limit: str = "",
        maximum: int | None = None,
        actual: int | None = None,
    ) -> None:
        super().__init__(errors)
        self.limit, self.maximum, self.actual = limit, maximum, actual

    @classmethod
    def of(cls, limit: str, maximum: int, actual: int | None, what: str, *, is_fixed: bool = False) -> LimitExceeded:
        """Return the error of a limit: what was too large, by how much, and the setting that allows more, if there is one."""
        size = f"is {actual:,}, over" if actual is not None else "is over"
        advice = "make it smaller: more is not possible here" if is_fixed else f"make it smaller or raise Limits({limit}=...)"
        message = f"{what} {size} the limit {limit}={maximum:,}; {advice}"
        return cls(message, limit=limit, maximum=maximum, actual=actual)


class AlreadyRecorded(ValidationFailed):
    """The step output or trigger is already recorded; the first value stays."""

    code = "SW-103"


class ChangeCancelled(ValidationFailed):
    """A hook refused the change; nothing was written."""

    code = "SW-109"


class InvalidSnapshot(ValidationFailed):
    """Bytes that are no snapshot, or none that can be restored here; nothing was written."""

    code = "SW-104"


class InvalidBackup(ValidationFailed):
    """Files that are no backup, or none that can be read here; nothing was written."""

    code = "SW-107"


class InvalidDefinition(ValidationFailed):
    """The workflow definition has faults; nothing was registered."""

    code = "SW-105"


class NotFound(StepwellError):
    """The store has no such execution, item, definition or other record."""

    code = "SW-200"


class ValueErased(NotFound):
    """The value was erased: the key of the person that it was about was destroyed, so that it cannot be read again."""

    code = "SW-208"

    def __init__(self, message: str | None = None, *, execution_id: str = "", key: str = "") -> None:
        super().__init__(message)
        self.execution_id, self.key = execution_id, key


class ExecutionRemoved(NotFound):
    """Retention removed the execution, or the values in it."""

    code = "SW-209"

    def __init__(
        self,
        message: str | None = None,
        *,
        execution_id: str = "",
        workspace_id: str = "",
        removed_ms: int = 0,
        policy: str = "",
        archive: str | None = None,
        has_record: bool = False,
    ) -> None:
        super().__init__(message)
        self.execution_id, self.workspace_id = execution_id, workspace_id
        self.removed_ms, self.policy = removed_ms, policy
        self.archive = archive
        """The archive file with its receipts, if the policy keeps any."""
        self.has_record = has_record
        """Whether the execution is still listed with its status, and only its payloads were removed."""


class Conflict(StepwellError):
    """Another writer was first; load the newer state and decide again."""

    code = "SW-201"

    def __init__(self, message: str | None = None, *, expected: int | None = None, actual: int | None = None) -> None:
        super().__init__(message)
        self.expected, self.actual = expected, actual


class AlreadyExists(Conflict):
    """The id is taken, and ids are never used twice; choose another one."""

    code = "SW-202"


class ExecutionEnded(Conflict):
    """The execution has ended and accepts no messages."""

    code = "SW-205"


class NotActive(Conflict):
    """The workflow is a draft or paused and cannot be started; activate it first."""

    code = "SW-206"


class ReceiptArchived(StepwellError):
    """The receipt was moved into an archive, so this store cannot show it; look in the proof files. Nothing was written again."""

    code = "SW-207"

    def __init__(self, message: str | None = None, *, commit_id: str = "", execution_id: str = "") -> None:
        super().__init__(message)
        self.commit_id, self.execution_id = commit_id, execution_id


class LeaseLost(StepwellError):
    """The lease expired or another holder took it; nothing was written."""

    code = "SW-203"

    def __init__(self, message: str | None = None, *, fence: int | None = None) -> None:
        super().__init__(message)
        self.fence = fence


class LockHeld(StepwellError):
    """Another holder has the lock; try again later, or wait with a timeout."""

    code = "SW-204"

    def __init__(self, message: str | None = None, *, until_ms: int | None = None) -> None:
        super().__init__(message)
        self.until_ms = until_ms


class StoreUnavailable(StepwellError):
    """The store cannot serve requests now; nothing was written."""

    code = "SW-300"


class StoreFull(StoreUnavailable):
    """No space is left for the write; free some space and call again. Nothing was written."""

    code = "SW-301"


class StoreForeign(StoreUnavailable):
    """The file or database is not a Stepwell store, or was made by an unreleased version; point the URL at another one."""

    code = "SW-302"


class StoreNewer(StoreUnavailable):
    """The store was written by a newer Stepwell; upgrade this process. Nothing was written."""

    code = "SW-303"


class StoreUnsafe(StoreUnavailable):
    """The version of the storage engine is known to lose data; upgrade it."""

    code = "SW-304"


class EncryptionKeyMissing(StoreUnavailable):
    """The values of this store are encrypted, and their key is not among those that were given; nothing was written."""

    code = "SW-306"

    def __init__(self, message: str | None = None, *, key_id: str = "") -> None:
        super().__init__(message)
        self.key_id = key_id
        """The id of the key that is missing."""


class Corrupted(StoreUnavailable):
    """Stored bytes do not match their digests; the execution is quarantined and others are not affected."""

    code = "SW-305"

    def __init__(self, message: str | None = None, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        """The key, if the value is scoped state."""


class CommitUnknown(StepwellError):
    """The reply to a commit was lost, so it may or may not have landed; look its id up before you retry."""

    code = "SW-310"

    def __init__(self, message: str | None = None, *, commit_id: str = "", execution_id: str = "") -> None:
        super().__init__(message)
        self.commit_id, self.execution_id = commit_id, execution_id


class EngineUnavailable(StepwellError):
    """The engine that is to run executions cannot be reached or used; items wait until it can."""

    code = "SW-320"


class StepFailed(StepwellError):
    """A step failed and is not retried."""

    code = "SW-402"

    def __init__(
        self,
        step: str = "",
        kind: str = "",
        message: str = "",
        key: str = "",
        error_class: str = "",
        *,
        is_retryable: bool | None = None,
    ) -> None:
        super().__init__(f"step {step!r} failed: {kind}: {message}" if step else None)
        self.step, self.kind, self.key, self.error_class, self.is_retryable = step, kind, key, error_class, is_retryable


class ProcessDied(StepwellError):
    """The process of a step died: it crashed, was killed, or ran out of memory."""

    code = "SW-403"


class NoScriptEngine(StepwellError):
    """No engine for this language of scripts is installed in this process."""

    code = "SW-406"


class ScriptFailed(StepwellError):
    """A script raised an error, or is not written correctly; nothing that it wrote was stored."""

    code = "SW-409"


class RequestFailed(StepwellError):
    """A server answered an HTTP request with a status that was not expected."""

    code = "SW-407"

    def __init__(self, message: str | None = None, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AddressRefused(StepwellError):
    """The address of an HTTP request is private, local or reserved; the request was not sent."""

    code = "SW-408"


class GovernanceViolated(StepwellError):
    """The step was not run: a budget of its execution is used up, or its kind of effect is not allowed."""

    code = "SW-404"

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class StateNewer(StepwellError):
    """The stored value was written by newer code than this; update this process. Nothing was written."""

    code = "SW-410"

    def __init__(self, message: str | None = None, *, stored: int | None = None, known: int | None = None) -> None:
        super().__init__(message)
        self.stored, self.known = stored, known
        """The version of the value, and the one that this process uses."""


class MigrationFailed(StepwellError):
    """A state migration raised an error, is not pure, or is missing; the stored value stays as it was."""

    code = "SW-411"


class ExecutionFailed(StepwellError):
    """The execution ended as FAILED."""

    code = "SW-400"

    def __init__(self, message: str | None = None, *, key: str = "", child_id: str | None = None) -> None:
        super().__init__(message)
        self.key, self.child_id = key, child_id


class ExecutionTimedOut(StepwellError):
    """The execution exceeded its timeout; its code gets this error at its wait or next call."""

    code = "SW-405"


class ExecutionCancelled(StepwellError):
    """The execution was cancelled."""

    code = "SW-401"
