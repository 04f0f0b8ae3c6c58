"""Migrate all stored values at once: plan, convert, write in batches, and look again until nothing is left.

There is no list of what is done. Each value and each execution says by its version whether it is, so that a migration that was
killed is finished by the same call, and two at once share the work. A value is replaced only if it is still as it was read. The
executions that are migrated here are those that no worker holds, under the fence that they had then. What a worker holds is
migrated by the worker that loads it next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from stepwell.contract.store import ExecutionQuery, Store
from stepwell.errors import InvalidInput, MigrationFailed, StateNewer, StepwellError, ValidationFailed, ValueErased
from stepwell.fault_points import fault
from stepwell.maintenance.backup import create_backup
from stepwell.maintenance.backup_files import MANIFEST
from stepwell.model.commit import Head, StateBatch, Written
from stepwell.model.ids import NewId, check_key
from stepwell.model.mutation import MigrateState
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import Scope, is_internal
from stepwell.model.scoped_operations import Migrate, StoredEntry
from stepwell.model.state_migration import migration_to
from stepwell.model.state_versions import EXECUTION, MigrationLine, line_name, line_of_path, lines
from stepwell.model.status import FINAL
from stepwell.pipeline.operations import Operation, read, read_slowly, write_many
from stepwell.pipeline.paged_reads import all_entries, all_executions
from stepwell.state.executions import CachedExecution, Executions, UnsharedChange
from stepwell.stores.sealed_store import is_erased

__all__ = ["LineReport", "MigrationProblem", "MigrationReport", "MigrationRequest", "Progress", "migrate_state"]

_PAGE = 1_000
_MOST_PASSES = 10
_MOST_PROBLEMS = 1_000
"""How many problems a report has; all are counted."""
_AT_ONCE = 20
"""How many batches are given to group commit together."""

Progress = Callable[[int, int], None]
"""Called with the number of values that were looked at, and of all."""


class MigrationProblem(PlainRecord, frozen=True):
    """A value that was not migrated, and stays as it was."""

    line: str
    """Such as ``custom/prices`` or ``execution/checkout``."""
    scope: str
    """The path of its scope; empty for an execution."""
    key: str
    """The key, or the execution's id."""
    message: str


class LineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for the values of one line."""

    line: str
    version: int
    """The version that they were brought to."""
    versions: dict[int, int]
    """How many values were found at each version, before anything was written."""
    migrated: int = 0
    """How many were migrated; in a dry run, how many would be."""
    failed: int = 0
    held: int = 0
    """How many executions a worker held; the worker that loads them next migrates them."""


class MigrationReport(PlainRecord, frozen=True, kw_only=True):
    """The result of a migration of stored state."""

    lines: tuple[LineReport, ...]
    problems: tuple[MigrationProblem, ...]
    """The values that failed: the first thousand."""
    is_dry_run: bool
    is_verified: bool
    """Whether a last look found nothing to migrate but what failed or is held."""

    @property
    def migrated(self) -> int:
        """The number of values that were migrated."""
        return sum(each.migrated for each in self.lines)

    @property
    def failed(self) -> int:
        """The number of values that failed."""
        return sum(each.failed for each in self.lines)

    @property
    def held(self) -> int:
        """The number of executions that workers held."""
        return sum(each.held for each in self.lines)


class MigrationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The values to migrate, and the options of a migration."""

    scope: str | Scope | None = None
    workflow: str | None = None
    to_version: int | None = None
    workspace: str | None = None
    is_dry_run: bool = False
    batch: int = 500
    stops: bool = False
    """Whether the first value that fails ends it."""
    backup: Path | None = None
    progress: Progress | None = None


class _Stopped(Exception):
    """A value failed, and the caller asked to stop then."""


class _Target(NamedTuple):
    line: MigrationLine
    version: int

    @property
    def workflow(self) -> str | None:
        kind, _, name = self.line.name.partition("/")
        return name if kind == EXECUTION else None


