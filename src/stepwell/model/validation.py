"""Validation: check a whole batch of mutations, each on the state that those before it leave, and collect all faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stepwell.errors import (
    AlreadyRecorded,
    InvalidInput,
    LimitExceeded,
    Problem,
    ValidationFailed,
)
from stepwell.fault_points import fault
from stepwell.model.draft import ROOT_SCOPE, Draft, Opening, Planned, quoted
from stepwell.model.execution_state import ONLY, SECTIONS, State
from stepwell.model.ids import check_key
from stepwell.model.limits import Limits
from stepwell.model.mutation import (
    AddToken,
    CancelScopeMutation,
    ChangeVersion,
    Create,
    EnqueueItem,
    EnterScope,
    ExitScope,
    IncrementStepCount,
    KeepLog,
    MigrateState,
    Mutation,
    PatchContext,
    RecordStep,
    RemovePayloads,
    RemoveToken,
    ReopenStep,
    Restore,
    SetContext,
    SetLoop,
    SetMetadata,
    SetResult,
    SetStatus,
    SetTrigger,
    SetVariable,
    UpdateToken,
    WriteState,
)
from stepwell.model.record import CancelScope, Presence, decode_metadata, decode_scope, decode_step, decode_token, encode_record
from stepwell.model.status import FINAL, Status, StepStatus, may_follow

__all__ = ["plan", "refusal"]

_split_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def plan(
    base: State,
    batch: Sequence[Planned],
    limits: Limits,
    opening: Opening | None = None,
    *,
    is_counted: bool = False,
    migrating: MigrateState | None = None,
) -> Draft:
    """Validate a whole batch, and return its draft. Raise ``ValidationFailed`` with every fault found.

    A function in the batch is called with the draft so far and returns the mutation, so that only pure data is stored. An opening
    comes before the batch, and needs no validation on a state without entries. If a user wrote the whole batch, it
    ``is_counted``: the message of a fault has its number. A state migration, if one is due, comes before the batch.
    """
    if opening is not None and base.revision >= 0:
        batch, opening = [*opening.mutations, *batch], None
    if len(batch) > limits.commit_mutations:
        raise LimitExceeded.of("commit_mutations", limits.commit_mutations, len(batch), "the number of changes in one commit")
    draft = Draft.on(base)
    problems: list[Problem] = []
    if opening is not None:
        draft.open(opening)
    if migrating is not None:
        _migrate_state(draft, migrating)
        draft.mutations.append(migrating)
    for number, item in enumerate(batch, 1):
        mutation = None
        try:
            mutation = item(draft) if callable(item) else item
            if draft.is_over:
                _check_open(draft, mutation)
            _RULES[type(mutation)](draft, mutation)
            draft.mutations.append(mutation)
        except ValidationFailed as error:
            call = _call_of(mutation) or getattr(item, "__name__", "a change")
            where = f"change {number} ({call})" if is_counted else call
            problems += [Problem(problem.code, problem.message, where) for problem in error.errors]
        fault("commit.mutation_checked")
    if problems:
        raise refusal(problems)
    draft.close()
    _check_size(draft, limits)
    return draft


def _check_size(draft: Draft, limits: Limits) -> None:
    has_failed = draft.is_over and draft.current_status() in _FAILURES
    room = limits.execution_bytes + (_END_BYTES if has_failed else 0)
    if draft.size > room and draft.size > draft.base.size:
        raise LimitExceeded.of("execution_bytes", limits.execution_bytes, draft.size, "the execution's state, in bytes,")
    # An entry has a byte or more, so that most states need no count.
    if draft.size > limits.execution_keys and not has_failed:
        keys = draft.count_keys()
        if keys > max(limits.execution_keys, draft.base.keys):
            raise LimitExceeded.of("execution_keys", limits.execution_keys, keys, "the number of entries of the execution's state")


_END_BYTES = 64 * 1024
"""How much a state may be over its limit when the execution fails or is cancelled: its error and traceback have at most 50 KB. An
execution whose state is full could not end otherwise, and would be run again at every lease."""
_FAILURES = (Status.FAILED, Status.CANCELLED)


def refusal(problems: Sequence[Problem]) -> ValidationFailed:
    """Return the error for a list of problems: the special class if all are of one kind, else the general one."""
    codes = {problem.code for problem in problems}
    for special in (AlreadyRecorded, LimitExceeded, InvalidInput):
        if codes == {special.code}:
            return special(problems)
    return ValidationFailed(problems)


_CALLS: dict[type, str] = {SetLoop: "set_loop_context", PatchContext: "update_context", WriteState: "state", EnqueueItem: "enqueue"}


def _call_of(mutation: Mutation | None) -> str:
    """Return the call of a user that makes a mutation: the mutation's own name, or another."""
    return "" if mutation is None else _CALLS.get(type(mutation)) or str(type(mutation).__struct_config__.tag)


