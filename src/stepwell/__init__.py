"""Stepwell: durable workflows and their state."""

from stepwell.app import AsyncStepwell, ExecutionSummary, Health, Stepwell
from stepwell.clock import FakeClock, SystemClock
from stepwell.errors import (
    AlreadyExists,
    AlreadyRecorded,
    CommitUnknown,
    Conflict,
    Corrupted,
    ExecutionCancelled,
    ExecutionFailed,
    InvalidDefinition,
    InvalidInput,
    InvalidSnapshot,
    LeaseLost,
    LimitExceeded,
    LockHeld,
    NotFound,
    Problem,
    StepFailed,
    StepwellError,
    StoreForeign,
    StoreFull,
    StoreNewer,
    StoreUnavailable,
    StoreUnsafe,
    ValidationFailed,
)
from stepwell.flow.program import step, workflow
from stepwell.flow.retry import Retry
from stepwell.model.entry import Entry, StateChange
from stepwell.model.ledger import Verification
from stepwell.model.limits import Limits
from stepwell.model.proof import verify_proof
from stepwell.model.receipt import Receipt
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
from stepwell.model.scope import Scope
from stepwell.model.state import Change, ExecutionState
from stepwell.model.status import Status, StepStatus
from stepwell.runtime.context import current
from stepwell.runtime.durable import map, patched, sleep, wait_signal
from stepwell.runtime.handle import AsyncRun, Run
from stepwell.state.conversation import Answer, ConversationSummary, Turn, TurnResult
from stepwell.state.datastore import DataStore
from stepwell.state.locks import HeldLock

__all__ = [
    "AlreadyExists",
    "AlreadyRecorded",
    "Answer",
    "AsyncRun",
    "AsyncStepwell",
    "CancelScope",
    "Change",
    "CommitUnknown",
    "Conflict",
    "ConversationSummary",
    "Corrupted",
    "DataStore",
    "Entry",
    "EventTrigger",
    "ExecutionCancelled",
    "ExecutionFailed",
    "ExecutionState",
    "ExecutionSummary",
    "FakeClock",
    "FunctionTrigger",
    "Health",
    "HeldLock",
    "InvalidDefinition",
    "InvalidInput",
    "InvalidSnapshot",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "LockHeld",
    "LoopContext",
    "ManualTrigger",
    "Metadata",
    "NotFound",
    "Problem",
    "Receipt",
    "Retry",
    "Run",
    "ScheduleTrigger",
    "Scope",
    "StateChange",
    "Status",
    "StepFailed",
    "StepOutput",
    "StepStatus",
    "Stepwell",
    "StepwellError",
    "StoreForeign",
    "StoreFull",
    "StoreNewer",
    "StoreUnavailable",
    "StoreUnsafe",
    "SystemClock",
    "Token",
    "Turn",
    "TurnResult",
    "ValidationFailed",
    "Verification",
    "WebhookTrigger",
    "current",
    "map",
    "patched",
    "sleep",
    "step",
    "verify_proof",
    "wait_signal",
    "workflow",
]
__version__ = "0.1.0"
