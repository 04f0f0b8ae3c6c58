"""Definitions stored with all their versions, and for each name whether it may be started.

A stored body never changes: the same version with another body is refused. A small row for each name has the status of each version
and may change. Both are scoped state, so every store has them, and every worker can run what any process has stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import AlreadyExists, Conflict, InvalidDefinition, InvalidInput, NotActive, NotFound
from stepwell.flow.declared import DeclaredWorkflow
from stepwell.flow.definition.checker import checked
from stepwell.flow.definition.document import parse
from stepwell.flow.definition.document_writer import decode_definition, encode_definition
from stepwell.flow.definition.node import Definition, DefinitionStatus
from stepwell.flow.function import Workflow, registered, registered_names, registered_workflow
from stepwell.flow.json_schema import schema_faults
from stepwell.kernel.plan import Plan
from stepwell.model.commit import StateBatch
from stepwell.model.ids import check_key
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import ABSENT, Put, StoredEntry
from stepwell.model.value import canonical
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.pipeline.paged_reads import all_entries

__all__ = [
    "DefinitionOperations",
    "DefinitionSummary",
]

_SCOPE = internal_path("definition", DEFAULT_WORKSPACE)
_NAME, _BODY = "name/", "body/"
_MOST_TRIES = 10

Startable = Workflow[..., Any] | Definition | str
"""A workflow function, a definition, or the name of either."""


class DefinitionSummary(PlainRecord, frozen=True):
    """A stored workflow in a list."""

    name: str
    version: int
    """The newest."""
    status: DefinitionStatus
    """Of the newest version."""
    versions: tuple[int, ...]


class _Names(msgspec.Struct):
    """The row of one workflow name."""

    statuses: dict[str, DefinitionStatus]
    is_paused: bool = False

    def newest(self) -> int:
        return max(int(version) for version in self.statuses)

    def status(self, version: int) -> DefinitionStatus:
        return DefinitionStatus.PAUSED if self.is_paused else self.statuses[str(version)]


_read_names = msgspec.json.Decoder(_Names).decode


class DefinitionOperations:
    """Operations on stored definitions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, int], DeclaredWorkflow] = {}
        self._plans: dict[tuple[str, int], Plan] = {}

    def put(self, given: Definition | str | Path) -> Operation[Definition]:
        """Store a definition, given as such, as text, or as the path of a file. Storing it again changes nothing."""
        definition = _definition_of(given)
        _check(definition)
        for _ in range(_MOST_TRIES):
            try:
                yield from self._put(definition)
                return definition
            except AlreadyExists:
                raise
            except Conflict:
                continue  # another process stored another version at the same moment
        raise Conflict(f"workflow {definition.name!r} is being stored by many at once; try again")

    def _put(self, definition: Definition) -> Operation[None]:
        name, body = _NAME + definition.name, _body_key(definition.name, definition.version)
        found = yield from read(lambda: self._store.entries(_SCOPE, (name, body)))
        data = _body(definition)
        if body in found:
            if found[body].data != data:
                raise AlreadyExists(
                    f"workflow {definition.name!r} version {definition.version} is stored with another body; give it a new version"
                )
            return
        names = _Names({}) if name not in found else _read_names(_data(found[name]))
        names.statuses[str(definition.version)] = definition.status
        revision = found[name].revision if name in found else ABSENT
        ops = (Put(_SCOPE, body, msgspec.Raw(data), expected=ABSENT), _row(definition.name, names, revision))
        yield from write_or_raise(StateBatch(ops))

    def get(self, name: str, version: int | None = None) -> Operation[Definition]:
        """Return a stored definition: this version, or the newest."""
        names = yield from self._names(name)
        version = names.newest() if version is None else version
        if str(version) not in names.statuses:
            raise NotFound(f"workflow {name!r} has no version {version}; it has {', '.join(sorted(names.statuses))}")
        found = yield from self.load(name, version)
        return msgspec.structs.replace(found.definition, status=names.status(version))

    def list(self) -> Operation[list[DefinitionSummary]]:
        """Return a summary of each stored workflow, by name."""
        rows = yield from self._rows()
        return [
            DefinitionSummary(name, row.newest(), row.status(row.newest()), tuple(sorted(int(each) for each in row.statuses)))
            for name, row in sorted(rows.items())
        ]

    def names(self) -> Operation[tuple[str, ...]]:
        """Return the names of all stored workflows."""
        return tuple((yield from self._rows()))

    def known_names(self) -> set[str]:
        """Return the names of the stored workflows that this process has stored or run."""
        return {name for name, _ in self._known}

    def _rows(self) -> Operation[dict[str, _Names]]:
        rows = yield from read(lambda: list(all_entries(self._store, _SCOPE, prefix=_NAME)))
        return {key.removeprefix(_NAME): _read_names(_data(row)) for key, row in rows}

    def pause(self, name: str) -> Operation[None]:
        """Let no version of a workflow be started. Its executions continue."""
        yield from self._change(name, is_paused=True)

    def activate(self, name: str) -> Operation[None]:
        """Let a workflow be started. A newest version that is a draft becomes active."""
        yield from self._change(name, is_paused=False)

    def _change(self, name: str, *, is_paused: bool) -> Operation[None]:
        for _ in range(_MOST_TRIES):
            row = yield from self._row_of(name)
            names = _read_names(_data(row))
            names.is_paused = is_paused
            if not is_paused:
                names.statuses[str(names.newest())] = DefinitionStatus.ACTIVE
            try:
                yield from write_or_raise(StateBatch((_row(name, names, row.revision),)))
                return
            except Conflict:
                continue

    # For starting and running them.

    def startable(self, given: Startable, version: int | None = None) -> Operation[Workflow[..., Any]]:
        """Return the workflow to start: a function as it is, a definition once it is stored, or what has the name.

        Raise ``NotActive`` for a draft or paused definition, ``NotFound`` for an unknown name, and ``InvalidInput`` for a function
        whose name another function has taken.
        """
        if isinstance(given, Workflow):
            found = registered_workflow(given.name)
            if found is not None and found.function is not given.function:  # a run finds its code by name: it would run the other
                raise InvalidInput(
                    f"another function was registered as workflow {given.name!r} after this one; start that one, or give one of "
                    "them another name with @workflow(name=...)"
                )
            return given
        if isinstance(given, Definition):
            yield from self._ensure(given)
            names = yield from self._names(given.name)
            return self._checked(given.name, given.version, names) or self._keep(given)
        if not isinstance(given, str):
            told = f"{given!r} is no workflow; decorate the function with @workflow, or give a definition or a name"
            raise InvalidInput(told)
        if version is None and given in registered_names():
            return registered(given)
        names = yield from self._names(given)
        chosen = version or max(
            (int(each) for each, status in names.statuses.items() if status is DefinitionStatus.ACTIVE), default=names.newest()
        )
        if str(chosen) not in names.statuses:
            raise NotFound(f"workflow {given!r} has no version {chosen}; it has {', '.join(sorted(names.statuses))}")
        return self._checked(given, chosen, names) or (yield from self.load(given, chosen))

    def is_known(self, definition: Definition) -> bool:
        """Return whether this process knows that a definition is stored."""
        known = self._known.get((definition.name, definition.version))
        return known is not None and (known.definition is definition or _body(known.definition) == _body(definition))

    def _ensure(self, definition: Definition) -> Operation[None]:
        if not self.is_known(definition):
            yield from self.put(definition)

    def _checked(self, name: str, version: int, names: _Names) -> Workflow[..., Any] | None:
        status = names.status(version)
        if status is not DefinitionStatus.ACTIVE:
            raise NotActive(f"workflow {name!r} version {version} is {status}; activate it first")
        return self._known.get((name, version))

    def load(self, name: str, version: int) -> Operation[DeclaredWorkflow]:
        """Return a stored version, whatever its status: an execution keeps the version that it began with."""
        known = self._known.get((name, version))
        if known is not None:
            return known
        key = _body_key(name, version)
        found = yield from read(lambda: self._store.entries(_SCOPE, (key,)))
        if key not in found:
            raise NotFound(f"there is no stored workflow {name!r} version {version}, and no function of that name in this process")
        return self._keep(decode_definition(_data(found[key])))

    def plan(self, workflow: DeclaredWorkflow) -> Plan:
        """Return the plan of a definition, made once for all its executions."""
        key = (workflow.name, workflow.version)
        if key not in self._plans:
            self._plans[key] = Plan(workflow.definition)
        return self._plans[key]

    def _keep(self, definition: Definition) -> DeclaredWorkflow:
        return self._known.setdefault((definition.name, definition.version), DeclaredWorkflow(definition))

    def _names(self, name: str) -> Operation[_Names]:
        return _read_names(_data((yield from self._row_of(name))))

    def _row_of(self, name: str) -> Operation[StoredEntry]:
        key = _NAME + check_key(name, "a workflow's name")
        found = yield from read(lambda: self._store.entries(_SCOPE, (key,)))
        if key not in found:
            raise NotFound(f"there is no workflow {name!r}: no function of this process, and no stored definition")
        return found[key]