def _check_open(draft: Draft, mutation: Mutation) -> None:
    """Raise for a mutation of a finished execution, which only a retry may change; not even scoped state is written with it."""
    if type(mutation) not in _REOPENING:
        raise ValidationFailed(f"the execution is {draft.current_status()} and changes no more; fork it, or retry it first")


def _create(draft: Draft, mutation: Create) -> None:
    draft.put("identity", ONLY, bytes(mutation.metadata))
    draft.put_status(_PENDING)
    draft.put("step_count", ONLY, b"0")
    draft.put("scopes", "root", ROOT_SCOPE)
    for key, raw in _split_object(mutation.context).items():
        draft.put("context", key, bytes(raw))


def _restore(draft: Draft, mutation: Restore) -> None:
    for section in SECTIONS:
        fresh = mutation.entries.get(section, {})
        for key in list(draft.keys(section)):
            if key not in fresh:
                draft.remove(section, key)
        for key, raw in fresh.items():
            draft.put(section, key, bytes(raw))
    draft.status = draft.current_status()
    draft.is_over = draft.status in FINAL
    identity = draft.get("identity", ONLY)
    if draft.base.revision >= 0 and identity is not None:
        draft.version = decode_metadata(identity).version  # an earlier state may be of another version of the workflow


def _remove_payloads(draft: Draft, mutation: RemovePayloads) -> None:
    if not draft.is_over:
        raise ValidationFailed(f"the execution is {draft.current_status()}; only one that has ended loses its payloads")
    for section in _PAYLOADS:
        for key in list(draft.keys(section)):
            if (section, key) != ("scopes", "root"):
                draft.remove(section, key)
    draft.put("result", ONLY, bytes(mutation.removal))


_PAYLOADS = tuple(section for section in SECTIONS if section not in ("identity", "status", "step_count", "result"))


def _set_context(draft: Draft, mutation: SetContext) -> None:
    try:
        fresh = _split_object(mutation.value)
    except msgspec.MsgspecError:
        raise InvalidInput("the context must be a dict with string keys") from None
    for key in list(draft.keys("context")):
        if key not in fresh:
            draft.remove("context", key)
    for key, raw in fresh.items():
        draft.put("context", key, bytes(raw))


def _patch_context(draft: Draft, mutation: PatchContext) -> None:
    for key, raw in mutation.set.items():
        draft.put("context", key, bytes(raw))
    for key in mutation.remove:
        draft.remove("context", key)


def _set_variable(draft: Draft, mutation: SetVariable) -> None:
    draft.put("variables", mutation.name, bytes(mutation.value))


def _set_trigger(draft: Draft, mutation: SetTrigger) -> None:
    if draft.get("trigger", ONLY) is not None:
        raise AlreadyRecorded("the trigger is recorded already and is written once; the first one stays")
    draft.put("trigger", ONLY, bytes(mutation.trigger))


def _record_step(draft: Draft, mutation: RecordStep) -> None:
    if draft.get("steps", mutation.name) is not None:
        raise AlreadyRecorded(f"step {mutation.name!r} has its output already and is written once; the first one stays")
    draft.put("steps", mutation.name, bytes(mutation.step))