def migrate_state(store: Store, executions: Executions, request: MigrationRequest, new_id: NewId) -> Operation[MigrationReport]:
    """Migrate what a request names, after a backup if it names a folder.

    Raise ``InvalidInput`` for a request that does not fit, ``NotFound`` for a line without migrations, and ``StateNewer``, before
    anything is written, if a value of newer code is among those to migrate.
    """
    targets = _targets(request)
    migrating = _Migrating(store, executions, request, targets)
    yield from read(migrating.count)
    if request.backup is not None and not request.is_dry_run:
        folder = request.backup
        yield from read(lambda: _check_new(folder))
        yield from read_slowly(lambda: create_backup(store, folder, request.workspace, new_id))
    fault("migration.planned")
    return (yield from migrating.run())


def _targets(request: MigrationRequest) -> list[_Target]:
    if type(request.batch) is not int or not 1 <= request.batch <= 10_000:
        raise InvalidInput(f"a batch has 1 to 10,000 values, not {request.batch!r}")
    if request.workspace is not None:
        check_key(request.workspace, "a workspace id")
    if request.scope is None and request.workflow is None:
        chosen = list(lines())
        if not chosen:
            raise InvalidInput("this process has no migrations; import the modules that register them (stepwell -m MODULE)")
    else:
        name = line_name(request.scope, request.workflow)
        chosen = [each for each in lines() if each.name == name]
        if not chosen:
            raise InvalidInput(f"this process has no migrations of {name!r}; import the module that registers them")
    if request.to_version is None:
        return [_Target(each, each.current) for each in chosen]
    if len(chosen) > 1:
        raise InvalidInput("a version is of one scope or workflow; name that, too")
    line = chosen[0]
    if type(request.to_version) is not int or not line.first <= request.to_version <= line.last:
        raise InvalidInput(f"{line.name!r} has the versions {line.first} to {line.last}, not {request.to_version!r}")
    _ = line.current  # raises for migrations that make no chain
    return [_Target(line, request.to_version)]


def _check_new(folder: Path) -> None:
    """Refuse a folder with a backup: a migration that is resumed must not replace the values from before it by those of now."""
    if (folder / MANIFEST).exists():
        raise InvalidInput(
            f"the folder {str(folder)!r} has a backup already; name a new one, or none to resume a migration that began with it"
        )


class _Found:
    """The counts of one line."""

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        self.migrated = 0
        self.problems: dict[tuple[str, str], MigrationProblem] = {}
        self.held: set[str] = set()


