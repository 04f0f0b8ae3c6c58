"""Routes of runs: start, read, follow, and act on one of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from stepwell.duration import written_seconds
from stepwell.errors import StepwellError
from stepwell.model.access import Role
from stepwell.model.execution_state import Change
from stepwell.model.ids import new_id
from stepwell.model.receipt import Receipt
from stepwell.model.receipt_chain import Verification
from stepwell.model.status import FINAL, Status
from stepwell.model.trace import Trace, TraceLevel
from stepwell.model.value import Value
from stepwell.runtime.progress import Progress
from stepwell.runtime.step_history import StepRecord
from stepwell.state.history import ExecutionSummary
from stepwell.state.request_log import KeptReply
from stepwell.web.authentication import credentials_of
from stepwell.web.events import Event, EventResponse
from stepwell.web.filters import SPAN, parse_filter
from stepwell.web.paging import MOST_COUNTED, Count, Counting, PageQuery, page_reply
from stepwell.web.preconditions import check_if_match
from stepwell.web.problem import HttpProblem
from stepwell.web.route import Call, Page, PageCount, Reply, api_route
from stepwell.web.run_contents import CONTENT_FIELDS, Expanded, expanded, expansions, has_content, input_of, reads_content

__all__ = [
    "ROUTES",
    "RUN_FIELDS",
    "STREAM_FIELDS",
    "Accepted",
    "FoundRuns",
    "check_owned",
    "find_runs",
    "owned_run",
    "preferred_wait",
]

STREAM_FIELDS: dict[str, frozenset[str] | None] = {"status": frozenset(map(str, Status)), "workflow": None}
"""The fields by which streams of runs are filtered."""
RUN_FIELDS = (
    STREAM_FIELDS | {"id": None, "parent": None, "error": None, "tenant": None, "age": SPAN, "duration": SPAN} | CONTENT_FIELDS
)
"""The fields by which runs are filtered; ``id`` and ``error`` are a part of it, and ``tenant`` is a workspace."""
_SCANNED = 2_000
"""Runs that one page looks at, at most, for terms that no index has: the page may be short then, with a cursor for the rest."""
_READ = 500
"""The same if runs have to be read."""
_VERIFIED = 100
"""The same if all receipts of each run have to be read."""
_COUNTED = 1_000
_TICKET_SECONDS = 60
_LONGEST_WITHOUT_TOKEN_SECONDS = 3_600.0
"""How long a stream lasts that was opened by the ticket of a caller without a token, whose session may have ended meanwhile."""
_LARGEST_READ = 1_000
"""Runs that are read from the store at once."""

Revision = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Wait = Annotated[float, Meta(ge=0, le=60)]


class RunList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a list of runs."""

    filter: str = ""
    """Terms such as ``status:FAILED workflow:checkout``."""
    limit: Count = 50
    cursor: str | None = None
    count: Counting | None = None
    """Count the runs that match, too: ``estimate`` a thousand at most, ``exact`` a hundred thousand."""
    expand: str | None = None
    """What to add to each run, with commas: ``item``, ``parent``, ``progress`` or ``steps``. A page has at most 50 runs then."""


class ListedRun(ExecutionSummary, frozen=True, kw_only=True):
    """A run in a list."""

    expanded: Expanded | UnsetType = UNSET
    """What the query names in ``expand``."""


class RunQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to add to a run."""

    expand: str | None = None
    """What to add to the run, with commas: ``item``, ``parent``, ``progress`` or ``steps``."""


class StartRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to start."""

    workflow: Name
    """The name of a workflow function of the server, or of a stored definition."""
    input: Value | UnsetType = UNSET
    """Without it, the workflow's parameters take their defaults."""
    execution_id: Name | None = None
    """An id of your own, which makes a retry safe; null: the server chooses one."""


class PutRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to start under the id in the address."""

    workflow: Name
    """The name of a workflow function of the server, or of a stored definition."""
    input: Value | UnsetType = UNSET
    """Without it, the workflow's parameters take their defaults."""


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was accepted."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    status: Status = Status.PENDING
    """As it was accepted; ask for the run to see how it goes on."""


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """The error of a failed run."""

    kind: str
    message: str
    code: str | None = None


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is now."""

    execution_id: str
    workspace_id: str
    workflow_id: str
    version: int
    status: Status
    revision: int
    created_at: datetime
    updated_at: datetime
    parent_id: str | None = None
    item_id: str | None = None
    """The queue item that it came from."""
    input: Value = None
    output: Value = None
    """The result of a COMPLETED run."""
    error: RunError | None = None
    """Why a FAILED run failed."""
    expanded: Expanded | UnsetType = UNSET
    """What the query names in ``expand``."""


class ReceiptView(msgspec.Struct, frozen=True, kw_only=True):
    """Proof of a commit."""

    execution_id: str
    revision: int
    commit_id: str
    committed_at: datetime
    before: str
    after: str
    previous: str
    digest: str
    mutations: list[Value]


class SendSignal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal."""

    name: Name
    """The name of the signal."""
    value: Value = None
    """The value that the wait returns."""


class ForkRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From where to fork a run, and what to change in the fork."""

    new_id: Name | None = None
    """The id of the fork; null: the server chooses one."""
    at: Revision | None = None
    """The revision to copy; null: the newest."""
    input: Value | UnsetType = UNSET
    """Another input for the fork."""
    variables: dict[str, Value] = {}
    """Variables to set in the fork."""


class CancelRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a run to cancel."""

    scope: Name | None = None
    """A cancel scope of a declared workflow; null: all of the run."""


class CancelStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step of a run to cancel."""

    step: Name
    """Its key, such as ``resize[3]``."""


class PauseRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why to pause a run."""

    reason: Annotated[str, Meta(max_length=1_000)] = ""
    """Why, for the people who see that it waits."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """An action that was accepted and goes on by itself."""

    execution_id: str
    action: str


class StateQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At which revision to read."""

    at: Revision | None = None
    """The revision; null: the newest."""


class ResultQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time to wait for the end."""

    wait: Wait = 0
    """How many seconds to wait for the end."""


class DiffQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two revisions of a run."""

    a: Revision
    """The revision to compare from."""
    b: Revision
    """The revision to compare with."""


class TraceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The detail of a trace."""

    level: TraceLevel = "full"
    """``full``, ``min`` without times and values, or ``none``."""


class EventQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The event that a stream continues after, and the time to wait for events without a stream."""

    after: Annotated[int, Meta(ge=-1)] | None = None
    """The id of the last event that the caller has."""
    wait: Wait = 20
    """How many seconds to wait for events, without a stream."""
    filter: str = ""
    """Terms such as ``status:FAILED workflow:checkout``."""
    ticket: Annotated[str, Meta(max_length=200)] | None = None
    """What ``create_event_ticket`` returned, in place of a token, for a browser's ``EventSource``. It opens one stream."""


class EventTicket(msgspec.Struct, frozen=True, kw_only=True):
    """A ticket for one stream of events."""

    ticket: str
    """Pass it as ``ticket`` to open a stream; the next connection needs another one."""
    ttl_ms: int
    """How long it can be used."""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run at a revision."""

    execution_id: str
    revision: int
    status: Status
    context: Value
    variables: Value
    trigger: Value
    step_count: int


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events for a client that reads no stream."""

    items: list[Event]
    after: int | None
    """Pass it as ``after`` for what follows."""
    is_ended: bool
    """Whether nothing follows."""


async def owned_run(call: Call) -> ExecutionSummary:
    """Return the summary of the run that the address names."""
    return await check_owned(call, call.path["execution_id"])


async def check_owned(call: Call, execution_id: str) -> ExecutionSummary:
    """Return the summary of a run.

    Raise ``NotFound``, in the same words, for one that does not exist and one of another workspace.
    """
    return await call.well.executions.get(execution_id, workspace=call.workspace)


async def view_of(call: Call, summary: ExecutionSummary) -> RunView:
    """Return a run with its input and result."""
    state = await call.well.load(summary.execution_id)
    result: dict[str, Any] = state.result or {}
    error: dict[str, Any] | None = result.get("error")
    failure = None
    if error is not None:
        failure = RunError(kind=str(error.get("kind")), message=str(error.get("message")), code=error.get("code"))
    return RunView(
        execution_id=summary.execution_id,
        workspace_id=summary.workspace_id,
        workflow_id=summary.workflow_id,
        version=summary.version,
        status=state.status,
        revision=state.revision,
        created_at=summary.created_at,
        updated_at=summary.updated_at,
        parent_id=summary.parent_id,
        item_id=state.identity.item_id,
        input=input_of(state.trigger),
        output=result.get("output"),
        error=failure,
    )


