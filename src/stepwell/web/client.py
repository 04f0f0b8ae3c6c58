"""`Client`: the HTTP API for Python programs, with the names of `Stepwell` where they make sense. It needs no extra."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from stepwell import errors
from stepwell.duration import Span, seconds_of, timeout_seconds
from stepwell.errors import (
    CommitUnknown,
    Conflict,
    ExecutionCancelled,
    ExecutionFailed,
    InvalidInput,
    RequestFailed,
    StepwellError,
    StoreUnavailable,
    ValidationFailed,
)
from stepwell.model.ids import new_id
from stepwell.model.receipt_chain import Verification
from stepwell.model.status import FINAL, Status
from stepwell.model.value import Value
from stepwell.runtime.progress import Progress
from stepwell.runtime.step_history import StepRecord
from stepwell.web.api.queue import EnqueuedItem
from stepwell.web.api.runs import ReceiptView, RunState, RunView
from stepwell.web.client_operations import Operations

__all__ = ["Client", "ClientRun"]

_CLASSES = {
    kind.code: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, StepwellError)
}
_LONGEST_WAIT = 30.0
_SAFE = frozenset(("GET", "PUT", "DELETE"))


class Client(Operations):
    """Use a Stepwell server. Any thread may call; each has a connection of its own.

    - ``url``: the address of the server, such as ``https://flows.example.org`` or, if it is mounted, with its path.
    - ``token``: an access token.
    - ``timeout``: how long one request may take.

    Beside the methods named by their ``operationId``, ``start``, ``run`` and ``enqueue`` are those of ``Stepwell``. A call raises
    the error that has the code of the server's reply, such as ``NotFound``; ``RequestFailed`` for one that only HTTP knows;
    ``StoreUnavailable`` if the server cannot be reached; and ``CommitUnknown`` if its reply to a change was lost.

    Example:

        client = stepwell.Client("https://flows.example.org", token=token)
        print(client.start("checkout", {"order": 7}).result(timeout="5m"))
    """

    def __init__(self, url: str, *, token: str, timeout: Span = 60) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidInput(f"the address of a server is such as https://flows.example.org, not {url!r}")
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidInput("token is an access token, as `stepwell token create` printed it")
        self._is_tls, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._base, self._token = f"{parts.path.rstrip('/')}/api/v1", token
        self._seconds = seconds_of(timeout, "timeout", least=0.001)
        self._local = threading.local()
        self._url = url

    def __repr__(self) -> str:
        return f"<Client {self._url!r}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close this thread's connection. A later call opens another one."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()

    def start(
        self,
        workflow: str,
        value: Value | UnsetType = UNSET,
        *,
        workspace: str | None = None,
        execution_id: str | None = None,
    ) -> ClientRun:
        """Start a run, and return its handle. A reply that was lost is asked for again: nothing is started twice.

        - ``workflow``: the name of a workflow.
        - ``value``: the input. Without one the workflow's parameters take their defaults.
        - ``workspace``: only with a token for all of the store.
        - ``execution_id``: an id of your own; None: Stepwell chooses one.
        """
        run_id = new_id() if execution_id is None else execution_id
        self.put_run(run_id, workflow=workflow, input=value, workspace=workspace)
        return ClientRun(self, run_id, workspace)

    def run(self, execution_id: str, *, workspace: str | None = None) -> ClientRun:
        """Return the handle of an existing run. Nothing is looked up: its calls raise ``NotFound`` if there is no such run.

        - ``execution_id``: the id of the run.
        - ``workspace``: only with a token for all of the store.
        """
        return ClientRun(self, execution_id, workspace)

    def enqueue(
        self,
        workflow: str,
        value: Value | UnsetType = UNSET,
        *,
        workspace: str | None = None,
        queue: str = "default",
        priority: int = 0,
        key: str | None = None,
        delay: Span | None = None,
        run_at: datetime | None = None,
        max_attempts: int = 3,
    ) -> EnqueuedItem:
        """Request a run for when its workspace has capacity, and return the queue item.

        - ``workflow``: the name of a workflow.
        - ``value``: the input. Without one the workflow's parameters take their defaults.
        - ``workspace``: only with a token for all of the store.
        - ``queue``, ``priority``, ``delay``, ``run_at``, ``max_attempts``: as for ``Stepwell.enqueue``.
        - ``key``: an idempotency key of your own; without one, Stepwell makes one, so that nothing is enqueued twice.
        """
        return self.enqueue_item(
            workflow=workflow,
            input=value,
            queue=queue,
            priority=priority,
            key=new_id() if key is None else key,
            delay_ms=None if delay is None else round(seconds_of(delay, "delay") * 1000),
            run_at=run_at,
            max_attempts=max_attempts,
            workspace=workspace,
        )

    def _call(
        self,
        method: str,
        path: str,
        replies: dict[int, Any],
        query: dict[str, Any],
        body: dict[str, Any] | None,
        headers: dict[str, str | None],
    ) -> Any:
        asked = {name: _query_text(value) for name, value in query.items() if value is not None and value != ""}
        target = f"{self._base}{path}" + (f"?{urlencode(asked)}" if asked else "")
        given = {name: value for name, value in (body or {}).items() if value is not UNSET}
        data = None if body is None else msgspec.json.encode(given)
        sent = {"Authorization": f"Bearer {self._token}", "Accept": "*/*"}
        sent |= {name: value for name, value in headers.items() if value is not None}
        if data is not None:
            sent["Content-Type"] = "application/json"
        is_repeatable = method in _SAFE or "Idempotency-Key" in sent or bool(given.get("key"))
        status, found = self._send(method, target, data, sent, is_repeatable=is_repeatable)
        if status >= 400:
            raise _error_of(status, found)
        kind = replies.get(status)
        if not replies:
            return found
        return None if kind is None else msgspec.json.decode(found, type=kind)

    def _send(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str], *, is_repeatable: bool
    ) -> tuple[int, bytes]:
        for attempt in (1, 2):
            connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
            is_fresh = connection is None
            try:
                connection = connection or self._connect()
                connection.request(method, target, body=data, headers=headers)
                reply = connection.getresponse()
                return reply.status, reply.read()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A kept connection may have been closed by the server in the meantime.
                if attempt == 1 and is_repeatable and not (is_fresh and isinstance(error, ConnectionRefusedError)):
                    continue
                if method == "GET" or isinstance(error, ConnectionRefusedError):
                    raise StoreUnavailable(f"the server at {self._url} cannot be reached: {error}") from None
                raise CommitUnknown(
                    f"the reply of {self._url} to {method} {target} was lost ({error}); look before you retry"
                ) from None
        raise AssertionError

    def _connect(self) -> http.client.HTTPConnection:
        if self._is_tls:
            context = ssl.create_default_context()
            found = http.client.HTTPSConnection(self._host, self._port, timeout=self._seconds, context=context)
        else:
            found = http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)
        self._local.connection = found
        return found


class ClientRun:
    """The handle of one run on a server, as ``start`` and ``run`` return it."""

    def __init__(self, client: Client, execution_id: str, workspace: str | None) -> None:
        self._client, self.execution_id, self._workspace = client, execution_id, workspace

    def __repr__(self) -> str:
        return f"<ClientRun {self.execution_id!r}>"

    def view(self) -> RunView:
        """Return the run as it is now: status, input, output and error."""
        return self._client.get_run(self.execution_id, workspace=self._workspace)

    def status(self) -> Status:
        """Return the status of the run."""
        return self.view().status

    def result(self, timeout: Span | None = None) -> Value:
        """Wait for the end of the run, and return its output as a plain value.

        - ``timeout``: how long to wait; None without a limit.

        Raise ``ExecutionFailed`` or ``ExecutionCancelled`` if the run ended so, and ``TimeoutError`` if it did not end in time.
        """
        seconds = timeout_seconds(timeout)
        ends = None if seconds is None else monotonic() + seconds
        while True:
            left = _LONGEST_WAIT if ends is None else max(0.0, min(_LONGEST_WAIT, ends - monotonic()))
            found = self._client.get_result(self.execution_id, wait=left, workspace=self._workspace)
            if found.status in FINAL:
                return _output_of(found)
            if ends is not None and monotonic() >= ends:
                raise TimeoutError(f"execution {self.execution_id!r} is still {found.status}; it goes on, ask again later")

    def signal(self, name: str, value: Value = None) -> None:
        """Send a signal. A reply that was lost is asked for again: the signal is sent once.

        - ``name``: the signal's name.
        - ``value``: what the wait returns.

        Raise ``ExecutionEnded`` if the run has ended.
        """
        self._client.signal_run(self.execution_id, name=name, value=value, idempotency_key=new_id(), workspace=self._workspace)

    def cancel(self, *, scope: str | None = None) -> None:
        """Request the run and its children to end, or cancel a scope of it.

        - ``scope``: the name of an open scope of the definition; None for the whole run.

        Raise ``ExecutionEnded`` if the run has ended, and ``NotFound`` if no such scope is open.
        """
        self._client.cancel_run(self.execution_id, scope=scope, idempotency_key=new_id(), workspace=self._workspace)

    def cancel_step(self, step: str) -> None:
        """Cancel a step of the run: now if it is under way, else when it begins.

        - ``step``: the step's name, as ``steps`` gives it.
        """
        self._client.cancel_step(self.execution_id, step=step, idempotency_key=new_id(), workspace=self._workspace)

    def pause(self, reason: str = "") -> None:
        """Let nothing new of the run begin until ``resume``; what is under way may end.

        - ``reason``: why, for people. Who pauses it is whoever the token is for.

        Raise ``ExecutionEnded`` if the run has ended.
        """
        self._client.pause_run(self.execution_id, reason=reason, idempotency_key=new_id(), workspace=self._workspace)

    def resume(self) -> None:
        """Let a paused run go on.

        Raise ``Conflict`` if it is not paused.
        """
        self._client.resume_run(self.execution_id, idempotency_key=new_id(), workspace=self._workspace)

    def retry(self) -> None:
        """Continue a failed run at the step that failed.

        Raise ``Conflict`` if the run did not fail.
        """
        self._client.retry_run(self.execution_id, idempotency_key=new_id(), workspace=self._workspace)

    def progress(self) -> Progress:
        """Return how far the run is and what it waits for."""
        return self._client.get_progress(self.execution_id, workspace=self._workspace)

    def state(self, at: int | None = None) -> RunState:
        """Return the state of the run, now or at a revision.

        - ``at``: the revision; None for now.
        """
        return self._client.get_run_state(self.execution_id, at=at, workspace=self._workspace)

    def steps(self, at: int | None = None) -> list[StepRecord]:
        """Return every step of the run with its attempts.

        - ``at``: a revision, to see the steps as they were then; None for now.
        """
        return self._client.list_steps(self.execution_id, at=at, workspace=self._workspace).items

    def receipts(self) -> list[ReceiptView]:
        """Return the receipts of all commits of the run, in order."""
        found: list[ReceiptView] = []
        cursor: str | None = None
        while True:
            page = self._client.list_receipts(self.execution_id, limit=200, cursor=cursor, workspace=self._workspace)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    def verify(self) -> Verification:
        """Have the server verify every receipt of the run, and return every problem that was found."""
        return self._client.verify_run(self.execution_id, workspace=self._workspace)


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _output_of(found: RunView) -> Value:
    if found.status == Status.COMPLETED:
        return found.output
    if found.status == Status.CANCELLED:
        raise ExecutionCancelled(f"execution {found.execution_id!r} was cancelled")
    kind, message = ("?", "?") if found.error is None else (found.error.kind, found.error.message)
    raise ExecutionFailed(f"execution {found.execution_id!r} failed: {kind}: {message}")


def _error_of(status: int, data: bytes) -> StepwellError:
    """Return the error of a reply: the class that has its code, with what it says."""
    try:
        problem = cast("dict[str, Any]", json.loads(data))
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return RequestFailed(f"the server answered with status {status} and no problem of Stepwell", status=status)
    kind = _CLASSES.get(code)
    if kind is None:
        return RequestFailed(f"{detail} ({code})", status=status)
    if issubclass(kind, ValidationFailed):
        faults = [errors.Problem(each["code"], each["detail"], each["pointer"]) for each in problem.get("errors", ())]
        return kind(faults or detail)
    if issubclass(kind, Conflict):
        return kind(detail, actual=problem.get("current_revision"))
    found = kind(detail)
    found.message = detail
    return found
