"""Stepwell: durable workflows and their state.

Names are fetched from their modules when they are first used, so that ``import stepwell`` costs next to nothing.
"""

from typing import TYPE_CHECKING

from stepwell.lazy_import import fetching

if TYPE_CHECKING:
    from stepwell.app.awaited import AsyncQueueItem, AsyncRun, AsyncStepwell
    from stepwell.app.blocking import QueueItem, Run, Stepwell
    from stepwell.app.health import Health
    from stepwell.app.temporal_worker import TemporalWorker
    from stepwell.clock import FakeClock, SystemClock
    from stepwell.errors import (
        AddressRefused,
        AlreadyExists,
        AlreadyRecorded,
        ChangeCancelled,
        CommitUnknown,
        Conflict,
        Corrupted,
        EncryptionKeyMissing,
        EngineUnavailable,
        ExecutionCancelled,
        ExecutionEnded,
        ExecutionFailed,
        ExecutionRemoved,
        ExecutionTimedOut,
        GovernanceViolated,
        InvalidBackup,
        InvalidDefinition,
        InvalidInput,
        InvalidSnapshot,
        LeaseLost,
        LimitExceeded,
        LockHeld,
        MigrationFailed,
        NoScriptEngine,
        NotActive,
        NotFound,
        Problem,
        ProcessDied,
        ReceiptArchived,
        RequestFailed,
        ScriptFailed,
        StateNewer,
        StepFailed,
        StepwellError,
        StoreForeign,
        StoreFull,
        StoreNewer,
        StoreUnavailable,
        StoreUnsafe,
        ValidationFailed,
        ValueErased,
    )
    from stepwell.flow.function import step, workflow
    from stepwell.flow.governance import Governance
    from stepwell.flow.retry import Retry, RetryAfter
    from stepwell.kernel.soundness.explorer import Exploration, Fault, check, explore
    from stepwell.maintenance.archive_files import ArchiveVerification, read_archive, verify_archive
    from stepwell.maintenance.backup import BackupReport, BackupSummary, BackupVerification, list_backups, verify_backup
    from stepwell.maintenance.erasure import ErasureReceipt, RotationReport, SubjectData
    from stepwell.maintenance.restore import RestoreReport
    from stepwell.maintenance.retention import PlannedRemoval, RetentionPlan, RetentionReport
    from stepwell.maintenance.run_upgrade import RefusedUpgrade, UpgradeReport
    from stepwell.maintenance.state_migration import MigrationProblem, MigrationReport
    from stepwell.maintenance.usage import Amount, Usage
    from stepwell.model.access import AccessToken, Identity, IssuedToken, Role, SignalLink
    from stepwell.model.cipher import KeyRing
    from stepwell.model.execution_state import Change, ExecutionState
    from stepwell.model.limits import Limits
    from stepwell.model.queue_item import ItemStatus, Override, QueueSettings, Tier, Workspace
    from stepwell.model.receipt import Receipt
    from stepwell.model.receipt_chain import Verification, verify_proof
    from stepwell.model.record import (
        CancelScope,
        EventTrigger,
        FunctionTrigger,
        LoopContext,
        ManualTrigger,
        Metadata,
        ScheduleTrigger,
        StepOutput,
        Token,
        WebhookTrigger,
    )
    from stepwell.model.retention import RetentionPolicy, Tombstone
    from stepwell.model.scope import Scope
    from stepwell.model.scoped_operations import Entry, StateChange
    from stepwell.model.state_versions import migration
    from stepwell.model.status import Status, StepStatus
    from stepwell.model.webhook import WebhookDelivery, WebhookEndpoint, WebhookReceiver
    from stepwell.queue.diagnosis import WaitingReason
    from stepwell.queue.engine_choices import EngineChoice
    from stepwell.queue.item import ItemSummary
    from stepwell.queue.requests import QueueRequest, enqueue, workspace_queue
    from stepwell.queue.schedule import ScheduleSummary
    from stepwell.queue.statistics import Demand, LaneStats
    from stepwell.queue.worker_presence import WorkerPresence
    from stepwell.runtime.definitions import DefinitionSummary
    from stepwell.runtime.progress import Offer, Progress, Waiting, WaitingOn
    from stepwell.runtime.sessions.approval import ApprovalResult
    from stepwell.runtime.sessions.workflow_api import (
        compensate,
        map,
        now,
        patched,
        random,
        sleep,
        uuid,
        wait_approval,
        wait_signal,
    )
    from stepwell.runtime.step_history import AttemptRecord, ErrorRecord, StepRecord
    from stepwell.runtime.steps.context import current
    from stepwell.runtime.steps.late_results import LateResult
    from stepwell.runtime.steps.run_logging import RunLogFilter
    from stepwell.state.conversations import Answer, ConversationSummary, Turn, TurnResult
    from stepwell.state.data_store import DataStore
    from stepwell.state.history import ExecutionSummary
    from stepwell.state.hooks import Cancel, ExecutionEvent, Hook, Modify, ProposedChange, StepEvent
    from stepwell.state.locks import HeldLock
    from stepwell.web.app import stepwell_app
    from stepwell.web.client import Client, ClientRun