def _keep_log(draft: Draft, mutation: KeepLog) -> None:
    """Change nothing: the lines are in the receipt."""


def _reopen_step(draft: Draft, mutation: ReopenStep) -> None:
    data = draft.get("steps", mutation.name)
    # A skipped step has done nothing; it may be reached when the failure before it is retried.
    if data is None or decode_step(data).status not in (StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED):
        raise AlreadyRecorded(f"step {mutation.name!r} did not fail, so what is recorded of it stays")
    draft.remove("steps", mutation.name)


def _set_loop(draft: Draft, mutation: SetLoop) -> None:
    draft.put("loops", mutation.loop_id, bytes(mutation.loop))


def _add_token(draft: Draft, mutation: AddToken) -> None:
    if draft.get("tokens", mutation.token_id) is not None:
        raise ValidationFailed(f"token {mutation.token_id!r} exists already; give the new one another id")
    _need_active_scope(draft, decode_token(mutation.token).scope)
    draft.put("tokens", mutation.token_id, bytes(mutation.token))


def _remove_token(draft: Draft, mutation: RemoveToken) -> None:
    _need_token(draft, mutation.token_id)
    draft.remove("tokens", mutation.token_id)


def _update_token(draft: Draft, mutation: UpdateToken) -> None:
    before = decode_token(_need_token(draft, mutation.token_id))
    if before.status is Presence.CANCELLED:
        raise ValidationFailed(f"token {mutation.token_id!r} was cancelled; its late result is not taken")
    after = decode_token(mutation.token)
    if after.token_id != mutation.token_id:
        raise InvalidInput(f"token {mutation.token_id!r} cannot become {after.token_id!r}; add a new token instead")
    _need_active_scope(draft, after.scope)
    draft.put("tokens", mutation.token_id, bytes(mutation.token))


def _enter_scope(draft: Draft, mutation: EnterScope) -> None:
    check_key(mutation.scope_id, "scope_id")
    if draft.get("scopes", mutation.scope_id) is not None:
        raise ValidationFailed(f"scope {mutation.scope_id!r} is entered already; give the new one another id")
    _need_active_scope(draft, mutation.parent)
    draft.put("scopes", mutation.scope_id, encode_record(CancelScope(mutation.scope_id, mutation.parent)))


def _exit_scope(draft: Draft, mutation: ExitScope) -> None:
    if mutation.scope_id == "root":
        raise ValidationFailed("scope 'root' is the execution itself; end it with set_status")
    _need_scope(draft, mutation.scope_id)
    occupants = [f"{section[:-1]} {key!r}" for section, key in draft.inside(mutation.scope_id)]
    if occupants:
        raise ValidationFailed(f"scope {mutation.scope_id!r} still holds {', '.join(sorted(occupants)[:5])}; remove them first")
    draft.remove("scopes", mutation.scope_id)


def _cancel_scope(draft: Draft, mutation: CancelScopeMutation) -> None:
    pending = [mutation.scope_id]
    while pending:
        scope_id = pending.pop()
        scope = decode_scope(_need_scope(draft, scope_id))
        draft.put("scopes", scope_id, encode_record(msgspec.structs.replace(scope, status=Presence.CANCELLED)))
        for section, key in list(draft.inside(scope_id)):
            if section == "scopes":
                pending.append(key)
            else:
                token = decode_token(_need_token(draft, key))
                cancelled = token.replace(status=Presence.CANCELLED)
                draft.put("tokens", key, encode_record(cancelled))


def _increment_step_count(draft: Draft, mutation: IncrementStepCount) -> None:
    if mutation.by < 1:
        raise InvalidInput("the step count only grows; increment it by 1 or more")
    draft.put("step_count", ONLY, b"%d" % (int(draft.get("step_count", ONLY) or 0) + mutation.by))