def location_of(call: Call, execution_id: str) -> str:
    """Return the address of a run."""
    return f"{call.base}/runs/{quote(execution_id, safe='')}"


async def list_runs(call: Call) -> Reply:
    """Return a page of runs, newest first."""
    query: RunList = call.query
    terms = parse_filter(query.filter, RUN_FIELDS)
    signer, binding = await call.server.signer(), ["runs", call.workspace, terms]
    after = None
    if query.cursor is not None:
        after = msgspec.convert(signer.position(binding, query.cursor), ExecutionSummary)
    names = expansions(query.expand, query.limit)
    found = await find_runs(call, terms, after, query.limit)
    items: list[Any] = found.items
    if names:
        added = await expanded(call, items, names)
        items = [ListedRun(**msgspec.structs.asdict(run), expanded=more) for run, more in zip(items, added, strict=True)]
    count = None if query.count is None else await _counted(call, terms, query.count)
    return page_reply(call, items, None if found.next_after is None else signer.cursor(binding, found.next_after), count)


async def _counted(call: Call, terms: Mapping[str, str], how: Counting) -> PageCount:
    """Return how many runs match, without holding more than a page of them."""
    value, after, most = 0, None, MOST_COUNTED[how]
    looks = 1 if reads_content(terms) or "error" in terms else most // _LARGEST_READ
    for _ in range(looks):
        found = await find_runs(call, terms, after, _LARGEST_READ, scanned=_LARGEST_READ)
        value, after = value + len(found.items), found.next_after
        if after is None:
            return PageCount(value=value, is_exact=True)
    return PageCount(value=value, is_exact=False)


class FoundRuns(msgspec.Struct, frozen=True):
    """Runs that match a filter."""

    items: list[ExecutionSummary]
    next_after: ExecutionSummary | None
    """The run to go on after; None if there is nothing more."""


async def find_runs(
    call: Call, terms: Mapping[str, str], after: ExecutionSummary | None, limit: int, scanned: int = _SCANNED
) -> FoundRuns:
    """Return the runs of the workspace that match, newest first.

    - ``terms``: a parsed filter.
    - ``after``: the last run of the page before, or None.
    - ``limit``: how many to return.
    - ``scanned``: how many to look at.
    """
    workspace = _tenant(call, terms)
    if workspace is None:
        return FoundRuns([], None)
    now = datetime.now(UTC)
    status = terms.get("status") or (str(Status.FAILED) if "error" in terms else None)
    is_read = reads_content(terms)
    if terms.get("has") == "receipt-gap":
        scanned = min(scanned, _VERIFIED)
    elif is_read or "error" in terms:
        scanned = min(scanned, _READ)
    younger = None if "age<" not in terms else now - timedelta(seconds=written_seconds(terms["age<"]))
    if "age>" in terms:
        older = now - timedelta(seconds=written_seconds(terms["age>"]))
        if after is None or after.created_at > older:
            after = _place(older)
    items: list[ExecutionSummary] = []
    looked = 0
    while looked < scanned:
        size = min(max(limit + 1 - len(items), 1) if terms.keys() <= _INDEXED else 200, _LARGEST_READ, scanned - looked)
        page = await call.well.executions.list(
            workspace=workspace, status=status, workflow=terms.get("workflow"), after=after, limit=size
        )
        looked += len(page)
        for each in page:
            if younger is not None and each.created_at < younger:
                return FoundRuns(items, None)
            if (
                _matches(each, terms, now)
                and await _failed_by(call, each, terms.get("error"))
                and (not is_read or await has_content(call, each, terms))
            ):
                if len(items) == limit:
                    return FoundRuns(items, items[-1])
                items.append(each)
            after = each
        if len(page) < size:
            return FoundRuns(items, None)
    return FoundRuns(items, after)


_INDEXED = frozenset(("status", "workflow", "tenant", "age<", "age>"))


def _tenant(call: Call, terms: Mapping[str, str]) -> str | None:
    """Return the workspace that a filter is about; None if the caller may not see it, as if nothing were there."""
    asked = terms.get("tenant", call.workspace)
    return asked if call.identity.workspace in (None, asked) else None


async def _failed_by(call: Call, run: ExecutionSummary, text: str | None) -> bool:
    """Return whether a run failed with this text in its error's class or message, in any case; True without a text."""
    if text is None:
        return True
    failure = await call.well.errors.within(run.workspace_id).failure(run.execution_id)
    return failure is not None and text.casefold() in f"{failure.kind}: {failure.message}".casefold()