__all__ = [
    "AccessToken",
    "AddressRefused",
    "AlreadyExists",
    "AlreadyRecorded",
    "Amount",
    "Answer",
    "ApprovalResult",
    "ArchiveVerification",
    "AsyncQueueItem",
    "AsyncRun",
    "AsyncStepwell",
    "AttemptRecord",
    "BackupReport",
    "BackupSummary",
    "BackupVerification",
    "Cancel",
    "CancelScope",
    "Change",
    "ChangeCancelled",
    "Client",
    "ClientRun",
    "CommitUnknown",
    "Conflict",
    "ConversationSummary",
    "Corrupted",
    "DataStore",
    "DefinitionSummary",
    "Demand",
    "EncryptionKeyMissing",
    "EngineChoice",
    "EngineUnavailable",
    "Entry",
    "ErasureReceipt",
    "ErrorRecord",
    "EventTrigger",
    "ExecutionCancelled",
    "ExecutionEnded",
    "ExecutionEvent",
    "ExecutionFailed",
    "ExecutionRemoved",
    "ExecutionState",
    "ExecutionSummary",
    "ExecutionTimedOut",
    "Exploration",
    "FakeClock",
    "Fault",
    "FunctionTrigger",
    "Governance",
    "GovernanceViolated",
    "Health",
    "HeldLock",
    "Hook",
    "Identity",
    "InvalidBackup",
    "InvalidDefinition",
    "InvalidInput",
    "InvalidSnapshot",
    "IssuedToken",
    "ItemStatus",
    "ItemSummary",
    "KeyRing",
    "LaneStats",
    "LateResult",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "LockHeld",
    "LoopContext",
    "ManualTrigger",
    "Metadata",
    "MigrationFailed",
    "MigrationProblem",
    "MigrationReport",
    "Modify",
    "NoScriptEngine",
    "NotActive",
    "NotFound",
    "Offer",
    "Override",
    "PlannedRemoval",
    "Problem",
    "ProcessDied",
    "Progress",
    "ProposedChange",
    "QueueItem",
    "QueueRequest",
    "QueueSettings",
    "Receipt",
    "ReceiptArchived",
    "RefusedUpgrade",
    "RequestFailed",
    "RestoreReport",
    "RetentionPlan",
    "RetentionPolicy",
    "RetentionReport",
    "Retry",
    "RetryAfter",
    "Role",
    "RotationReport",
    "Run",
    "RunLogFilter",
    "ScheduleSummary",
    "ScheduleTrigger",
    "Scope",
    "ScriptFailed",
    "SignalLink",
    "StateChange",
    "StateNewer",
    "Status",
    "StepEvent",
    "StepFailed",
    "StepOutput",
    "StepRecord",
    "StepStatus",
    "Stepwell",
    "StepwellError",
    "StoreForeign",
    "StoreFull",
    "StoreNewer",
    "StoreUnavailable",
    "StoreUnsafe",
    "SubjectData",
    "SystemClock",
    "TemporalWorker",
    "Tier",
    "Token",
    "Tombstone",
    "Turn",
    "TurnResult",
    "UpgradeReport",
    "Usage",
    "ValidationFailed",
    "ValueErased",
    "Verification",
    "Waiting",
    "WaitingOn",
    "WaitingReason",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookReceiver",
    "WebhookTrigger",
    "WorkerPresence",
    "Workspace",
    "check",
    "compensate",
    "current",
    "enqueue",
    "explore",
    "list_backups",
    "map",
    "migration",
    "now",
    "patched",
    "random",
    "read_archive",
    "sleep",
    "step",
    "stepwell_app",
    "uuid",
    "verify_archive",
    "verify_backup",
    "verify_proof",
    "wait_approval",
    "wait_signal",
    "workflow",
    "workspace_queue",
]
__version__ = "0.1.0"

