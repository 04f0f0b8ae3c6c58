"""Routes of backups, and of migrations of stored state.

Requests name no folder: backups are made into the one that the server was started with.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from stepwell.maintenance import backup
from stepwell.maintenance.backup import BackupReport, BackupSummary, BackupVerification
from stepwell.maintenance.backup_files import MANIFEST
from stepwell.maintenance.state_migration import MigrationReport
from stepwell.model.access import Role
from stepwell.web.paging import CountedQuery, sorted_page
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, Reply, api_route

__all__ = ["ROUTES"]

Name = Annotated[str, Meta(min_length=1, max_length=512)]


class MakeBackup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A backup to make."""

    keep: Annotated[int, Meta(ge=0, le=10_000)] = 7
    """How many earlier backups stay."""


class MigrateStoredState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored values to bring to the version that the code of this server uses."""

    scope: Name | None = None
    """Only these scopes, such as ``custom/prices``; null: all."""
    workflow: Name | None = None
    """Only the runs of this workflow; null: all."""
    to_version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Bring them to this version; null: the one that the code of this server uses."""
    is_dry_run: bool = True
    """Whether to call the migrations on every value, and write nothing."""
    stop_at_failure: bool = False
    """Whether to stop at the first value that fails."""
    batch: Annotated[int, Meta(ge=1, le=10_000)] = 500
    """How many values land in one transaction."""


def _folder(call: Call) -> Path:
    if call.server.backups is None:
        raise HttpProblem("not_configured", "this server keeps no backups; start it with: stepwell serve --backups FOLDER")
    return call.server.backups


async def list_backups(call: Call) -> Reply:
    """Return the backups that this server keeps, the oldest first."""
    folder = _folder(call)
    has_some = await asyncio.to_thread((folder / MANIFEST).exists)
    found = await asyncio.to_thread(backup.list_backups, folder) if has_some else []
    return await sorted_page(call, found, lambda each: f"{each.generation:012}", "backups")


async def make_backup(call: Call) -> Reply:
    """Back the store up while it is in use: what is new since the last backup is added to it."""
    return Reply(await call.well.backup(_folder(call), keep=call.body.keep), 201)


async def check_backup(call: Call) -> Reply:
    """Check the newest backup without restoring it: every checksum, and every receipt."""
    return Reply(await asyncio.to_thread(backup.verify_backup, _folder(call)))


async def migrate_state(call: Call) -> Reply:
    """Bring stored values to the version that the code of this server uses: first a dry run, then after a backup."""
    body: MigrateStoredState = call.body
    if not body.is_dry_run:
        await call.well.backup(_folder(call))
    report = await call.well.migrate_state(
        scope=body.scope,
        workflow=body.workflow,
        to_version=body.to_version,
        dry_run=body.is_dry_run,
        stop_at_failure=body.stop_at_failure,
        batch=body.batch,
    )
    return Reply(report)


_ADMIN = {"is_store_wide": True, "is_admin_bind": True}

ROUTES = (
    api_route("GET /backups", list_backups, Page[BackupSummary], Role.ADMIN, query=CountedQuery, **_ADMIN),
    api_route("POST /backups", make_backup, BackupReport, Role.ADMIN, body=MakeBackup, is_body_optional=True, status=201, **_ADMIN),
    api_route("GET /backups/check", check_backup, BackupVerification, Role.ADMIN, **_ADMIN),
    api_route(
        "POST /migrations/state",
        migrate_state,
        MigrationReport,
        Role.ADMIN,
        body=MigrateStoredState,
        is_body_optional=True,
        **_ADMIN,
    ),
)