def _place(at: datetime) -> ExecutionSummary:
    """Return the place before all runs that began at a moment or earlier."""
    at += timedelta(milliseconds=1)
    return ExecutionSummary("", "", "", 0, Status.PENDING, 0, at, at)


def _matches(run: ExecutionSummary, terms: Mapping[str, str], now: datetime) -> bool:
    seconds = ((run.updated_at if run.status in FINAL else now) - run.created_at).total_seconds()
    return (
        terms.get("id", "") in run.execution_id
        and terms.get("parent", run.parent_id) == run.parent_id
        and ("duration<" not in terms or seconds < written_seconds(terms["duration<"]))
        and ("duration>" not in terms or seconds > written_seconds(terms["duration>"]))
    )


class RunCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of runs that have a status."""

    status: Status
    count: int
    is_exact: bool
    """False if there are more, which were not counted."""


class CountQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which runs to count."""

    workflow: Name | None = None
    """Count only runs of this workflow."""


async def count_runs(call: Call) -> Reply:
    """Return how many runs have each status, up to a thousand."""

    async def counted(status: Status) -> RunCount:
        found = await call.well.executions.list(
            workspace=call.workspace, status=status, workflow=call.query.workflow, limit=_COUNTED + 1
        )
        return RunCount(status=status, count=min(len(found), _COUNTED), is_exact=len(found) <= _COUNTED)

    return Reply(Page(items=list(await asyncio.gather(*map(counted, Status)))))


_HOURS = 24


class RunHours(msgspec.Struct, frozen=True, kw_only=True):
    """The number of runs that began in each of the last 24 hours, the oldest hour first, by the status that they have now."""

    counts: dict[Status, list[int]]
    is_exact: bool
    """False if there are more: only the newest thousand were counted."""