def _definition_of(given: Definition | str | Path) -> Definition:
    if isinstance(given, Definition):
        return checked(given)
    if isinstance(given, Path) or ("\n" not in given and given.endswith((".yaml", ".yml", ".json"))):
        path = Path(given)
        try:
            return parse(path.read_bytes(), source=str(given))
        except OSError as error:
            raise NotFound(f"the file {str(given)!r} cannot be read: {error.strerror}") from None
    return parse(given)


def _check(definition: Definition) -> None:
    if definition.name in registered_names():
        raise InvalidDefinition(f"workflow {definition.name!r} is a function in this process; give the definition another name")
    if definition.input_schema is not None:
        faults = schema_faults(definition.input_schema)
        if faults:
            raise InvalidDefinition("; ".join(faults))


def _body_key(name: str, version: int) -> str:
    return f"{_BODY}{version:010d}/{name}"


def _body(definition: Definition) -> bytes:
    """Return the part of a definition that is compared and kept: all but the status, which may change."""
    return encode_definition(msgspec.structs.replace(definition, status=DefinitionStatus.ACTIVE))


def _row(name: str, names: _Names, revision: int) -> Put:
    return Put(_SCOPE, _NAME + name, msgspec.Raw(canonical(msgspec.to_builtins(names))), expected=revision)


def _data(row: StoredEntry) -> bytes:
    return row.data or b"null"
