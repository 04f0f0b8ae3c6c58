"""Migrations of an execution's context and variables: what is due, and the state as this process uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from stepwell.errors import MigrationFailed, StateNewer
from stepwell.model.execution_state import ONLY, ExecutionState, State
from stepwell.model.mutation import MigrateState
from stepwell.model.state_versions import FIRST_VERSION, line_of_workflow
from stepwell.model.value import decode, recode

__all__ = ["at_current_version", "due_migration", "migration_to", "state_version"]

Raw = msgspec.Raw
_SECTIONS = ("context", "variables")


def state_version(workflow: str) -> int:
    """Return the version that this process uses for the state of a workflow's executions."""
    line = line_of_workflow(workflow)
    return FIRST_VERSION if line is None else line.current


def due_migration(state: State) -> MigrateState | None:
    """Return the migration that the next commit has to make; None if the state is in the version that this process uses.

    None, too, for an execution of another engine, which has what it has read in a history of its own and goes on from that.

    Raise ``StateNewer`` if newer code has written it, and ``MigrationFailed`` if a migration fails.
    """
    if state.revision < 0:
        return None
    who = state.identity
    line = line_of_workflow(who.workflow_id)
    used = FIRST_VERSION if line is None else line.current
    is_kept = who.engine is not None and who.state_version < used
    return None if who.state_version == used or is_kept else migration_to(state, None)


def migration_to(state: State, version: int | None) -> MigrateState:
    """Return the migration of a state to a version; None: to the one that this process uses."""
    who = state.identity
    line = line_of_workflow(who.workflow_id)
    if line is None:
        raise StateNewer(
            f"the state of execution {who.execution_id!r} of workflow {who.workflow_id!r} is at version {who.state_version}, and "
            "this process has no migration of it: newer code has written it; update this process. Nothing was written",
            stored=who.state_version,
            known=FIRST_VERSION,
        )
    version = line.current if version is None else version
    before = {section: _own(state.sections[section]) for section in _SECTIONS}
    value = b"{%b}" % b",".join(b'"%b":%b' % (section.encode(), _object(before[section])) for section in _SECTIONS)
    after = _split(line.name, line.convert(value, who.execution_id, who.state_version, version))
    changed = {
        section: {key: raw for key, raw in after[section].items() if before[section].get(key) != bytes(raw)}
        for section in _SECTIONS
    }
    removed = {section: sorted(before[section].keys() - after[section].keys()) for section in _SECTIONS}
    return MigrateState(
        version,
        context=changed["context"],
        variables=changed["variables"],
        without_context=removed["context"],
        without_variables=removed["variables"],
    )


def at_current_version(state: State) -> ExecutionState:
    """Return a state as users see it, with its values in the version that this process uses. Nothing is written."""
    if state.identity.state_version == state_version(state.identity.workflow_id):
        return ExecutionState(state)
    migrating = migration_to(state, None)
    entries = state.copy_entries()
    for section, changed, removed in (
        ("context", migrating.context, migrating.without_context),
        ("variables", migrating.variables, migrating.without_variables),
    ):
        entries[section].update({key: bytes(raw) for key, raw in changed.items()})
        for key in removed:
            entries[section].pop(key, None)
    return ExecutionState(state, entries)


def _own(entries: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the entries without those of Stepwell itself."""
    return {key: data for key, data in entries.items() if not key.startswith("$")}


def _object(entries: Mapping[str, bytes]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (recode(key), data) for key, data in entries.items())


def _split(line: str, data: bytes) -> dict[str, dict[str, Raw]]:
    """Return what a migration gave, by section and key."""
    made: Any = decode(data)
    if not isinstance(made, dict) or set(cast("dict[str, Any]", made)) != set(_SECTIONS):
        raise MigrationFailed(f'a migration of {line!r} returns {{"context": ..., "variables": ...}}, and no other keys')
    value = cast("dict[str, Any]", made)
    for section in _SECTIONS:
        if not isinstance(value[section], dict):
            raise MigrationFailed(f"a migration of {line!r} returns a dict as the {section}")
        if any(key == ONLY or key.startswith("$") for key in value[section]):
            raise MigrationFailed(f"a migration of {line!r} gives the {section} a name that is empty or begins with $")
    return {section: {key: Raw(recode(each)) for key, each in value[section].items()} for section in _SECTIONS}
