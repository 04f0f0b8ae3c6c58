"""The operations of the HTTP API for Python, one method for each route."""

# Generated from the route table by `python -m tools.generate_client`. Do not edit: change the route and generate again.

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from msgspec import UNSET, UnsetType

from stepwell.maintenance.backup import BackupReport, BackupSummary, BackupVerification
from stepwell.maintenance.retention import RetentionPlan
from stepwell.maintenance.state_migration import MigrationReport
from stepwell.maintenance.usage import Usage
from stepwell.model.access import AccessToken, Role
from stepwell.model.error_group import ErrorGroup, RetriedGroup
from stepwell.model.execution_state import Change
from stepwell.model.queue_item import QueueSettings, Tier, Workspace
from stepwell.model.receipt_chain import Verification
from stepwell.model.retention import RetentionPolicy, Tombstone
from stepwell.model.trace import Trace
from stepwell.model.webhook import WebhookDelivery, WebhookEndpoint, WebhookReceiver
from stepwell.queue.diagnosis import WaitingReason
from stepwell.queue.item import ItemSummary
from stepwell.queue.schedule import ScheduleSummary
from stepwell.queue.statistics import Demand, LaneStats
from stepwell.queue.worker_presence import LeasedRun, WorkerPresence
from stepwell.runtime.definitions import DefinitionSummary
from stepwell.runtime.progress import Progress
from stepwell.runtime.step_history import StepRecord
from stepwell.state.conversations import ConversationSummary, Turn
from stepwell.state.remote_locks import RemoteHold
from stepwell.state.request_log import AuditEntry
from stepwell.web.api.approvals import CreatedLink, OpenOffer
from stepwell.web.api.bulk import BulkReport
from stepwell.web.api.definitions import CheckResult, DefinitionView, WorkflowView
from stepwell.web.api.queue import EnqueuedItem, ReleasedRuns
from stepwell.web.api.runs import Accepted, EventTicket, ListedRun, ReceiptView, RunCount, RunHours, RunState, RunView, StartedRun
from stepwell.web.api.state import ConversationView, EntryView, ScopeView, Sum
from stepwell.web.api.system import CallerInfo, SystemInfo
from stepwell.web.api.webhooks import ReceiverView, WebhookView
from stepwell.web.api.workspaces import CreatedToken
from stepwell.web.problem import ProblemKind
from stepwell.web.route import Page

__all__ = ["Operations"]