_HOMES = {
    "app.awaited": ("AsyncQueueItem", "AsyncRun", "AsyncStepwell"),
    "app.blocking": ("QueueItem", "Run", "Stepwell"),
    "app.health": ("Health",),
    "app.temporal_worker": ("TemporalWorker",),
    "state.history": ("ExecutionSummary",),
    "clock": ("FakeClock", "SystemClock"),
    "errors": (
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
    ),
    "flow.governance": ("Governance",),
    "flow.function": ("step", "workflow"),
    "flow.retry": ("Retry", "RetryAfter"),
    "kernel.soundness.explorer": ("Exploration", "Fault", "check", "explore"),
    "model.scoped_operations": ("Entry", "StateChange"),
    "model.cipher": ("KeyRing",),
    "model.limits": ("Limits",),
    "maintenance.backup": ("BackupReport", "BackupSummary", "BackupVerification", "list_backups", "verify_backup"),
    "maintenance.erasure": ("ErasureReceipt", "RotationReport", "SubjectData"),
    "maintenance.restore": ("RestoreReport",),
    "maintenance.archive_files": ("ArchiveVerification", "read_archive", "verify_archive"),
    "maintenance.retention": ("PlannedRemoval", "RetentionPlan", "RetentionReport"),
    "model.retention": ("RetentionPolicy", "Tombstone"),
    "maintenance.usage": ("Amount", "Usage"),
    "maintenance.run_upgrade": ("RefusedUpgrade", "UpgradeReport"),
    "maintenance.state_migration": ("MigrationProblem", "MigrationReport"),
    "model.state_versions": ("migration",),
    "model.receipt_chain": ("Verification", "verify_proof"),
    "model.receipt": ("Receipt",),
    "model.record": (
        "CancelScope",
        "EventTrigger",
        "FunctionTrigger",
        "LoopContext",
        "ManualTrigger",
        "Metadata",
        "ScheduleTrigger",
        "StepOutput",
        "Token",
        "WebhookTrigger",
    ),
    "model.scope": ("Scope",),
    "model.execution_state": ("Change", "ExecutionState"),
    "model.status": ("Status", "StepStatus"),
    "model.queue_item": ("ItemStatus", "Override", "QueueSettings", "Tier", "Workspace"),
    "queue.statistics": ("Demand", "LaneStats"),
    "queue.engine_choices": ("EngineChoice",),
    "queue.item": ("ItemSummary",),
    "queue.worker_presence": ("WorkerPresence",),
    "model.webhook": ("WebhookDelivery", "WebhookEndpoint", "WebhookReceiver"),
    "queue.diagnosis": ("WaitingReason",),
    "queue.requests": ("QueueRequest", "enqueue", "workspace_queue"),
    "queue.schedule": ("ScheduleSummary",),
    "runtime.steps.context": ("current",),
    "runtime.sessions.workflow_api": (
        "compensate",
        "map",
        "now",
        "patched",
        "random",
        "sleep",
        "uuid",
        "wait_approval",
        "wait_signal",
    ),
    "runtime.sessions.approval": ("ApprovalResult",),
    "runtime.steps.run_logging": ("RunLogFilter",),
    "runtime.definitions": ("DefinitionSummary",),
    "runtime.progress": ("Offer", "Progress", "Waiting", "WaitingOn"),
    "runtime.step_history": ("AttemptRecord", "ErrorRecord", "StepRecord"),
    "runtime.steps.late_results": ("LateResult",),
    "model.access": ("AccessToken", "Identity", "IssuedToken", "Role", "SignalLink"),
    "state.conversations": ("Answer", "ConversationSummary", "Turn", "TurnResult"),
    "state.data_store": ("DataStore",),
    "state.hooks": ("Cancel", "ExecutionEvent", "Hook", "Modify", "ProposedChange", "StepEvent"),
    "state.locks": ("HeldLock",),
    "web.app": ("stepwell_app",),
    "web.client": ("Client", "ClientRun"),
}
_MODULES = ("clock", "errors", "flow", "testing")

__getattr__ = fetching(__name__, _HOMES, _MODULES)


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]
