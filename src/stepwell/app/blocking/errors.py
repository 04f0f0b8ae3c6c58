# Generated from app/awaited/errors.py by `make blocking`. Do not edit: change that module and generate again.
"""Failed runs, grouped by what went wrong."""

from __future__ import annotations

from datetime import datetime

from stepwell.model.error_group import ErrorGroup, Failure, RetriedGroup
from stepwell.model.ids import Id, id_text
from stepwell.model.scope import DEFAULT_WORKSPACE
from stepwell.pipeline.operations import Driver
from stepwell.runtime.error_groups import ErrorOperations

__all__ = ["Errors"]


class Errors:
    """The failed runs of one workspace in groups: ``well.errors``.

    Failures are one group if they have the same fingerprint: error class, message without ids, times, numbers and quoted texts,
    step, and last place in your own code. Every call groups the newest failed runs, ``limit`` of them.
    """

    def __init__(self, operations: ErrorOperations, driver: Driver, workspace: str = DEFAULT_WORKSPACE) -> None:
        self._do, self._driver, self._workspace = operations, driver, workspace

    def within(self, workspace: Id) -> Errors:
        """Return the groups of another workspace.

        - ``workspace``: the id of the workspace.
        """
        return Errors(self._do, self._driver, id_text(workspace))

    def list(self, *, status: str | None = None, limit: int = 1_000) -> list[ErrorGroup]:
        """Return the groups, the one that failed last first.

        - ``status``: list only groups that are ``open``, ``resolved`` or ``ignored``.
        - ``limit``: how many of the newest failed runs to group, 1 to 10,000.

        Raise ``InvalidInput`` for another status and a limit outside its range.

        Example:

            for group in well.errors.list(status="open"):
                print(group.count, group.kind, group.message)
        """
        return self._driver.run(self._do.groups(self._workspace, status, limit))

    def failure(self, execution_id: Id) -> Failure | None:
        """Return how a run of the workspace failed: class, message, step and place; None if it did not fail, or is not there.

        - ``execution_id``: the run.
        """
        return self._driver.run(self._do.failure(self._workspace, id_text(execution_id)))

    def get(self, fingerprint: str, *, limit: int = 1_000) -> ErrorGroup:
        """Return one group.

        - ``fingerprint``: the fingerprint of the group, as ``list`` returns it.
        - ``limit``: how many of the newest failed runs to group, 1 to 10,000.

        Raise ``NotFound`` if none of the failed runs that are grouped has the fingerprint.
        """
        return self._driver.run(self._do.group(self._workspace, fingerprint, limit))

    def resolve(self, fingerprint: str, *, by: str = "", reason: str = "", limit: int = 1_000) -> ErrorGroup:
        """Call a group solved, and return it. The next failure of its kind opens it again.

        - ``fingerprint``: the fingerprint of the group, as ``list`` returns it.
        - ``limit``: how many of the newest failed runs to group, 1 to 10,000.
        - ``by``, ``reason``: who says so, and why, for people who look later.

        Raise ``NotFound`` if no failed run that is grouped has the fingerprint.
        """
        return self._driver.run(self._do.resolve(self._workspace, fingerprint, by, reason, limit))

    def ignore(
        self,
        fingerprint: str,
        *,
        until: datetime | None = None,
        more: int | None = None,
        version: int | None = None,
        by: str = "",
        reason: str = "",
        limit: int = 1_000,
    ) -> ErrorGroup:
        """Ignore a group, and return it. It opens again at the first of these that comes; without any, it stays ignored.

        - ``fingerprint``: the fingerprint of the group, as ``list`` returns it.
        - ``limit``: how many of the newest failed runs to group, 1 to 10,000.
        - ``until``: an aware moment.
        - ``more``: after more than so many further failures.
        - ``version``: with a failure of this version of its workflow, or a newer one.
        - ``by``, ``reason``: who says so, and why, for people who look later.

        Raise ``InvalidInput`` for a moment that is past and for numbers below 1, and ``NotFound`` if no failed run that is grouped
        has the fingerprint.
        """
        return self._driver.run(self._do.ignore(self._workspace, fingerprint, by, reason, until, more, version, limit))

    def reopen(self, fingerprint: str, *, by: str = "", limit: int = 1_000) -> ErrorGroup:
        """Open a group that was resolved or ignored, and return it.

        - ``fingerprint``: the fingerprint of the group, as ``list`` returns it.
        - ``by``: who says so.
        - ``limit``: how many of the newest failed runs to group, 1 to 10,000.

        Raise ``NotFound`` if no failed run that is grouped has the fingerprint.
        """
        return self._driver.run(self._do.reopen(self._workspace, fingerprint, by, limit))

    def retry(self, fingerprint: str, *, limit: int = 1_000) -> RetriedGroup:
        """Retry every run of a group at the step that failed; return which continue, and why others were refused.

        - ``fingerprint``: the fingerprint of the group, as ``list`` returns it.
        - ``limit``: how many of the newest failed runs to group, 1 to 10,000.

        Raise ``NotFound`` if no failed run that is grouped has the fingerprint.
        """
        return self._driver.run(self._do.retry(self._workspace, fingerprint, limit))
