"""Operations on workspaces and tiers, and optimistic changes of settings (tiers, workspaces, named queues).

A change is written only if the settings are still those that it is based on, and is made again otherwise: of two changes at the
same moment both land.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from stepwell.contract.store import Store
from stepwell.duration import Span, seconds_of
from stepwell.errors import Conflict, InvalidInput, NotFound, StepwellError
from stepwell.model.ids import check_key
from stepwell.model.limits import bytes_of
from stepwell.model.queue_item import (
    SIZE_LIMITS,
    STATE_LIMITS,
    TIER_LIMITS,
    Override,
    PutQueue,
    PutTier,
    PutWorkspace,
    Tier,
    Workspace,
    tier_at,
)
from stepwell.pipeline.operations import Operation, read, write

__all__ = [
    "KEEP",
    "Number",
    "Rate",
    "WorkspaceOperations",
    "change",
    "kept_or_changed",
    "no_workspace",
]


KEEP: Any = msgspec.UNSET
"""Leaves a setting unchanged; None means no limit."""

Number = int | None | msgspec.UnsetType
Rate = float | None | msgspec.UnsetType

T = TypeVar("T")
Put = TypeVar("Put", bound=PutTier | PutWorkspace | PutQueue)

_TRIES = 100
"""A refused change was overtaken by one that landed, so a hundred concurrent changes all land. After that, raise the refusal."""


def change(find: Callable[[], T | None], put: Callable[[T | None], Put]) -> Operation[Put]:
    """Read a setting, write what ``put`` makes of it, and return the unit that landed.

    If another writer changed the setting in between, start again. ``put`` is called anew each time; what it raises leaves
    nothing written.
    """
    left = _TRIES
    while True:
        known = yield from read(find)
        unit = put(known)
        outcome = yield from write(unit)
        if not isinstance(outcome, StepwellError):
            return unit
        left -= 1
        if not isinstance(outcome, Conflict) or not left:
            raise outcome


def kept_or_changed(known: msgspec.Struct | None, given: dict[str, Any]) -> dict[str, Any]:
    """Return the present settings with those that are given. The struct made of them checks the values."""
    before: dict[str, Any] = {} if known is None else msgspec.structs.asdict(known)
    return before | {what: value for what, value in given.items() if value is not KEEP}


def no_workspace(workspace_id: str) -> NotFound:
    """Return the error for a workspace that does not exist."""
    return NotFound(f"there is no workspace {workspace_id!r}; make it with well.workspaces.put({workspace_id!r}, tier=...)")


class WorkspaceOperations:
    """Operations on workspaces and tiers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, workspace_id: str, tier: str | None, is_paused: bool | None) -> Operation[Workspace]:
        """Create a workspace, or change the settings that are given."""
        workspace_id = check_key(workspace_id, "a workspace id")
        settings: dict[str, Any] = {} if tier is None else {"tier": _tier_name(tier)}
        if is_paused is not None:
            settings["is_paused"] = _whether(is_paused)

        def changed(known: Workspace | None) -> PutWorkspace:
            before = Workspace(workspace_id=workspace_id, tier="free") if known is None else known
            return PutWorkspace(msgspec.structs.replace(before, **settings), known)

        yield from change(lambda: self._find(workspace_id), changed)
        return (yield from self.get(workspace_id))

    def get(self, workspace_id: str) -> Operation[Workspace]:
        """Return a workspace. Raise ``NotFound`` if there is none."""
        workspace_id = check_key(workspace_id, "a workspace id")
        found = yield from read(lambda: self._find(workspace_id))
        if found is None:
            raise no_workspace(workspace_id)
        return found

    def pause(self, workspace_id: str, is_paused: bool) -> Operation[Workspace]:
        """Pause or resume a workspace."""
        yield from self.get(workspace_id)
        return (yield from self.put(workspace_id, None, is_paused))

    def override(self, workspace_id: str, limit: str, value: object, span: Span, reason: str) -> Operation[Workspace]:
        """Override a limit of a workspace for a span of the store's time."""
        _check_limit(limit)
        seconds = seconds_of(span, "the time that an override holds", least=0.001)
        if not isinstance(reason, str) or len(reason) > _LONGEST_REASON:
            raise InvalidInput(f"the reason of an override is a text of at most {_LONGEST_REASON:,} characters, not {reason!r}")
        known = yield from self.get(workspace_id)
        now_ms = yield from read(self._store.now_ms)
        made = Override(value=_limit_of(limit, value), until_ms=now_ms + round(seconds * 1000), reason=reason, since_ms=now_ms)
        tiers = yield from self.tiers()
        tier = next(each for each in tiers if each.name == known.tier)
        tier_at(tier, Workspace(workspace_id=workspace_id, tier=tier.name, overrides={limit: made}), now_ms)  # checks the value
        return (yield from self._put_override(workspace_id, limit, made, now_ms))

    def end_override(self, workspace_id: str, limit: str) -> Operation[Workspace]:
        """End the override of a limit now."""
        _check_limit(limit)
        yield from self.get(workspace_id)
        return (yield from self._put_override(workspace_id, limit, None, (yield from read(self._store.now_ms))))

    def _put_override(self, workspace_id: str, limit: str, made: Override | None, now_ms: int) -> Operation[Workspace]:
        """Write an override or its end. Overrides that have ended are dropped with it."""

        def changed(known: Workspace | None) -> PutWorkspace:
            if known is None:
                raise no_workspace(workspace_id)
            kept = {name: each for name, each in known.overrides.items() if name != limit and each.until_ms > now_ms}
            overrides = kept if made is None else kept | {limit: made}
            return PutWorkspace(msgspec.structs.replace(known, overrides=overrides), known)

        yield from change(lambda: self._find(workspace_id), changed)
        return (yield from self.get(workspace_id))

    def all(self) -> Operation[list[Workspace]]:
        """Return all workspaces."""
        return (yield from read(self._store.workspaces))

    def tiers(self) -> Operation[list[Tier]]:
        """Return all tiers."""
        return (yield from read(self._store.tiers))

    def put_tier(self, name: str, given: dict[str, Any]) -> Operation[Tier]:
        """Create a tier, or change the settings that are given."""
        lower = _tier_name(name)
        if given.get("weight", KEEP) is None:
            raise InvalidInput(f"weight of tier {lower!r} is a number; there is no share without one")

        def changed(known: Tier | None) -> PutTier:
            return PutTier(Tier(**kept_or_changed(known, given | {"name": lower})), known)

        unit = yield from change(lambda: self._find_tier(lower), changed)
        return unit.tier

    def _find_tier(self, name: str) -> Tier | None:
        return next((tier for tier in self._store.tiers() if tier.name == name), None)

    def _find(self, workspace_id: str) -> Workspace | None:
        return next((each for each in self._store.workspaces() if each.workspace_id == workspace_id), None)


def _tier_name(name: object) -> str:
    return check_key(name, "a tier's name").lower()


_LONGEST_REASON = 1_000

_NO_STATE_LIMIT = 2**53
"""An override to "no limit" of scoped state: as a number, so that stores go on counting for the time afterwards."""


def _check_limit(limit: object) -> None:
    if limit not in TIER_LIMITS:
        raise InvalidInput(f"{limit!r} is no limit of a tier; use one of {', '.join(TIER_LIMITS)}")


def _limit_of(limit: str, value: object) -> Any:
    """Return the value of a limit; the tier that is made with it checks the rest."""
    if value is None and limit == "weight":
        raise InvalidInput("weight is a number; there is no share without one")
    if limit in STATE_LIMITS:
        if value is None:
            return _NO_STATE_LIMIT
        return bytes_of(value, limit) if limit in SIZE_LIMITS else value
    if limit == "retention_seconds" and value is not None:
        return seconds_of(value, "retention_seconds")
    return value


def _whether(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"is_paused is True or False, not {value!r}")
    return value