class Operations:
    """Calls of the HTTP API, named by their ``operationId``.

    Every call raises the error of its problem: the class that has the code, such as ``NotFound``, or ``RequestFailed``.
    """

    def _call(
        self,
        method: str,
        path: str,
        replies: dict[int, Any],
        query: dict[str, Any],
        body: dict[str, Any] | None,
        headers: dict[str, str | None],
    ) -> Any:
        raise NotImplementedError

    def get_openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of this API."""
        return self._call("GET", "/openapi.json", {200: dict[str, Any]}, {}, None, {})

    def get_caller(self, *, workspace: str | None = None) -> CallerInfo:
        """Return who the token stands for.

        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", "/whoami", {200: CallerInfo}, {"workspace": workspace}, None, {})

    def get_system(self, *, workspace: str | None = None) -> SystemInfo:
        """Return the state of this server and its store.

        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", "/system", {200: SystemInfo}, {"workspace": workspace}, None, {})

    def list_problems(self) -> Page[ProblemKind]:
        """Return every kind of error."""
        return self._call("GET", "/problems", {200: Page[ProblemKind]}, {}, None, {})

    def get_problem(self, code: str) -> ProblemKind:
        """Return one kind of error.

        - ``code``: the code of the error, such as ``precondition_failed`` or ``SW-200``.
        """
        return self._call("GET", f"/problems/{quote(code, safe='')}", {200: ProblemKind}, {}, None, {})

    def list_approvals(self, *, limit: int = 50, cursor: str | None = None, workspace: str | None = None) -> Page[OpenOffer]:
        """Return the answers that waiting runs accept now, newest runs first.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", "/approvals", {200: Page[OpenOffer]}, {"limit": limit, "cursor": cursor, "workspace": workspace}, None, {}
        )

    def approve_run(
        self,
        execution_id: str,
        *,
        name: str,
        is_approved: bool = True,
        comment: str = "",
        by: str | None = None,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> Accepted:
        """Approve or reject what a run waits for.

        Return an ``Accepted``.

        - ``execution_id``: the run.
        - ``name``: of the approval, as ``GET /approvals`` has it.
        - ``is_approved``: whether it is approved, or rejected.
        - ``comment``: a word about the decision, for whoever reads its result.
        - ``by``: the person who decides; None: the name of the token.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/approve",
            {202: Accepted},
            {"workspace": workspace},
            {"name": name, "is_approved": is_approved, "comment": comment, "by": by},
            {"Idempotency-Key": idempotency_key},
        )

    def create_link(
        self,
        execution_id: str,
        *,
        signal: str,
        by: str | None = None,
        ttl_ms: int = 259200000,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> CreatedLink:
        """Create a link that sends one signal, once.

        Return a ``CreatedLink``.

        - ``execution_id``: the run.
        - ``signal``: the name of an answer that the run accepts now.
        - ``by``: the person to whom it is given; None: the person who opens it gives a name.
        - ``ttl_ms``: after this time the link is refused.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/links",
            {201: CreatedLink},
            {"workspace": workspace},
            {"signal": signal, "by": by, "ttl_ms": ttl_ms},
            {"Idempotency-Key": idempotency_key},
        )

    def list_runs(
        self,
        *,
        filter: str = "",
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        expand: str | None = None,
        workspace: str | None = None,
    ) -> Page[ListedRun]:
        """Return a page of runs, newest first.

        - ``filter``: terms such as ``status:FAILED workflow:checkout``.
        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the runs that match, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``expand``: what to add to each run, with commas: ``item``, ``parent``, ``progress`` or ``steps``. A page has at most
          50 runs then.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/runs",
            {200: Page[ListedRun]},
            {"filter": filter, "limit": limit, "cursor": cursor, "count": count, "expand": expand, "workspace": workspace},
            None,
            {},
        )

    def count_runs(self, *, workflow: str | None = None, workspace: str | None = None) -> Page[RunCount]:
        """Return how many runs have each status, up to a thousand.

        - ``workflow``: count only runs of this workflow.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", "/run_counts", {200: Page[RunCount]}, {"workflow": workflow, "workspace": workspace}, None, {})

    def count_hours(self, *, workspace: str | None = None) -> RunHours:
        """Return how many runs began in each of the last 24 hours, up to a thousand.

        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", "/run_hours", {200: RunHours}, {"workspace": workspace}, None, {})

    def start_run(
        self,
        *,
        workflow: str,
        input: Any | UnsetType = UNSET,
        execution_id: str | None = None,
        idempotency_key: str | None = None,
        prefer: str | None = None,
        workspace: str | None = None,
    ) -> StartedRun | RunView:
        """Start a run.

        Return a ``StartedRun`` or ``RunView``.

        - ``workflow``: the name of a workflow function of the server, or of a stored definition.
        - ``input``: without it, the workflow's parameters take their defaults.
        - ``execution_id``: an id of your own, which makes a retry safe; None: the server chooses one.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``prefer``: ``wait=10`` to wait up to ten seconds for the result.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            "/runs",
            {202: StartedRun, 200: RunView},
            {"workspace": workspace},
            {"workflow": workflow, "input": input, "execution_id": execution_id},
            {"Idempotency-Key": idempotency_key, "Prefer": prefer},
        )

    def get_run(self, execution_id: str, *, expand: str | None = None, workspace: str | None = None) -> RunView:
        """Return a run.

        - ``execution_id``: the run.
        - ``expand``: what to add to the run, with commas: ``item``, ``parent``, ``progress`` or ``steps``.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/runs/{quote(execution_id, safe='')}", {200: RunView}, {"expand": expand, "workspace": workspace}, None, {}
        )

    def put_run(
        self,
        execution_id: str,
        *,
        workflow: str,
        input: Any | UnsetType = UNSET,
        prefer: str | None = None,
        workspace: str | None = None,
    ) -> StartedRun | RunView:
        """Start a run under an id of the caller's own.

        Return a ``StartedRun`` or ``RunView``.

        - ``execution_id``: the run.
        - ``workflow``: the name of a workflow function of the server, or of a stored definition.
        - ``input``: without it, the workflow's parameters take their defaults.
        - ``prefer``: ``wait=10`` to wait up to ten seconds for the result.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/runs/{quote(execution_id, safe='')}",
            {202: StartedRun, 200: RunView},
            {"workspace": workspace},
            {"workflow": workflow, "input": input},
            {"Prefer": prefer},
        )

    def delete_run(self, execution_id: str, *, if_match: str | None = None, workspace: str | None = None) -> None:
        """Delete a run with its history.

        - ``execution_id``: the run.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call(
            "DELETE", f"/runs/{quote(execution_id, safe='')}", {204: None}, {"workspace": workspace}, None, {"If-Match": if_match}
        )

    def get_result(self, execution_id: str, *, wait: float = 0, workspace: str | None = None) -> RunView:
        """Return a run when it has ended, or as it is after the wait.

        - ``execution_id``: the run.
        - ``wait``: how many seconds to wait for the end.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/runs/{quote(execution_id, safe='')}/result",
            {200: RunView, 202: RunView},
            {"wait": wait, "workspace": workspace},
            None,
            {},
        )

    def get_run_state(self, execution_id: str, *, at: int | None = None, workspace: str | None = None) -> RunState:
        """Return the state of a run.

        - ``execution_id``: the run.
        - ``at``: the revision; None: the newest.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/runs/{quote(execution_id, safe='')}/state", {200: RunState}, {"at": at, "workspace": workspace}, None, {}
        )

    def list_steps(self, execution_id: str, *, at: int | None = None, workspace: str | None = None) -> Page[StepRecord]:
        """Return the steps of a run with their attempts.

        - ``execution_id``: the run.
        - ``at``: the revision; None: the newest.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/runs/{quote(execution_id, safe='')}/steps",
            {200: Page[StepRecord]},
            {"at": at, "workspace": workspace},
            None,
            {},
        )

    def get_progress(self, execution_id: str, *, workspace: str | None = None) -> Progress:
        """Return how far a run is.

        - ``execution_id``: the run.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/runs/{quote(execution_id, safe='')}/progress", {200: Progress}, {"workspace": workspace}, None, {}
        )

    def get_trace(
        self, execution_id: str, *, level: Literal["none", "min", "full"] = "full", workspace: str | None = None
    ) -> Trace:
        """Return what a run did, in order.

        - ``execution_id``: the run.
        - ``level``: ``full``, ``min`` without times and values, or ``none``.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/runs/{quote(execution_id, safe='')}/trace", {200: Trace}, {"level": level, "workspace": workspace}, None, {}
        )

    def get_drawing(self, execution_id: str, *, workspace: str | None = None) -> bytes:
        """Return a picture of a run.

        - ``execution_id``: the run.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", f"/runs/{quote(execution_id, safe='')}/drawing", {}, {"workspace": workspace}, None, {})

    def list_receipts(
        self, execution_id: str, *, limit: int = 50, cursor: str | None = None, workspace: str | None = None
    ) -> Page[ReceiptView]:
        """Return a page of receipts, in order.

        - ``execution_id``: the run.
        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/runs/{quote(execution_id, safe='')}/receipts",
            {200: Page[ReceiptView]},
            {"limit": limit, "cursor": cursor, "workspace": workspace},
            None,
            {},
        )

    def get_proof(self, execution_id: str, *, workspace: str | None = None) -> bytes:
        """Return the proof of a run, for ``stepwell.verify_proof``.

        - ``execution_id``: the run.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", f"/runs/{quote(execution_id, safe='')}/proof", {}, {"workspace": workspace}, None, {})

    def verify_run(self, execution_id: str, *, workspace: str | None = None) -> Verification:
        """Verify every receipt of a run.

        Return a ``Verification``.

        - ``execution_id``: the run.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/runs/{quote(execution_id, safe='')}/verification", {200: Verification}, {"workspace": workspace}, None, {}
        )

    def diff_run(self, execution_id: str, *, a: int, b: int, workspace: str | None = None) -> Page[Change]:
        """Return the changes between two revisions.

        - ``execution_id``: the run.
        - ``a``: the revision to compare from.
        - ``b``: the revision to compare with.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/runs/{quote(execution_id, safe='')}/diff",
            {200: Page[Change]},
            {"a": a, "b": b, "workspace": workspace},
            None,
            {},
        )

    def create_event_ticket(self, *, idempotency_key: str | None = None, workspace: str | None = None) -> EventTicket:
        """Create a ticket that opens one stream of events, once.

        Return an ``EventTicket``.

        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST", "/event_tickets", {201: EventTicket}, {"workspace": workspace}, None, {"Idempotency-Key": idempotency_key}
        )

    def cancel_run(
        self, execution_id: str, *, scope: str | None = None, idempotency_key: str | None = None, workspace: str | None = None
    ) -> Accepted:
        """Request a run and its children to end, or cancel a scope of it.

        Return an ``Accepted``.

        - ``execution_id``: the run.
        - ``scope``: a cancel scope of a declared workflow; None: all of the run.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/cancel",
            {202: Accepted},
            {"workspace": workspace},
            {"scope": scope},
            {"Idempotency-Key": idempotency_key},
        )

    def cancel_step(
        self, execution_id: str, *, step: str, idempotency_key: str | None = None, workspace: str | None = None
    ) -> Accepted:
        """Cancel a step of a run: now if it is under way, else when it begins.

        Return an ``Accepted``.

        - ``execution_id``: the run.
        - ``step``: its key, such as ``resize[3]``.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/cancel_step",
            {202: Accepted},
            {"workspace": workspace},
            {"step": step},
            {"Idempotency-Key": idempotency_key},
        )

    def pause_run(
        self, execution_id: str, *, reason: str = "", idempotency_key: str | None = None, workspace: str | None = None
    ) -> Accepted:
        """Pause a run: what is under way may end, and nothing new begins until it is resumed.

        Return an ``Accepted``.

        - ``execution_id``: the run.
        - ``reason``: why, for the people who see that it waits.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/pause",
            {202: Accepted},
            {"workspace": workspace},
            {"reason": reason},
            {"Idempotency-Key": idempotency_key},
        )

    def resume_run(self, execution_id: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> Accepted:
        """Resume a paused run.

        Return an ``Accepted``.

        - ``execution_id``: the run.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/resume",
            {202: Accepted},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def retry_run(self, execution_id: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> Accepted:
        """Continue a failed run at the step that failed.

        Return an ``Accepted``.

        - ``execution_id``: the run.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/retry",
            {202: Accepted},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def signal_run(
        self, execution_id: str, *, name: str, value: Any = None, idempotency_key: str | None = None, workspace: str | None = None
    ) -> Accepted:
        """Send a signal to a run.

        Return an ``Accepted``.

        - ``execution_id``: the run.
        - ``name``: the name of the signal.
        - ``value``: the value that the wait returns.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/signal",
            {202: Accepted},
            {"workspace": workspace},
            {"name": name, "value": value},
            {"Idempotency-Key": idempotency_key},
        )

    def fork_run(
        self,
        execution_id: str,
        *,
        variables: dict[str, Any],
        new_id: str | None = None,
        at: int | None = None,
        input: Any | UnsetType = UNSET,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> StartedRun:
        """Start a run from the state of another.

        Return a ``StartedRun``.

        - ``execution_id``: the run.
        - ``variables``: variables to set in the fork.
        - ``new_id``: the id of the fork; None: the server chooses one.
        - ``at``: the revision to copy; None: the newest.
        - ``input``: another input for the fork.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/runs/{quote(execution_id, safe='')}/fork",
            {201: StartedRun},
            {"workspace": workspace},
            {"variables": variables, "new_id": new_id, "at": at, "input": input},
            {"Idempotency-Key": idempotency_key},
        )

    def get_bulk(self, bulk_id: str, *, workspace: str | None = None) -> BulkReport:
        """Return how far a bulk action is.

        - ``bulk_id``: the bulk operation.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", f"/bulk/{quote(bulk_id, safe='')}", {200: BulkReport}, {"workspace": workspace}, None, {})

    def abort_bulk(self, bulk_id: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> BulkReport:
        """Begin with no further run of a bulk action; what was done stays done.

        Return a ``BulkReport``.

        - ``bulk_id``: the bulk operation.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/bulk/{quote(bulk_id, safe='')}/abort",
            {202: BulkReport},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def bulk_runs(
        self,
        *,
        action: Literal["cancel", "retry", "pause", "resume", "fork", "delete_payloads", "delete"],
        ids: list[str],
        filter: str = "",
        hash: str | None = None,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> BulkReport:
        """Act on the runs that match: cancel, retry, pause, resume, fork or delete; without a hash, only say which.

        Return a ``BulkReport``.

        - ``action``: what to do with the runs. ``fork`` starts a run from the newest state of each; the two that delete need
          the role admin.
        - ``ids``: these runs, instead of those that match a filter.
        - ``filter``: terms such as ``status:FAILED workflow:checkout``.
        - ``hash``: what a dry run returned; without it, this is a dry run.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            "/bulk",
            {200: BulkReport, 202: BulkReport},
            {"workspace": workspace},
            {"action": action, "ids": ids, "filter": filter, "hash": hash},
            {"Idempotency-Key": idempotency_key},
        )

    def list_errors(
        self,
        *,
        status: Literal["open", "resolved", "ignored"] | None = None,
        failures: int = 1000,
        limit: int = 50,
        cursor: str | None = None,
        workspace: str | None = None,
    ) -> Page[ErrorGroup]:
        """Return the groups of failed runs, the one that failed last first.

        - ``status``: list only groups with this status.
        - ``failures``: how many of the newest failed runs are grouped.
        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/errors",
            {200: Page[ErrorGroup]},
            {"status": status, "failures": failures, "limit": limit, "cursor": cursor, "workspace": workspace},
            None,
            {},
        )

    def get_error_group(self, fingerprint: str, *, failures: int = 1000, workspace: str | None = None) -> ErrorGroup:
        """Return a group of failed runs.

        - ``fingerprint``: the fingerprint of the group.
        - ``failures``: how many of the newest failed runs are grouped.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/errors/{quote(fingerprint, safe='')}",
            {200: ErrorGroup},
            {"failures": failures, "workspace": workspace},
            None,
            {},
        )

    def resolve_error_group(
        self, fingerprint: str, *, reason: str = "", idempotency_key: str | None = None, workspace: str | None = None
    ) -> ErrorGroup:
        """Call a group solved; the next failure of its kind opens it again.

        Return an ``ErrorGroup``.

        - ``fingerprint``: the fingerprint of the group.
        - ``reason``: the reason, for people who look later.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/errors/{quote(fingerprint, safe='')}/resolve",
            {200: ErrorGroup},
            {"workspace": workspace},
            {"reason": reason},
            {"Idempotency-Key": idempotency_key},
        )

    def ignore_error_group(
        self,
        fingerprint: str,
        *,
        until: datetime | None = None,
        more: int | None = None,
        version: int | None = None,
        reason: str = "",
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> ErrorGroup:
        """Ignore a group until a moment, a number of failures or a version.

        Return an ``ErrorGroup``.

        - ``fingerprint``: the fingerprint of the group.
        - ``until``: the moment at which it opens again.
        - ``more``: after more than so many further failures.
        - ``version``: with a failure of this version of its workflow, or a newer one.
        - ``reason``: the reason, for people who look later.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/errors/{quote(fingerprint, safe='')}/ignore",
            {200: ErrorGroup},
            {"workspace": workspace},
            {"until": until, "more": more, "version": version, "reason": reason},
            {"Idempotency-Key": idempotency_key},
        )

    def reopen_error_group(
        self, fingerprint: str, *, idempotency_key: str | None = None, workspace: str | None = None
    ) -> ErrorGroup:
        """Open a group that was resolved or ignored.

        Return an ``ErrorGroup``.

        - ``fingerprint``: the fingerprint of the group.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/errors/{quote(fingerprint, safe='')}/reopen",
            {200: ErrorGroup},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def retry_error_group(
        self, fingerprint: str, *, idempotency_key: str | None = None, workspace: str | None = None
    ) -> RetriedGroup:
        """Retry every run of a group at the step that failed.

        Return a ``RetriedGroup``.

        - ``fingerprint``: the fingerprint of the group.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/errors/{quote(fingerprint, safe='')}/retry",
            {200: RetriedGroup},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def list_items(
        self,
        *,
        filter: str = "",
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[ItemSummary]:
        """Return a page of items, newest first.

        - ``filter``: terms such as ``status:FAILED queue:mail``.
        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items that match, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/queue/items",
            {200: Page[ItemSummary]},
            {"filter": filter, "limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def enqueue_item(
        self,
        *,
        workflow: str,
        input: Any | UnsetType = UNSET,
        queue: str = "default",
        priority: int = 0,
        key: str | None = None,
        singleton: bool | str | None = None,
        debounce_ms: int | None = None,
        delay_ms: int | None = None,
        run_at: datetime | None = None,
        execution_id: str | None = None,
        max_attempts: int = 3,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> EnqueuedItem:
        """Request a run.

        Return an ``EnqueuedItem``.

        - ``workflow``: the name of a workflow function of the server, or of a stored definition.
        - ``input``: without it, the workflow's parameters take their defaults.
        - ``queue``: the named queue.
        - ``priority``: items with a higher priority start first.
        - ``key``: the same key and request again is the same item.
        - ``singleton``: true (per workflow) or a shared name: while an item of it has not ended, that item is returned.
        - ``debounce_ms``: a waiting item takes the newer input and waits again for that long.
        - ``delay_ms``: start no earlier than this time from now.
        - ``run_at``: start no earlier than this moment.
        - ``execution_id``: an id of your own for the run; the same id again is the same item.
        - ``max_attempts``: how many times the item may be tried to start.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            "/queue/items",
            {202: EnqueuedItem},
            {"workspace": workspace},
            {
                "workflow": workflow,
                "input": input,
                "queue": queue,
                "priority": priority,
                "key": key,
                "singleton": singleton,
                "debounce_ms": debounce_ms,
                "delay_ms": delay_ms,
                "run_at": run_at,
                "execution_id": execution_id,
                "max_attempts": max_attempts,
            },
            {"Idempotency-Key": idempotency_key},
        )

    def get_item(self, item_id: str, *, workspace: str | None = None) -> ItemSummary:
        """Return an item.

        - ``item_id``: the item.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", f"/queue/items/{quote(item_id, safe='')}", {200: ItemSummary}, {"workspace": workspace}, None, {})

    def explain_item(self, item_id: str, *, workspace: str | None = None) -> WaitingReason:
        """Return why an item waits.

        - ``item_id``: the item.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/queue/items/{quote(item_id, safe='')}/why", {200: WaitingReason}, {"workspace": workspace}, None, {}
        )

    def cancel_item(self, item_id: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> ItemSummary:
        """Cancel an item.

        Return an ``ItemSummary``.

        - ``item_id``: the item.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/queue/items/{quote(item_id, safe='')}/cancel",
            {202: ItemSummary},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def redrive_item(self, item_id: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> EnqueuedItem:
        """Run a failed or cancelled item again.

        Return an ``EnqueuedItem``.

        - ``item_id``: the item.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/queue/items/{quote(item_id, safe='')}/redrive",
            {202: EnqueuedItem},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def list_lanes(self, *, workspace: str | None = None) -> Page[LaneStats]:
        """Return what waits and runs in each queue.

        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", "/queue/lanes", {200: Page[LaneStats]}, {"workspace": workspace}, None, {})

    def get_demand(self, *, workspace: str | None = None) -> Demand:
        """Return how much work there is.

        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", "/queue/demand", {200: Demand}, {"workspace": workspace}, None, {})

    def list_workers(self, *, workspace: str | None = None) -> Page[WorkerPresence]:
        """Return the workers.

        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", "/workers", {200: Page[WorkerPresence]}, {"workspace": workspace}, None, {})

    def list_worker_leases(self, worker: str, *, workspace: str | None = None) -> Page[LeasedRun]:
        """Return the runs that a worker has.

        - ``worker``: the worker, as the list of workers names it.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/workers/{quote(worker, safe='')}/leases", {200: Page[LeasedRun]}, {"workspace": workspace}, None, {}
        )

    def drain_worker(self, worker: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> WorkerPresence:
        """Ask a worker to take nothing more and to hand back what it runs, at its next heartbeat.

        Return a ``WorkerPresence``.

        - ``worker``: the worker, as the list of workers names it.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/workers/{quote(worker, safe='')}/drain",
            {202: WorkerPresence},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def resume_worker(self, worker: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> WorkerPresence:
        """Ask a draining worker to take work again.

        Return a ``WorkerPresence``.

        - ``worker``: the worker, as the list of workers names it.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/workers/{quote(worker, safe='')}/resume",
            {202: WorkerPresence},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def mark_worker_dead(
        self, worker: str, *, force: bool = False, idempotency_key: str | None = None, workspace: str | None = None
    ) -> ReleasedRuns:
        """Release the runs of a worker that is gone, so that others take them now.

        Return a ``ReleasedRuns``.

        - ``worker``: the worker, as the list of workers names it.
        - ``force``: true for a worker whose heartbeat still comes.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/workers/{quote(worker, safe='')}/mark_dead",
            {200: ReleasedRuns},
            {"workspace": workspace},
            {"force": force},
            {"Idempotency-Key": idempotency_key},
        )

    def get_queue(self, queue: str, *, workspace: str | None = None) -> QueueSettings:
        """Return the settings of a queue.

        - ``queue``: the name of the queue.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", f"/queues/{quote(queue, safe='')}", {200: QueueSettings}, {"workspace": workspace}, None, {})

    def put_queue(
        self,
        queue: str,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate_per_second: float | UnsetType | None = UNSET,
        if_match: str | None = None,
        if_none_match: str | None = None,
        workspace: str | None = None,
    ) -> QueueSettings:
        """Set limits of a queue.

        Return a ``QueueSettings``.

        - ``queue``: the name of the queue.
        - ``concurrency``: how many of its items run at once.
        - ``rate_per_second``: how many of its items start per second.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``if_none_match``: ``*`` to do it only if there is none yet.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/queues/{quote(queue, safe='')}",
            {200: QueueSettings},
            {"workspace": workspace},
            {"concurrency": concurrency, "rate_per_second": rate_per_second},
            {"If-Match": if_match, "If-None-Match": if_none_match},
        )

    def pause_queue(self, queue: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> QueueSettings:
        """Start no more items of a queue.

        Return a ``QueueSettings``.

        - ``queue``: the name of the queue.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/queues/{quote(queue, safe='')}/pause",
            {200: QueueSettings},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def resume_queue(self, queue: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> QueueSettings:
        """Start items of a queue again.

        Return a ``QueueSettings``.

        - ``queue``: the name of the queue.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/queues/{quote(queue, safe='')}/resume",
            {200: QueueSettings},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def list_schedules(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[ScheduleSummary]:
        """Return the schedules of the workspace.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/schedules",
            {200: Page[ScheduleSummary]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def get_schedule(self, name: str, *, workspace: str | None = None) -> ScheduleSummary:
        """Return a schedule.

        - ``name``: the name of what the call is about.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", f"/schedules/{quote(name, safe='')}", {200: ScheduleSummary}, {"workspace": workspace}, None, {})

    def put_schedule(
        self,
        name: str,
        *,
        workflow: str,
        input: Any | UnsetType = UNSET,
        cron: str | None = None,
        zone: str | None = None,
        every_ms: int | None = None,
        at: datetime | None = None,
        catch_up: Literal["none", "last", "all"] = "none",
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 3,
        if_match: str | None = None,
        if_none_match: str | None = None,
        workspace: str | None = None,
    ) -> ScheduleSummary:
        """Create or replace a schedule.

        Return a ``ScheduleSummary``.

        - ``name``: the name of what the call is about.
        - ``workflow``: the name of a workflow function of the server, or of a stored definition.
        - ``input``: without it, the workflow's parameters take their defaults.
        - ``cron``: five or six fields, or ``@daily`` and the like.
        - ``zone``: the time zone of ``cron``, such as ``Europe/Berlin``; None: UTC.
        - ``every_ms``: an interval.
        - ``at``: one moment.
        - ``catch_up``: which ticks to fire that were missed while no worker ran.
        - ``queue``: the named queue of its items.
        - ``priority``: items with a higher priority start first.
        - ``max_attempts``: how many times an item may be tried to start.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``if_none_match``: ``*`` to do it only if there is none yet.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/schedules/{quote(name, safe='')}",
            {200: ScheduleSummary},
            {"workspace": workspace},
            {
                "workflow": workflow,
                "input": input,
                "cron": cron,
                "zone": zone,
                "every_ms": every_ms,
                "at": at,
                "catch_up": catch_up,
                "queue": queue,
                "priority": priority,
                "max_attempts": max_attempts,
            },
            {"If-Match": if_match, "If-None-Match": if_none_match},
        )

    def delete_schedule(self, name: str, *, if_match: str | None = None, workspace: str | None = None) -> None:
        """Delete a schedule.

        - ``name``: the name of what the call is about.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call(
            "DELETE", f"/schedules/{quote(name, safe='')}", {204: None}, {"workspace": workspace}, None, {"If-Match": if_match}
        )

    def pause_schedule(self, name: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> ScheduleSummary:
        """Fire no more ticks.

        Return a ``ScheduleSummary``.

        - ``name``: the name of what the call is about.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/schedules/{quote(name, safe='')}/pause",
            {200: ScheduleSummary},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def resume_schedule(self, name: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> ScheduleSummary:
        """Fire ticks again.

        Return a ``ScheduleSummary``.

        - ``name``: the name of what the call is about.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/schedules/{quote(name, safe='')}/resume",
            {200: ScheduleSummary},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def run_schedule(self, name: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> EnqueuedItem:
        """Enqueue one item now.

        Return an ``EnqueuedItem``.

        - ``name``: the name of what the call is about.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/schedules/{quote(name, safe='')}/run",
            {202: EnqueuedItem},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def backfill_schedule(
        self, name: str, *, start: datetime, end: datetime, idempotency_key: str | None = None, workspace: str | None = None
    ) -> Page[EnqueuedItem]:
        """Enqueue an item for every tick of a span.

        Return a page of ``EnqueuedItem``.

        - ``name``: the name of what the call is about.
        - ``start``: the first moment.
        - ``end``: the last moment.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/schedules/{quote(name, safe='')}/backfill",
            {202: Page[EnqueuedItem]},
            {"workspace": workspace},
            {"start": start, "end": end},
            {"Idempotency-Key": idempotency_key},
        )

    def list_ticks(self, name: str, *, start: datetime, end: datetime, workspace: str | None = None) -> Page[datetime]:
        """Return the ticks of a span: what a backfill would enqueue.

        - ``name``: the name of what the call is about.
        - ``start``: the first moment.
        - ``end``: the last moment.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/schedules/{quote(name, safe='')}/ticks",
            {200: Page[datetime]},
            {"start": start, "end": end, "workspace": workspace},
            None,
            {},
        )

    def list_next_ticks(self, name: str, *, count: int = 5, workspace: str | None = None) -> Page[datetime]:
        """Return the next moments at which a schedule fires.

        - ``name``: the name of what the call is about.
        - ``count``: how many moments.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/schedules/{quote(name, safe='')}/next",
            {200: Page[datetime]},
            {"count": count, "workspace": workspace},
            None,
            {},
        )

    def list_workflows(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[WorkflowView]:
        """Return the workflows that can be started here: functions of this server, and stored definitions.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/workflows",
            {200: Page[WorkflowView]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def list_definitions(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[DefinitionSummary]:
        """Return the stored definitions.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/definitions",
            {200: Page[DefinitionSummary]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def get_definition(self, name: str, *, version: int | None = None, workspace: str | None = None) -> DefinitionView:
        """Return a definition.

        - ``name``: the name of what the call is about.
        - ``version``: the version; None: the newest.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/definitions/{quote(name, safe='')}",
            {200: DefinitionView},
            {"version": version, "workspace": workspace},
            None,
            {},
        )

    def draw_definition(self, name: str, *, version: int | None = None, workspace: str | None = None) -> bytes:
        """Return a picture of a definition.

        - ``name``: the name of what the call is about.
        - ``version``: the version; None: the newest.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/definitions/{quote(name, safe='')}/drawing", {}, {"version": version, "workspace": workspace}, None, {}
        )

    def check_definition(self, name: str, *, version: int | None = None, workspace: str | None = None) -> CheckResult:
        """Check a stored definition: whether every state that it can reach ends properly.

        Return a ``CheckResult``.

        - ``name``: the name of what the call is about.
        - ``version``: the version; None: the newest.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/definitions/{quote(name, safe='')}/check",
            {200: CheckResult},
            {"version": version, "workspace": workspace},
            None,
            {},
        )

    def put_definition(self, name: str, *, document: dict[str, Any] | str, workspace: str | None = None) -> DefinitionView:
        """Store a definition.

        Return a ``DefinitionView``.

        - ``name``: the name of what the call is about.
        - ``document``: a JSON object, or YAML or JSON text.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/definitions/{quote(name, safe='')}",
            {200: DefinitionView},
            {"workspace": workspace},
            {"document": document},
            {},
        )

    def pause_definition(self, name: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> None:
        """Let no version of a workflow be started.

        - ``name``: the name of what the call is about.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call(
            "POST",
            f"/definitions/{quote(name, safe='')}/pause",
            {204: None},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def activate_definition(self, name: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> None:
        """Let a workflow be started again.

        - ``name``: the name of what the call is about.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call(
            "POST",
            f"/definitions/{quote(name, safe='')}/activate",
            {204: None},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def list_workspaces(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[Workspace]:
        """Return the workspaces that the caller reaches.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/workspaces",
            {200: Page[Workspace]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def get_workspace(self, workspace_id: str, *, workspace: str | None = None) -> Workspace:
        """Return a workspace.

        - ``workspace_id``: the workspace.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/workspaces/{quote(workspace_id, safe='')}", {200: Workspace}, {"workspace": workspace}, None, {}
        )

    def put_workspace(
        self,
        workspace_id: str,
        *,
        tier: str | None = None,
        is_paused: bool | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        workspace: str | None = None,
    ) -> Workspace:
        """Create or change a workspace.

        Return a ``Workspace``.

        - ``workspace_id``: the workspace.
        - ``tier``: the name of the tier that sets its limits.
        - ``is_paused``: true to start none of its items.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``if_none_match``: ``*`` to do it only if there is none yet.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/workspaces/{quote(workspace_id, safe='')}",
            {200: Workspace},
            {"workspace": workspace},
            {"tier": tier, "is_paused": is_paused},
            {"If-Match": if_match, "If-None-Match": if_none_match},
        )

    def pause_workspace(self, workspace_id: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> Workspace:
        """Start no more items of a workspace.

        Return a ``Workspace``.

        - ``workspace_id``: the workspace.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/workspaces/{quote(workspace_id, safe='')}/pause",
            {200: Workspace},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def resume_workspace(self, workspace_id: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> Workspace:
        """Start items of a workspace again.

        Return a ``Workspace``.

        - ``workspace_id``: the workspace.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/workspaces/{quote(workspace_id, safe='')}/resume",
            {200: Workspace},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def get_usage(self, workspace_id: str, *, workspace: str | None = None) -> Usage:
        """Return what a workspace uses of the limits of its tier.

        - ``workspace_id``: the workspace.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/workspaces/{quote(workspace_id, safe='')}/usage", {200: Usage}, {"workspace": workspace}, None, {}
        )

    def put_override(
        self,
        workspace_id: str,
        limit: str,
        *,
        value: int | float | None,
        ttl_ms: int,
        reason: str = "",
        if_match: str | None = None,
        workspace: str | None = None,
    ) -> Workspace:
        """Give a workspace another limit than its tier's for a while; it ends by itself.

        Return a ``Workspace``.

        - ``workspace_id``: the workspace.
        - ``limit``: the name of the limit.
        - ``value``: None: no limit.
        - ``ttl_ms``: how long the override holds.
        - ``reason``: the reason, for people who look at the workspace.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/workspaces/{quote(workspace_id, safe='')}/overrides/{quote(limit, safe='')}",
            {200: Workspace},
            {"workspace": workspace},
            {"value": value, "ttl_ms": ttl_ms, "reason": reason},
            {"If-Match": if_match},
        )

    def delete_override(
        self, workspace_id: str, limit: str, *, if_match: str | None = None, workspace: str | None = None
    ) -> Workspace:
        """End the override of a limit now.

        Return a ``Workspace``.

        - ``workspace_id``: the workspace.
        - ``limit``: the name of the limit.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "DELETE",
            f"/workspaces/{quote(workspace_id, safe='')}/overrides/{quote(limit, safe='')}",
            {200: Workspace},
            {"workspace": workspace},
            None,
            {"If-Match": if_match},
        )

    def list_tiers(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[Tier]:
        """Return the tiers.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", "/tiers", {200: Page[Tier]}, {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace}, None, {}
        )

    def get_tier(self, tier: str, *, workspace: str | None = None) -> Tier:
        """Return a tier.

        - ``tier``: the name of the tier.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", f"/tiers/{quote(tier, safe='')}", {200: Tier}, {"workspace": workspace}, None, {})

    def put_tier(
        self,
        tier: str,
        *,
        concurrency: int | UnsetType | None = UNSET,
        weight: float | UnsetType = UNSET,
        rate_per_second: float | UnsetType | None = UNSET,
        queue_depth: int | UnsetType | None = UNSET,
        state_bytes: int | UnsetType | None = UNSET,
        retention_seconds: float | UnsetType | None = UNSET,
        child_concurrency: int | UnsetType | None = UNSET,
        state_keys: int | UnsetType | None = UNSET,
        workflow_state_bytes: int | UnsetType | None = UNSET,
        workflow_state_keys: int | UnsetType | None = UNSET,
        if_match: str | None = None,
        if_none_match: str | None = None,
        workspace: str | None = None,
    ) -> Tier:
        """Create or change a tier.

        Return a ``Tier``.

        - ``tier``: the name of the tier.
        - ``concurrency``: how many runs of a workspace run at once.
        - ``weight``: the workspace's share when workers are scarce.
        - ``rate_per_second``: how many items of a workspace start per second.
        - ``queue_depth``: how many items of a workspace may wait.
        - ``state_bytes``: how large a workspace's scoped state may be.
        - ``retention_seconds``: how long ended items are kept.
        - ``child_concurrency``: how many children run at once below one root.
        - ``state_keys``: how many keys a workspace's scoped state may have.
        - ``workflow_state_bytes``: how large the scoped state of each workflow in a workspace may be.
        - ``workflow_state_keys``: how many keys the scoped state of each workflow in a workspace may have.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``if_none_match``: ``*`` to do it only if there is none yet.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/tiers/{quote(tier, safe='')}",
            {200: Tier},
            {"workspace": workspace},
            {
                "concurrency": concurrency,
                "weight": weight,
                "rate_per_second": rate_per_second,
                "queue_depth": queue_depth,
                "state_bytes": state_bytes,
                "retention_seconds": retention_seconds,
                "child_concurrency": child_concurrency,
                "state_keys": state_keys,
                "workflow_state_bytes": workflow_state_bytes,
                "workflow_state_keys": workflow_state_keys,
            },
            {"If-Match": if_match, "If-None-Match": if_none_match},
        )

    def list_tokens(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[AccessToken]:
        """Return the access tokens of the workspace.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/access_tokens",
            {200: Page[AccessToken]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def create_token(
        self,
        *,
        name: str,
        role: Role = Role.VIEWER,
        ttl_ms: int | None = None,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> CreatedToken:
        """Create an access token of the workspace.

        Return a ``CreatedToken``.

        - ``name``: a name for people, which the audit shows.
        - ``role``: what its holder may do.
        - ``ttl_ms``: after this time it is refused; None: it lasts until it is revoked.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            "/access_tokens",
            {201: CreatedToken},
            {"workspace": workspace},
            {"name": name, "role": role, "ttl_ms": ttl_ms},
            {"Idempotency-Key": idempotency_key},
        )

    def revoke_token(self, token_id: str, *, workspace: str | None = None) -> None:
        """Revoke an access token of the workspace.

        - ``token_id``: the id of the token.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call("DELETE", f"/access_tokens/{quote(token_id, safe='')}", {204: None}, {"workspace": workspace}, None, {})

    def list_audit(self, *, limit: int = 50, cursor: str | None = None, workspace: str | None = None) -> Page[AuditEntry]:
        """Return a page of the audit, newest first.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", "/audit", {200: Page[AuditEntry]}, {"limit": limit, "cursor": cursor, "workspace": workspace}, None, {}
        )

    def list_retention(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[RetentionPolicy]:
        """Return the retention policies of the tiers.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/retention",
            {200: Page[RetentionPolicy]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def plan_retention(self, *, within_ms: int = 0, limit: int = 100, workspace: str | None = None) -> RetentionPlan:
        """Return what retention will remove, and when; nothing is removed.

        - ``within_ms``: how far to look ahead; 0: what the next round removes.
        - ``limit``: how many runs to list; all are counted.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/retention/plan",
            {200: RetentionPlan},
            {"within_ms": within_ms, "limit": limit, "workspace": workspace},
            None,
            {},
        )

    def list_tombstones(self, *, limit: int = 50, cursor: str | None = None, workspace: str | None = None) -> Page[Tombstone]:
        """Return what is left of the runs of the workspace that retention removed.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", "/tombstones", {200: Page[Tombstone]}, {"limit": limit, "cursor": cursor, "workspace": workspace}, None, {}
        )

    def get_tombstone(self, execution_id: str, *, workspace: str | None = None) -> Tombstone:
        """Return what is left of a run that retention removed.

        - ``execution_id``: the run.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/tombstones/{quote(execution_id, safe='')}", {200: Tombstone}, {"workspace": workspace}, None, {}
        )

    def list_scopes(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[ScopeView]:
        """Return the scopes of the workspace that hold something.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/state",
            {200: Page[ScopeView]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def list_keys(
        self, scope: str, *, prefix: str = "", limit: int = 50, cursor: str | None = None, workspace: str | None = None
    ) -> Page[str]:
        """Return a page of keys, sorted.

        - ``scope``: the kind and the names of the scope, such as ``workspace`` or ``custom:prices``.
        - ``prefix``: list only keys that begin with this.
        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/state/{quote(scope, safe='')}/keys",
            {200: Page[str]},
            {"prefix": prefix, "limit": limit, "cursor": cursor, "workspace": workspace},
            None,
            {},
        )

    def get_entry(self, scope: str, key: str, *, workspace: str | None = None) -> EntryView:
        """Return a key with its value.

        - ``scope``: the kind and the names of the scope, such as ``workspace`` or ``custom:prices``.
        - ``key``: the key.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/state/{quote(scope, safe='')}/keys/{quote(key, safe='')}",
            {200: EntryView},
            {"workspace": workspace},
            None,
            {},
        )

    def put_entry(
        self,
        scope: str,
        key: str,
        *,
        value: Any,
        ttl_ms: int | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        workspace: str | None = None,
    ) -> EntryView:
        """Set a key.

        Return an ``EntryView``.

        - ``scope``: the kind and the names of the scope, such as ``workspace`` or ``custom:prices``.
        - ``key``: the key.
        - ``value``: the value.
        - ``ttl_ms``: after this time the key is gone; None keeps it for ever.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``if_none_match``: ``*`` to do it only if there is none yet.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/state/{quote(scope, safe='')}/keys/{quote(key, safe='')}",
            {200: EntryView},
            {"workspace": workspace},
            {"value": value, "ttl_ms": ttl_ms},
            {"If-Match": if_match, "If-None-Match": if_none_match},
        )

    def delete_entry(self, scope: str, key: str, *, if_match: str | None = None, workspace: str | None = None) -> None:
        """Delete a key.

        - ``scope``: the kind and the names of the scope, such as ``workspace`` or ``custom:prices``.
        - ``key``: the key.
        - ``if_match``: the ``ETag`` that a GET returned, with its double quotes, or ``*`` for any.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call(
            "DELETE",
            f"/state/{quote(scope, safe='')}/keys/{quote(key, safe='')}",
            {204: None},
            {"workspace": workspace},
            None,
            {"If-Match": if_match},
        )

    def increment_entry(
        self, scope: str, key: str, *, by: int | float = 1, idempotency_key: str | None = None, workspace: str | None = None
    ) -> Sum:
        """Add to a number.

        Return a ``Sum``.

        - ``scope``: the kind and the names of the scope, such as ``workspace`` or ``custom:prices``.
        - ``key``: the key.
        - ``by``: what to add; a negative number subtracts.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/state/{quote(scope, safe='')}/keys/{quote(key, safe='')}/increment",
            {200: Sum},
            {"workspace": workspace},
            {"by": by},
            {"Idempotency-Key": idempotency_key},
        )

    def list_conversations(
        self,
        *,
        user: str,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[ConversationSummary]:
        """Return a user's conversations.

        - ``user``: the user whose conversations to list.
        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count them, too.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/conversations",
            {200: Page[ConversationSummary]},
            {"user": user, "limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def get_conversation(self, conversation_id: str, *, workspace: str | None = None) -> ConversationView:
        """Return the state of a conversation.

        - ``conversation_id``: the conversation.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET", f"/conversations/{quote(conversation_id, safe='')}", {200: ConversationView}, {"workspace": workspace}, None, {}
        )

    def put_conversation(
        self, conversation_id: str, *, state: dict[str, Any], user: str | None = None, workspace: str | None = None
    ) -> ConversationView:
        """Save the state of a conversation.

        Return a ``ConversationView``.

        - ``conversation_id``: the conversation.
        - ``state``: the new state.
        - ``user``: the user in whose list the conversation appears.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/conversations/{quote(conversation_id, safe='')}",
            {200: ConversationView},
            {"workspace": workspace},
            {"state": state, "user": user},
            {},
        )

    def delete_conversation(self, conversation_id: str, *, workspace: str | None = None) -> None:
        """Delete a conversation with its history.

        - ``conversation_id``: the conversation.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call("DELETE", f"/conversations/{quote(conversation_id, safe='')}", {204: None}, {"workspace": workspace}, None, {})

    def list_turns(self, conversation_id: str, *, limit: int = 50, workspace: str | None = None) -> Page[Turn]:
        """Return the last turns of a conversation, in order.

        - ``conversation_id``: the conversation.
        - ``limit``: how many turns.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            f"/conversations/{quote(conversation_id, safe='')}/turns",
            {200: Page[Turn]},
            {"limit": limit, "workspace": workspace},
            None,
            {},
        )

    def acquire_lock(
        self,
        lock: str,
        *,
        ttl_ms: int = 30000,
        holder: str | None = None,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> RemoteHold:
        """Acquire a lock.

        Return a ``RemoteHold``.

        - ``lock``: the name of the lock.
        - ``ttl_ms``: how long it is held unless it is renewed.
        - ``holder``: unique to this acquisition, which makes a retry safe; None: the server chooses one.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/locks/{quote(lock, safe='')}/acquire",
            {200: RemoteHold},
            {"workspace": workspace},
            {"ttl_ms": ttl_ms, "holder": holder},
            {"Idempotency-Key": idempotency_key},
        )

    def renew_lock(
        self,
        lock: str,
        *,
        holder: str,
        fence: int,
        ttl_ms: int = 30000,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> RemoteHold:
        """Hold a lock for longer.

        Return a ``RemoteHold``.

        - ``lock``: the name of the lock.
        - ``holder``: as ``acquire_lock`` returned it.
        - ``fence``: as ``acquire_lock`` returned it.
        - ``ttl_ms``: how long it is held from now on.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/locks/{quote(lock, safe='')}/renew",
            {200: RemoteHold},
            {"workspace": workspace},
            {"holder": holder, "fence": fence, "ttl_ms": ttl_ms},
            {"Idempotency-Key": idempotency_key},
        )

    def release_lock(
        self, lock: str, *, holder: str, fence: int, idempotency_key: str | None = None, workspace: str | None = None
    ) -> None:
        """Release a lock.

        - ``lock``: the name of the lock.
        - ``holder``: as ``acquire_lock`` returned it.
        - ``fence``: as ``acquire_lock`` returned it.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call(
            "POST",
            f"/locks/{quote(lock, safe='')}/release",
            {204: None},
            {"workspace": workspace},
            {"holder": holder, "fence": fence},
            {"Idempotency-Key": idempotency_key},
        )

    def list_webhooks(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[WebhookEndpoint]:
        """Return the endpoints of the workspace.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/webhooks",
            {200: Page[WebhookEndpoint]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def get_webhook(self, webhook: str, *, workspace: str | None = None) -> WebhookEndpoint:
        """Return an endpoint.

        - ``webhook``: the name of the endpoint.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", f"/webhooks/{quote(webhook, safe='')}", {200: WebhookEndpoint}, {"workspace": workspace}, None, {})

    def put_webhook(
        self,
        webhook: str,
        *,
        url: str,
        events: tuple[Literal["run.completed", "run.partially_completed", "run.failed", "run.cancelled"], ...] = (
            "run.completed",
            "run.partially_completed",
            "run.failed",
            "run.cancelled",
        ),
        workspace: str | None = None,
    ) -> WebhookView:
        """Create or change an endpoint; a change enables a disabled one.

        Return a ``WebhookView``.

        - ``webhook``: the name of the endpoint.
        - ``url``: where messages go: an ``https://`` address of a public host.
        - ``events``: the endings that send a message.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/webhooks/{quote(webhook, safe='')}",
            {200: WebhookView},
            {"workspace": workspace},
            {"url": url, "events": events},
            {},
        )

    def rotate_webhook(self, webhook: str, *, idempotency_key: str | None = None, workspace: str | None = None) -> WebhookView:
        """Give an endpoint a new secret; for a day messages are signed with both.

        Return a ``WebhookView``.

        - ``webhook``: the name of the endpoint.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/webhooks/{quote(webhook, safe='')}/rotate",
            {200: WebhookView},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def delete_webhook(self, webhook: str, *, workspace: str | None = None) -> None:
        """Delete an endpoint with what waits for it.

        - ``webhook``: the name of the endpoint.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call("DELETE", f"/webhooks/{quote(webhook, safe='')}", {204: None}, {"workspace": workspace}, None, {})

    def list_receivers(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[WebhookReceiver]:
        """Return the addresses of the workspace that take messages.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/webhook_receivers",
            {200: Page[WebhookReceiver]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def put_receiver(self, webhook: str, *, workflow: str, queue: str = "default", workspace: str | None = None) -> ReceiverView:
        """Create or change an address that takes messages, each a request for a run.

        Return a ``ReceiverView``.

        - ``webhook``: the name of the endpoint.
        - ``workflow``: it gets the body of a message as its input.
        - ``queue``: the named queue of its items.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "PUT",
            f"/webhook_receivers/{quote(webhook, safe='')}",
            {200: ReceiverView},
            {"workspace": workspace},
            {"workflow": workflow, "queue": queue},
            {},
        )

    def delete_receiver(self, webhook: str, *, workspace: str | None = None) -> None:
        """Delete an address that takes messages.

        - ``webhook``: the name of the endpoint.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        self._call("DELETE", f"/webhook_receivers/{quote(webhook, safe='')}", {204: None}, {"workspace": workspace}, None, {})

    def list_deliveries(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[WebhookDelivery]:
        """Return the messages that were not accepted yet.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/webhook_deliveries",
            {200: Page[WebhookDelivery]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def replay_delivery(
        self, delivery_id: str, *, idempotency_key: str | None = None, workspace: str | None = None
    ) -> WebhookDelivery:
        """Send a message again now.

        Return a ``WebhookDelivery``.

        - ``delivery_id``: the id of the message.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            f"/webhook_deliveries/{quote(delivery_id, safe='')}/replay",
            {202: WebhookDelivery},
            {"workspace": workspace},
            None,
            {"Idempotency-Key": idempotency_key},
        )

    def list_backups(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        count: Literal["exact", "estimate"] | None = None,
        workspace: str | None = None,
    ) -> Page[BackupSummary]:
        """Return the backups that this server keeps, the oldest first.

        - ``limit``: the size of a page, 1 to 200.
        - ``cursor``: the ``next_cursor`` of the page before; None for the first page.
        - ``count``: count the items, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "GET",
            "/backups",
            {200: Page[BackupSummary]},
            {"limit": limit, "cursor": cursor, "count": count, "workspace": workspace},
            None,
            {},
        )

    def make_backup(self, *, keep: int = 7, idempotency_key: str | None = None, workspace: str | None = None) -> BackupReport:
        """Back the store up while it is in use: what is new since the last backup is added to it.

        Return a ``BackupReport``.

        - ``keep``: how many earlier backups stay.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST", "/backups", {201: BackupReport}, {"workspace": workspace}, {"keep": keep}, {"Idempotency-Key": idempotency_key}
        )

    def check_backup(self, *, workspace: str | None = None) -> BackupVerification:
        """Check the newest backup without restoring it: every checksum, and every receipt.

        Return a ``BackupVerification``.

        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call("GET", "/backups/check", {200: BackupVerification}, {"workspace": workspace}, None, {})

    def migrate_state(
        self,
        *,
        scope: str | None = None,
        workflow: str | None = None,
        to_version: int | None = None,
        is_dry_run: bool = True,
        stop_at_failure: bool = False,
        batch: int = 500,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> MigrationReport:
        """Bring stored values to the version that the code of this server uses: first a dry run, then after a backup.

        Return a ``MigrationReport``.

        - ``scope``: only these scopes, such as ``custom/prices``; None: all.
        - ``workflow``: only the runs of this workflow; None: all.
        - ``to_version``: bring them to this version; None: the one that the code of this server uses.
        - ``is_dry_run``: whether to call the migrations on every value, and write nothing.
        - ``stop_at_failure``: whether to stop at the first value that fails.
        - ``batch``: how many values land in one transaction.
        - ``idempotency_key``: a text of your own, which makes a retry safe: the request is done once.
        - ``workspace``: the workspace, with a token for all of the store.
        """
        return self._call(
            "POST",
            "/migrations/state",
            {200: MigrationReport},
            {"workspace": workspace},
            {
                "scope": scope,
                "workflow": workflow,
                "to_version": to_version,
                "is_dry_run": is_dry_run,
                "stop_at_failure": stop_at_failure,
                "batch": batch,
            },
            {"Idempotency-Key": idempotency_key},
        )