def _set_metadata(draft: Draft, mutation: SetMetadata) -> None:
    if not bytes(mutation.value).startswith(b"{"):
        raise InvalidInput("the metadata must be a dict with string keys")
    draft.put("metadata", ONLY, bytes(mutation.value))


def _set_result(draft: Draft, mutation: SetResult) -> None:
    draft.put("result", ONLY, bytes(mutation.value))


def _set_status(draft: Draft, mutation: SetStatus) -> None:
    before, after = draft.current_status(), _STATUSES.get(mutation.status)
    if after is None:
        raise InvalidInput(f"{mutation.status!r} is no status; use one of {', '.join(Status)}")
    if before is None or not may_follow(before, after):
        raise ValidationFailed(f"an execution that is {before} cannot become {after}")
    draft.status = after
    draft.put_status(_QUOTED[after])
    if before in FINAL and draft.get("result", ONLY) is not None:
        draft.remove("result", ONLY)


def _write_state(draft: Draft, mutation: WriteState) -> None:
    """Add an operation on scoped state to the receipt; the store validates it."""
    draft.write_state(mutation.op)


def _enqueue_item(draft: Draft, mutation: EnqueueItem) -> None:
    """Add a queue item; the store decides whether there is room for it."""
    draft.enqueue(mutation.whole())


def _migrate_state(draft: Draft, mutation: MigrateState) -> None:
    for section, changed, removed in (
        ("context", mutation.context, mutation.without_context),
        ("variables", mutation.variables, mutation.without_variables),
    ):
        for key, raw in changed.items():
            draft.put(section, key, bytes(raw))
        for key in removed:
            draft.remove(section, key)
    identity = decode_metadata(draft.get("identity", ONLY) or b"")
    draft.put("identity", ONLY, encode_record(msgspec.structs.replace(identity, state_version=mutation.version)))


def _change_version(draft: Draft, mutation: ChangeVersion) -> None:
    identity = decode_metadata(draft.get("identity", ONLY) or b"")
    draft.put("identity", ONLY, encode_record(msgspec.structs.replace(identity, version=mutation.version)))
    draft.version = mutation.version


def _need_token(draft: Draft, token_id: str) -> bytes:
    data = draft.get("tokens", token_id)
    if data is None:
        raise ValidationFailed(f"there is no token {token_id!r}; add it first")
    return data


def _need_scope(draft: Draft, scope_id: str) -> bytes:
    data = draft.get("scopes", scope_id)
    if data is None:
        raise ValidationFailed(f"there is no scope {scope_id!r}; enter it first")
    return data


def _need_active_scope(draft: Draft, scope_id: str) -> None:
    if decode_scope(_need_scope(draft, scope_id)).status is Presence.CANCELLED:
        raise ValidationFailed(f"scope {scope_id!r} was cancelled; nothing new can start in it")


_STATUSES: dict[str, Status] = {status.value: status for status in Status}
_QUOTED = {status: quoted(status) for status in Status}
_PENDING = _QUOTED[Status.PENDING]
_REOPENING = frozenset({SetStatus, Restore, MigrateState, RemovePayloads})

_RULES: dict[type, Callable[[Draft, Any], None]] = {
    Create: _create,
    Restore: _restore,
    SetContext: _set_context,
    PatchContext: _patch_context,
    SetVariable: _set_variable,
    SetTrigger: _set_trigger,
    RecordStep: _record_step,
    KeepLog: _keep_log,
    RemovePayloads: _remove_payloads,
    ReopenStep: _reopen_step,
    SetLoop: _set_loop,
    AddToken: _add_token,
    RemoveToken: _remove_token,
    UpdateToken: _update_token,
    EnterScope: _enter_scope,
    ExitScope: _exit_scope,
    CancelScopeMutation: _cancel_scope,
    IncrementStepCount: _increment_step_count,
    SetMetadata: _set_metadata,
    SetResult: _set_result,
    SetStatus: _set_status,
    WriteState: _write_state,
    EnqueueItem: _enqueue_item,
    MigrateState: _migrate_state,
    ChangeVersion: _change_version,
}