async def count_hours(call: Call) -> Reply:
    """Return how many runs began in each of the last 24 hours, up to a thousand."""
    found = await call.well.executions.list(workspace=call.workspace, limit=_COUNTED)
    now = datetime.now(UTC)
    counts = {status: [0] * _HOURS for status in Status}
    for run in found:
        hour = int((now - run.created_at).total_seconds() // 3600)
        if hour < _HOURS:
            counts[run.status][_HOURS - 1 - max(hour, 0)] += 1
    is_exact = len(found) < _COUNTED or now - found[-1].created_at >= timedelta(hours=_HOURS)
    return Reply(RunHours(counts=counts, is_exact=is_exact))


async def start_run(call: Call) -> Any:
    """Start a run."""
    body: StartRun = call.body
    return await _start(call, body.workflow, body.input, body.execution_id or new_id())


async def put_run(call: Call) -> Any:
    """Start a run under an id of the caller's own."""
    body: PutRun = call.body
    return await _start(call, body.workflow, body.input, call.path["execution_id"])


async def _start(call: Call, workflow: str, value: Any, execution_id: str) -> Reply:
    started = StartedRun(execution_id=execution_id, workspace_id=call.workspace, workflow_id=workflow)
    headers, kept = {"Location": location_of(call, execution_id)}, None
    if call.request_key is not None:
        text = msgspec.json.encode(started).decode()
        told = {"content-type": "application/json", "location": headers["Location"]}
        kept = call.request_key, KeptReply(call.request_key.fingerprint, 202, told, text)
    run = await call.well.start(workflow, value, workspace=call.workspace, execution_id=execution_id, kept=kept)
    seconds = preferred_wait(call)
    if seconds is None:
        return Reply(started, 202, headers)
    with suppress(StepwellError, TimeoutError):  # how it ended is in the view
        await run.result(timeout=seconds)
    summary = await call.well.executions.get(execution_id)
    headers["Preference-Applied"] = f"wait={seconds:g}"
    if summary.status not in FINAL:
        return Reply(msgspec.structs.replace(started, status=summary.status), 202, headers)
    return Reply(await view_of(call, summary), 200, headers, etag=summary.revision)


def preferred_wait(call: Call) -> float | None:
    """Return how many seconds the caller prefers to wait for the result (RFC 7240), or None."""
    found = re.search(r"(?:^|[,;])\s*wait=(\d{1,5})\s*(?:$|[,;])", call.request.headers.get("prefer", ""))
    return None if found is None else min(float(found[1]), call.server.limits.wait_seconds)


async def get_run(call: Call) -> Reply:
    """Return a run."""
    summary, names = await owned_run(call), expansions(call.query.expand)
    view = await view_of(call, summary)
    if not names:
        return Reply(view, etag=summary.revision)
    # Without an ETag: what belongs to the run may change while its revision stays.
    [more] = await expanded(call, [summary], names)
    return Reply(msgspec.structs.replace(view, expanded=more))


async def delete_run(call: Call) -> Reply:
    """Delete a run with its history."""
    summary = await owned_run(call)
    check_if_match(call, summary.revision)
    await call.well.delete(summary.execution_id)
    return Reply()


async def get_result(call: Call) -> Reply:
    """Return a run when it has ended, or as it is after the wait."""
    summary = await owned_run(call)
    if summary.status not in FINAL and call.query.wait:
        with suppress(StepwellError, TimeoutError):  # how it ended is in the view
            await call.well.run(summary.execution_id).result(timeout=min(call.query.wait, call.server.limits.wait_seconds))
        summary = await call.well.executions.get(summary.execution_id)
    is_over = summary.status in FINAL
    return Reply(await view_of(call, summary), 200 if is_over else 202, {} if is_over else {"Retry-After": "1"})


async def get_run_state(call: Call) -> Reply:
    """Return the state of a run."""
    summary = await owned_run(call)
    state = await call.well.load(summary.execution_id, call.query.at)
    return Reply(
        RunState(
            execution_id=summary.execution_id,
            revision=state.revision,
            status=state.status,
            context=state.context,
            variables=dict(state.variables),
            trigger=msgspec.to_builtins(state.trigger),
            step_count=state.step_count,
        ),
        etag=state.revision,
    )


async def list_steps(call: Call) -> Reply:
    """Return the steps of a run with their attempts."""
    summary = await owned_run(call)
    return Reply(Page(items=await call.well.run(summary.execution_id).steps(call.query.at)))


async def get_progress(call: Call) -> Reply:
    """Return how far a run is."""
    summary = await owned_run(call)
    return Reply(await call.well.run(summary.execution_id).progress())


async def get_trace(call: Call) -> Reply:
    """Return what a run did, in order."""
    summary = await owned_run(call)
    return Reply(await call.well.run(summary.execution_id).trace(call.query.level))


async def get_drawing(call: Call) -> Reply:
    """Return a picture of a run."""
    summary = await owned_run(call)
    return Reply((await call.well.run(summary.execution_id).draw("svg")).encode(), etag=summary.revision)


async def list_receipts(call: Call) -> Reply:
    """Return a page of receipts, in order."""
    summary = await owned_run(call)
    query: PageQuery = call.query
    signer, binding = await call.server.signer(), ["receipts", call.workspace, summary.execution_id]
    after = -1 if query.cursor is None else signer.position(binding, query.cursor)
    found = await call.well.receipts(summary.execution_id, after=after, limit=query.limit + 1)
    cursor = None if len(found) <= query.limit else signer.cursor(binding, found[query.limit - 1].revision)
    return page_reply(call, [_receipt_view(each) for each in found[: query.limit]], cursor)


def _receipt_view(receipt: Receipt) -> ReceiptView:
    return ReceiptView(
        execution_id=receipt.execution_id,
        revision=receipt.revision,
        commit_id=receipt.commit_id,
        committed_at=receipt.committed_at,
        before=receipt.before,
        after=receipt.after,
        previous=receipt.previous,
        digest=receipt.digest,
        mutations=list(receipt.mutations),
    )


async def get_proof(call: Call) -> Reply:
    """Return the proof of a run, for ``stepwell.verify_proof``."""
    summary = await owned_run(call)
    return Reply(await call.well.export(summary.execution_id))


async def verify_run(call: Call) -> Reply:
    """Verify every receipt of a run."""
    summary = await owned_run(call)
    return Reply(await call.well.verify(summary.execution_id))


async def diff_run(call: Call) -> Reply:
    """Return the changes between two revisions."""
    summary = await owned_run(call)
    return Reply(Page(items=await call.well.diff(summary.execution_id, call.query.a, call.query.b)))


async def cancel_run(call: Call) -> Reply:
    """Request a run and its children to end, or cancel a scope of it."""
    summary = await owned_run(call)
    await call.well.run(summary.execution_id).cancel(scope=call.body.scope)
    return Reply(Accepted(execution_id=summary.execution_id, action="cancel"), 202)


async def cancel_step(call: Call) -> Reply:
    """Cancel a step of a run: now if it is under way, else when it begins."""
    summary = await owned_run(call)
    await call.well.run(summary.execution_id).cancel_step(call.body.step)
    return Reply(Accepted(execution_id=summary.execution_id, action="cancel_step"), 202)


async def pause_run(call: Call) -> Reply:
    """Pause a run: what is under way may end, and nothing new begins until it is resumed."""
    summary = await owned_run(call)
    await call.well.run(summary.execution_id).pause(call.body.reason, by=call.identity.name)
    return Reply(Accepted(execution_id=summary.execution_id, action="pause"), 202)


async def resume_run(call: Call) -> Reply:
    """Resume a paused run."""
    summary = await owned_run(call)
    await call.well.run(summary.execution_id).resume()
    return Reply(Accepted(execution_id=summary.execution_id, action="resume"), 202)


async def retry_run(call: Call) -> Reply:
    """Continue a failed run at the step that failed."""
    summary = await owned_run(call)
    await call.well.run(summary.execution_id).retry()
    return Reply(Accepted(execution_id=summary.execution_id, action="retry"), 202)


async def signal_run(call: Call) -> Reply:
    """Send a signal to a run."""
    summary = await owned_run(call)
    await call.well.run(summary.execution_id).signal(call.body.name, call.body.value)
    return Reply(Accepted(execution_id=summary.execution_id, action="signal"), 202)


async def fork_run(call: Call) -> Reply:
    """Start a run from the state of another."""
    summary = await owned_run(call)
    fork_id = call.body.new_id or new_id()
    body: ForkRun = call.body
    await call.well.fork(summary.execution_id, fork_id, at=body.at, input=body.input, variables=body.variables)
    view = StartedRun(execution_id=fork_id, workspace_id=call.workspace, workflow_id=summary.workflow_id)
    return Reply(view, 201, {"Location": location_of(call, fork_id)})


async def create_event_ticket(call: Call) -> Reply:
    """Create a ticket that opens one stream of events, once."""
    # Whoever gets it, such as the browser of a tenant, reaches no other workspace, whatever its maker reaches.
    identity = msgspec.structs.replace(call.identity, workspace=call.workspace)
    ticket = await call.well.access.create_stream_ticket(identity, ttl=_TICKET_SECONDS)
    return Reply(EventTicket(ticket=ticket, ttl_ms=_TICKET_SECONDS * 1000), 201)


async def follow_run(call: Call) -> Any:
    """Stream what happens to a run."""
    summary = await owned_run(call)
    after = _resume_after(call)
    snapshot = await view_of(call, summary) if after is None else None
    return await _stream(call, call.server.hub.run_events(summary.execution_id, after, snapshot))


async def follow_runs(call: Call) -> Any:
    """Stream the runs of the workspace that change."""
    terms = parse_filter(call.query.filter, STREAM_FIELDS)
    events = call.server.hub.workspace_events(call.workspace, terms.get("status"), terms.get("workflow"), _resume_after(call))
    return await _stream(call, events)


def _resume_after(call: Call) -> int | None:
    last = call.request.headers.get("last-event-id")
    if last is None:
        return call.query.after
    if not re.fullmatch(r"-?\d{1,18}", last, re.ASCII):
        raise HttpProblem("malformed", "Last-Event-ID is the id of an event of this stream")
    return int(last)


async def _stream(call: Call, events: Any) -> Any:
    hub, limits, accept = call.server.hub, call.server.limits, call.request.headers.get("accept", "")
    hub.check_room()
    if call.request.method == "HEAD":
        await events.aclose()
        return Reply(b"")
    if "text/event-stream" in accept or "application/x-ndjson" in accept or "json" not in accept:
        ends = monotonic() + _LONGEST_WITHOUT_TOKEN_SECONDS

        async def is_allowed() -> bool:
            if call.query.ticket is not None:  # which was used up: what it was made with still counts
                has_token = call.identity.token_id is not None
                return (has_token or monotonic() < ends) and await call.well.access.is_valid(call.identity)
            return await call.server.authenticator.identity_of(call.request) == call.identity

        credentials = credentials_of(call.request)
        who = None if credentials is None else (credentials, call.identity)
        is_lines, on_drop = "application/x-ndjson" in accept, call.server.metrics.dropped.inc
        return EventResponse(hub, events, limits, is_lines=is_lines, who=who, is_allowed=is_allowed, on_drop=on_drop)
    return await _poll(call, events)


async def _poll(call: Call, events: Any) -> Reply:
    """Return the events that there are, or the first ones to come within the wait."""
    items: list[Event] = []
    try:
        async with asyncio.timeout(call.query.wait if call.query.wait else 0.001):
            async for event in events:
                items.append(event)
                if event.event in ("snapshot", "reset", "end") or len(items) >= call.server.limits.page_items:
                    break
    except TimeoutError:
        pass
    finally:
        await events.aclose()
    is_ended = bool(items) and items[-1].event == "end"
    last = next((each.id for each in reversed(items) if each.id is not None), _resume_after(call))
    return Reply(EventPage(items=items, after=last, is_ended=is_ended))


ROUTES = (
    api_route("GET /runs", list_runs, Page[ListedRun], query=RunList),
    api_route("GET /run_counts", count_runs, Page[RunCount], query=CountQuery),
    api_route("GET /run_hours", count_hours, RunHours),
    api_route(
        "POST /runs",
        start_run,
        StartedRun,
        Role.OPERATOR,
        body=StartRun,
        status=202,
        statuses={200: RunView},
        example={"workflow": "greet", "input": "Ada"},
        keeps_replies=False,
    ),
    api_route("GET /runs/{execution_id}", get_run, RunView, query=RunQuery),
    api_route(
        "PUT /runs/{execution_id}",
        put_run,
        StartedRun,
        Role.OPERATOR,
        body=PutRun,
        status=202,
        statuses={200: RunView},
        example={"workflow": "greet", "input": "Ada"},
    ),
    api_route("DELETE /runs/{execution_id}", delete_run, None, Role.ADMIN, needs_if_match=True, conditions=("If-Match",)),
    api_route("GET /runs/{execution_id}/result", get_result, RunView, query=ResultQuery, statuses={202: RunView}),
    api_route("GET /runs/{execution_id}/state", get_run_state, RunState, query=StateQuery),
    api_route("GET /runs/{execution_id}/steps", list_steps, Page[StepRecord], query=StateQuery),
    api_route("GET /runs/{execution_id}/progress", get_progress, Progress),
    api_route("GET /runs/{execution_id}/trace", get_trace, Trace, query=TraceQuery),
    api_route("GET /runs/{execution_id}/drawing", get_drawing, media="image/svg+xml"),
    api_route("GET /runs/{execution_id}/receipts", list_receipts, Page[ReceiptView], query=PageQuery),
    api_route("GET /runs/{execution_id}/proof", get_proof, media="application/x-ndjson"),
    api_route("GET /runs/{execution_id}/verification", verify_run, Verification),
    api_route("GET /runs/{execution_id}/diff", diff_run, Page[Change], query=DiffQuery),
    api_route("POST /event_tickets", create_event_ticket, EventTicket, status=201, shows_secret=True),
    api_route("GET /runs/{execution_id}/events", follow_run, EventPage, query=EventQuery, media="text/event-stream"),
    api_route("GET /events", follow_runs, EventPage, query=EventQuery, media="text/event-stream"),
    api_route(
        "POST /runs/{execution_id}/cancel", cancel_run, Accepted, Role.OPERATOR, body=CancelRun, is_body_optional=True, status=202
    ),
    api_route(
        "POST /runs/{execution_id}/cancel_step",
        cancel_step,
        Accepted,
        Role.OPERATOR,
        body=CancelStep,
        status=202,
        example={"step": "resize[3]"},
    ),
    api_route(
        "POST /runs/{execution_id}/pause",
        pause_run,
        Accepted,
        Role.OPERATOR,
        body=PauseRun,
        is_body_optional=True,
        status=202,
        example={"reason": "the bank is down"},
    ),
    api_route("POST /runs/{execution_id}/resume", resume_run, Accepted, Role.OPERATOR, status=202),
    api_route("POST /runs/{execution_id}/retry", retry_run, Accepted, Role.OPERATOR, status=202),
    api_route(
        "POST /runs/{execution_id}/signal",
        signal_run,
        Accepted,
        Role.OPERATOR,
        body=SendSignal,
        status=202,
        example={"name": "approve", "value": True},
    ),
    api_route(
        "POST /runs/{execution_id}/fork", fork_run, StartedRun, Role.OPERATOR, body=ForkRun, status=201, is_body_optional=True
    ),
)
