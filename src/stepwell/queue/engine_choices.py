"""Engines that were chosen for a workflow, a queue or a workspace: they hold for every start that names no engine.

A choice is a row of a scope of Stepwell's own records. A process reads them again after a second, so a choice made elsewhere holds
for its starts within that time. Executions that exist stay where they began.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import msgspec

from stepwell.contract.store import Store
from stepwell.errors import InvalidInput
from stepwell.model.commit import StateBatch
from stepwell.model.external_engines import check_engine
from stepwell.model.ids import check_key
from stepwell.model.plain_data import PlainRecord
from stepwell.model.scope import DEFAULT_WORKSPACE, internal_path
from stepwell.model.scoped_operations import Delete, Put
from stepwell.model.value import canonical, decode
from stepwell.pipeline.operations import Operation, read, write_or_raise
from stepwell.pipeline.paged_reads import all_entries

__all__ = ["EngineChoice", "EngineChoices"]

_PATH = internal_path("engine_choice", DEFAULT_WORKSPACE)
_FRESH_SECONDS = 1.0
_LOCAL = "local"


class EngineChoice(PlainRecord, frozen=True, kw_only=True):
    """An engine, and what it was chosen for."""

    kind: str
    """``workflow``, ``queue`` or ``workspace``."""
    name: str
    engine: str
    """``local`` for Stepwell's own workers, or ``temporal``."""


class EngineChoices:
    """The engine choices of one store."""

    def __init__(self, store: Store, now: Callable[[], float] = monotonic) -> None:
        self._store, self.now = store, now
        self._known: dict[str, str] = {}
        self._fresh_until = float("-inf")

    def choose(self, engine: str | None, workspace: str | None, queue: str | None, workflow: str | None) -> Operation[EngineChoice]:
        """Store the engine for one workspace, queue or workflow; None removes the choice."""
        named = {"workflow": workflow, "queue": queue, "workspace": workspace}
        given = [(kind, name) for kind, name in named.items() if name is not None]
        if len(given) != 1:
            raise InvalidInput("choose an engine for one workspace, one queue or one workflow")
        check_engine(engine)
        (kind, name) = given[0]
        key = f"{kind}:{check_key(name, f'the name of a {kind}', 256, is_fixed=True)}"
        op = Delete(_PATH, key) if engine is None else Put(_PATH, key, msgspec.Raw(canonical(engine)))
        yield from write_or_raise(StateBatch((op,)))
        self._fresh_until = float("-inf")
        return EngineChoice(kind=kind, name=name, engine=engine or _LOCAL)

    def all(self) -> Operation[list[EngineChoice]]:
        """Return all choices, sorted by kind and name."""
        yield from self._load()
        parts = ((*key.split(":", 1), engine) for key, engine in sorted(self._known.items()))
        return [EngineChoice(kind=kind, name=name, engine=engine) for kind, name, engine in parts]

    def of(self, engine: str | None, workflow: str, workspace: str, queue: str | None = None) -> Operation[str | None]:
        """Return the engine of a start: the one that it names, else the choice for its workflow, its queue or its workspace.

        None stands for Stepwell's own workers. Raise ``InvalidInput`` for an unknown engine.
        """
        if engine is not None:
            return check_engine(engine)
        if self.now() >= self._fresh_until:
            yield from self._load()
        known = self._known
        if not known:
            return None
        for key in (f"workflow:{workflow}", f"queue:{queue}", f"workspace:{workspace}"):
            if key in known:
                return check_engine(known[key])
        return None

    def _load(self) -> Operation[None]:
        found = yield from read(self._scan)
        self._known, self._fresh_until = found, self.now() + _FRESH_SECONDS

    def _scan(self) -> dict[str, str]:
        return {key: str(decode(row.data or b"null")) for key, row in all_entries(self._store, _PATH)}