class _Migrating:
    """One migration, from the count to the last look."""

    def __init__(self, store: Store, executions: Executions, request: MigrationRequest, targets: Sequence[_Target]) -> None:
        self._store, self._executions, self._request, self._targets = store, executions, request, targets
        self._found = {target.line.name: _Found() for target in targets}
        self._scopes: list[tuple[str, _Target]] = []
        self._total = self._done = 0

    # Counting, before anything is written.

    def count(self) -> None:
        """Count the values of each version. Raise ``StateNewer`` for one that cannot be brought to the wanted version."""
        by_name = {target.line.name: target for target in self._targets}
        for path in self._store.scopes(self._request.workspace):
            line = None if is_internal(path) else line_of_path(path)
            if line is not None and line.name in by_name:
                self._scopes.append((path, by_name[line.name]))
        for path, target in self._scopes:
            for key, row in self._rows(path):
                self._count(target, row.version, f"key {key!r} in scope {path!r}")
        for target in self._targets:
            self._total += 0 if target.workflow is None else sum(1 for _ in self._live(target.workflow))

    def _count(self, target: _Target, version: int, what: str) -> None:
        if version > target.version and not target.line.can_convert(version, target.version):
            raise StateNewer(
                f"{what} is at version {version}, and there is no way from there to {target.version}: newer code has written it; "
                "update this process. Nothing was written",
                stored=version,
                known=target.version,
            )
        found = self._found[target.line.name].versions
        found[version] = found.get(version, 0) + 1
        self._total += 1

    def _rows(self, path: str) -> Iterator[tuple[str, StoredEntry]]:
        return ((key, row) for key, row in all_entries(self._store, path) if not is_erased(row))

    def _live(self, workflow: str) -> Iterator[Head]:
        """Return the executions of a workflow that have not ended. Those that have stay as they ended."""
        query = ExecutionQuery(workspace_id=self._request.workspace, workflow_id=workflow, limit=_PAGE)
        return (head for head in all_executions(self._store, query) if head.status not in FINAL)

    # Migrating.

    def run(self) -> Operation[MigrationReport]:
        """Pass over everything until a pass finds nothing to do; a dry run makes one pass and writes nothing."""
        is_verified = False
        try:
            for number in range(1 if self._request.is_dry_run else _MOST_PASSES):
                for each in self._found.values():
                    each.problems.clear()
                    each.held.clear()
                if not (yield from self._pass(is_first=number == 0)):
                    is_verified = not self._request.is_dry_run
                    break
        except _Stopped:
            pass
        self._tell(is_end=True)
        return self._report(is_verified=is_verified)

    def _report(self, *, is_verified: bool) -> MigrationReport:
        problems = [problem for each in self._found.values() for problem in each.problems.values()]
        return MigrationReport(
            lines=tuple(
                LineReport(
                    line=target.line.name,
                    version=target.version,
                    versions=dict(sorted(found.versions.items())),
                    migrated=found.migrated,
                    failed=len(found.problems),
                    held=len(found.held),
                )
                for target, found in ((each, self._found[each.line.name]) for each in self._targets)
            ),
            problems=tuple(problems[:_MOST_PROBLEMS]),
            is_dry_run=self._request.is_dry_run,
            is_verified=is_verified,
        )

    def _pass(self, *, is_first: bool) -> Operation[bool]:
        """Migrate what is found at another version; return whether there was anything."""
        has_changed = False
        for path, target in self._scopes:
            has_changed |= yield from self._migrate_scope(path, target)
        for target in self._targets:
            if target.workflow is not None:
                has_changed |= yield from self._migrate_executions(target, target.workflow, is_first=is_first)
        return has_changed

    def _tell(self, count: int = 0, *, is_end: bool = False) -> None:
        self._done = self._total if is_end else min(self._done + count, self._total)
        if self._request.progress is not None:
            self._request.progress(self._done, self._total)

    def _fail(self, target: _Target, scope: str, key: str, error: StepwellError) -> None:
        name = target.line.name
        self._found[name].problems[scope, key] = MigrationProblem(name, scope, key, error.message)
        if self._request.stops:
            raise _Stopped

    # Scoped state.

    def _migrate_scope(self, path: str, target: _Target) -> Operation[bool]:
        found, has_changed, after = self._found[target.line.name], False, None
        most = self._request.batch * _AT_ONCE
        while True:
            page = yield from read(lambda after=after: self._store.scan(path, after=after, limit=min(_PAGE * 10, most)))
            if not page:
                return has_changed
            after = page[-1][0]
            ops, problems = yield from read(lambda page=page: _converted(path, page, target, stops=self._request.stops))
            if self._request.is_dry_run:
                found.migrated += len(ops)
            else:
                count = yield from self._write(path, ops, target)
                found.migrated += count
                has_changed |= bool(ops)
            for key, error in problems:
                self._fail(target, path, key, error)
            self._tell(len(page))

    def _write(self, path: str, ops: Sequence[Migrate], target: _Target) -> Operation[int]:
        """Write values in batches; one that is refused does not keep its batch from landing. Return how many landed."""
        batches = [ops[start : start + self._request.batch] for start in range(0, len(ops), self._request.batch)]
        count = 0
        while batches:
            outcomes = yield from write_many([StateBatch(tuple(batch)) for batch in batches])
            fault("migration.batch_written")
            again: list[Sequence[Migrate]] = []
            for batch, outcome in zip(batches, outcomes, strict=True):
                if isinstance(outcome, Written):
                    count += sum(1 for answer in outcome.answers if answer is True)
                elif not isinstance(outcome, ValidationFailed):
                    raise outcome if isinstance(outcome, StepwellError) else MigrationFailed("a batch was taken for another")
                elif len(batch) == 1:
                    self._fail(target, path, batch[0].key, outcome)
                else:
                    again += [[each] for each in batch]
            batches = again
        return count

    # Executions.

    def _migrate_executions(self, target: _Target, workflow: str, *, is_first: bool) -> Operation[bool]:
        has_changed = False
        heads = yield from read(lambda: list(self._live(workflow)))
        for start in range(0, len(heads), self._request.batch):
            batch = heads[start : start + self._request.batch]
            has_changed |= yield from self._migrate_batch(target, batch, is_first=is_first)
            self._tell(len(batch))
        return has_changed

    def _migrate_batch(self, target: _Target, heads: Sequence[Head], *, is_first: bool) -> Operation[bool]:
        found = self._found[target.line.name]
        loaded = yield from self._executions.unshared([head.execution_id for head in heads])
        now_ms = yield from read(self._store.now_ms)
        changes: list[UnsharedChange] = []
        for head, live in zip(heads, loaded, strict=True):
            if live is None or isinstance(live, ValueErased):
                continue  # deleted meanwhile, or erased with its subject
            if isinstance(live, StepwellError):
                self._fail(target, "", head.execution_id, live)
                continue
            version = live.execution.state.identity.state_version
            if is_first:
                found.versions[version] = found.versions.get(version, 0) + 1
            if version == target.version or live.head.status in FINAL:
                continue
            try:
                mutation = _pure(target, live.execution)
            except StepwellError as error:
                self._fail(target, "", head.execution_id, error)
                continue
            # Its session, or its engine, has read the state, and goes on from what it has read.
            if live.is_held(now_ms) or live.execution.state.identity.engine is not None:
                found.held.add(head.execution_id)
            else:
                changes.append(UnsharedChange(live.execution, live.head, migrating=mutation))
        if self._request.is_dry_run:
            found.migrated += len(changes)
            return False
        outcomes = (yield from self._executions.commit_unshared(changes)) if changes else []
        fault("migration.batch_written")
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, ValidationFailed):
                self._fail(target, "", change.live.execution_id, outcome)
            elif outcome is None:
                found.migrated += 1
            # Otherwise another writer was first, and the next pass looks again.
        return any(not isinstance(outcome, ValidationFailed) for outcome in outcomes)


def _converted(
    path: str, page: Sequence[tuple[str, StoredEntry]], target: _Target, *, stops: bool
) -> tuple[list[Migrate], list[tuple[str, StepwellError]]]:
    """Return the operations that bring a page of values to a version, and those that cannot be brought there."""
    ops: list[Migrate] = []
    problems: list[tuple[str, StepwellError]] = []
    line, version = target
    for key, row in page:
        if row.version == version or is_erased(row) or row.data is None:
            continue
        try:
            data = line.convert(row.data, key, row.version, version)
            if line.convert_again(row.data, key, row.version, version) != data:
                raise _impure(line)
        except StepwellError as error:
            problems.append((key, error))
            if stops:
                break
            continue
        ops.append(Migrate(path, key, msgspec.Raw(data), version, row.revision, row.version))
    return ops, problems


def _pure(target: _Target, live: CachedExecution) -> MigrateState:
    mutation = migration_to(live.state, target.version)
    if migration_to(live.state, target.version) != mutation:
        raise _impure(target.line)
    return mutation


def _impure(line: MigrationLine) -> MigrationFailed:
    return MigrationFailed(
        f"a migration of {line.name!r} is not pure: called twice with one value, it gave two results; it may use nothing else"
    )
