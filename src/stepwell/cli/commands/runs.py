"""Commands for runs: start and follow one, list them, and act on one: ``signal``, ``cancel``, ``pause``, ``retry`` and others."""

from __future__ import annotations

import getpass
import os
import signal as signals
import socket
import sys
import threading
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
import msgspec

from stepwell.cli.exit_codes import ExitCode, code_of
from stepwell.cli.main import command
from stepwell.cli.options import (
    ENGINE,
    ID,
    INPUT,
    RUN_ID,
    SPAN,
    SUBJECT,
    VALUE,
    WORKFLOW_NAME,
    WORKSPACE,
    CliSettings,
    complete_startable,
    settings,
    value_of,
)
from stepwell.cli.output import Terminal, printable
from stepwell.cli.report import counted, report, report_rows
from stepwell.cli.run_view import Ticker, follow, without_secrets
from stepwell.cli.workflow_loader import find_workflow, known_workflow
from stepwell.config import choose_url
from stepwell.errors import ExecutionCancelled, ExecutionFailed, InvalidInput, NotFound
from stepwell.flow.function import Workflow, registered_versions
from stepwell.model.execution_state import ExecutionState
from stepwell.model.status import Status

if TYPE_CHECKING:
    from stepwell.app.blocking import Run, Stepwell
    from stepwell.runtime.definitions import Startable

__all__ = [
    "cancel",
    "fork",
    "list_",
    "pause",
    "resume",
    "retry",
    "run",
    "signal",
    "start",
    "verify",
    "watch",
]


_timeout = click.option("--timeout", type=SPAN, metavar="SPAN", help="Stop waiting after 30s, 5m, ...; the run is kept.")


@command("run")
@click.argument("target", metavar="FILE|NAME", shell_complete=complete_startable)
@INPUT
@ID
@WORKSPACE
@_timeout
def run(target: str, value: Any, execution_id: str | None, workspace: str, timeout: float | None) -> None:
    """Run a workflow in this process and wait for its result.

    FILE is a definition (.yaml, .json), a script (.lua) or a module (.py, .py:NAME). NAME is module:workflow, or a workflow of a
    module of -m or of the store. This process is the run's worker. If it is interrupted, the run is kept and can be continued. What
    steps and scripts print goes to standard error.
    """
    given = settings()
    screen = given.screen
    with screen.prints_beside():
        given.load_modules()
        workflow = find_workflow(target)
        with given.open(creates=True, worker=True) as well:
            try:
                begun = _begin(well, target, workflow, value, workspace, execution_id)
                execution_id = begun.execution_id
                _follow_to_end(well, begun, screen, timeout, is_told=False)
            except KeyboardInterrupt:
                if execution_id is None:  # the run may not exist yet, so there is nothing to continue
                    raise
                _say_how_to_go_on(screen, target, execution_id)
                sys.exit(ExitCode.INTERRUPTED)


@command("start")
@click.argument("target", metavar="FILE|NAME", shell_complete=complete_startable)
@INPUT
@ID
@WORKSPACE
@ENGINE
@SUBJECT
def start(target: str, value: Any, execution_id: str | None, workspace: str, engine: str | None, subject: str | None) -> None:
    """Start a run for a worker, and print its id.

    FILE and NAME are those of `stepwell run`. This process runs nothing: `stepwell worker` does, on any machine.
    """
    given = settings()
    given.load_modules()
    workflow = find_workflow(target)
    if choose_url(given.url)[0].startswith("memory:"):
        raise InvalidInput("what is in memory ends with this command; start it in a store that a worker can open, with --url")
    with given.open(creates=True) as well:
        begun = _begin(well, target, workflow, value, workspace, execution_id, engine, subject)
        status = begun.status()
    if given.is_json:
        given.screen.json({"execution_id": begun.execution_id, "status": str(status)})
    else:
        given.screen.write(printable(begun.execution_id))
        given.screen.note(f"follow it with: stepwell watch {quote(printable(begun.execution_id))}")


@command("watch")
@RUN_ID
@_timeout
def watch(execution_id: str, timeout: float | None) -> None:
    """Follow a run until it ends, and print its result. With --json, one line for each event."""
    given = settings()
    with given.open() as well:
        try:
            _follow_to_end(well, well.run(execution_id), given.screen, timeout, is_told=given.is_json)
        except KeyboardInterrupt:
            given.screen.complain(
                f"interrupted; the run continues, follow it with: stepwell watch {quote(printable(execution_id))}"
            )
            sys.exit(ExitCode.INTERRUPTED)


def _begin(
    well: Stepwell,
    target: str,
    workflow: Startable,
    value: Any,
    workspace: str,
    execution_id: str | None,
    engine: str | None = None,
    subject: str | None = None,
) -> Run:
    """Start a run; an existing run continues without an input."""
    settings().shows_failures = True
    if execution_id is not None and value is msgspec.UNSET:
        with suppress(NotFound):
            known = well.run(execution_id)
            known.status()
            return known
    known_one = known_workflow(well, target, workflow)
    if value is msgspec.UNSET and isinstance(known_one, Workflow):
        try:
            known_one.bind(None)
        except InvalidInput as error:
            raise InvalidInput(f"{error.message}; give an input with --input") from None
    return well.start(known_one, value, workspace=workspace, execution_id=execution_id, engine=engine, subject=subject)


def _follow_to_end(well: Stepwell, run: Run, screen: Terminal, timeout: float | None, *, is_told: bool) -> None:
    """Show the events (with ``is_told``, as JSON lines), then the result. Raise the error of a run that did not complete."""
    ticker = Ticker(screen)
    secrets = well.load(run.execution_id).identity.secrets or ()
    try:
        events = follow(well, run.execution_id, timeout=timeout, ticker=ticker)
        for event in (without_secrets(well, each, secrets) for each in events):
            ticker.report(event)
            if is_told:
                screen.json_line(msgspec.to_builtins(event))
    finally:
        ticker.clear()
    state = well.load(run.execution_id)
    outcome = well.redact(_outcome(state), secrets=secrets)
    if is_told:
        screen.json_line({"event": "end"} | outcome)
    elif screen.is_json:
        screen.json(outcome)
    try:
        output = run.result(timeout=0)
    except (ExecutionFailed, ExecutionCancelled) as error:
        if screen.is_json:  # the outcome has said it
            sys.exit(code_of(error))
        raise
    if not screen.is_json:
        screen.json(well.redact(output, secrets=secrets))


def _outcome(state: ExecutionState) -> dict[str, Any]:
    who = {"execution_id": state.identity.execution_id, "status": str(state.status), "revision": state.revision}
    return who | (state.result or {})


def _say_how_to_go_on(screen: Terminal, target: str, execution_id: str) -> None:
    _end_when_interrupted()  # before the message that a second Ctrl-C ends the process
    again = f"stepwell run {quote(printable(target))} --id {quote(printable(execution_id))}"
    screen.complain(f"interrupted; the run is kept, continue it with: {again}")
    screen.note("a step under way is finished first; interrupt again to end at once")


def _end_when_interrupted() -> None:
    """End the process at an interrupt from now on.

    A separate thread waits for the signal, because one that arrives just before the main thread blocks would not interrupt it.
    """
    rope, ear = socket.socketpair()
    rope.setblocking(False)
    signals.set_wakeup_fd(rope.detach(), warn_on_full_buffer=False)

    def wait() -> None:
        while ear.recv(1) != bytes([signals.SIGINT]):
            pass
        os._exit(ExitCode.INTERRUPTED)

    threading.Thread(target=wait, name="stepwell-interrupted", daemon=True).start()
    signals.signal(signals.SIGINT, lambda _signal, _frame: None)


_COLUMNS = {
    "ID": "execution_id",
    "WORKFLOW": "workflow_id",
    "STATUS": "status",
    "UPDATED": "updated_at",
    "WORKSPACE": "workspace_id",
    "REVISION": "revision",
}


@command("list")
@click.option("--status", "-s", type=click.Choice([*Status], case_sensitive=False), help="Show only runs with this status.")
@click.option("--workspace", "-w", help="Show only this workspace.")
@click.option("--workflow", help="Show only this workflow.", shell_complete=WORKFLOW_NAME)
@click.option("--limit", "-n", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The maximum number of results.")
def list_(status: str | None, workspace: str | None, workflow: str | None, limit: int) -> None:
    """List runs, newest first. With --json, one line for each."""
    given = settings()
    with given.open() as well:
        found = well.executions.list(status=status, workspace=workspace, workflow=workflow, limit=limit)
    is_filtered = status is not None or workspace is not None or workflow is not None
    nothing = "no run matches; see all with: stepwell list" if is_filtered else "no runs; start one with: stepwell run FILE"
    report_rows(given, found, _COLUMNS, nothing)
    if len(found) == limit and not given.is_json:
        given.screen.note(f"the newest {limit}; more with --limit")


@command("signal")
@RUN_ID
@click.argument("name", metavar="NAME")
@click.argument("value", type=VALUE, default="null", metavar="[JSON|@FILE|-]")
def signal(execution_id: str, name: str, value: Any) -> None:
    """Send a signal with a value to a run. It is stored until the run takes it."""
    given = settings()
    with given.open() as well:
        well.run(execution_id).signal(name, value)
    report(given, {"execution_id": execution_id, "signal": name}, f"signal {name} is sent to {execution_id}")


@command("cancel")
@RUN_ID
@click.option("--scope", metavar="NAME", help="Cancel only this scope of the definition.")
@click.option("--step", metavar="NAME", help="Cancel only this step, as `stepwell show` names it.")
def cancel(execution_id: str, scope: str | None, step: str | None) -> None:
    """Cancel a run, or a part of it. Its code gets the request at its wait or next call, and can clean up."""
    given = settings()
    if scope is not None and step is not None:
        raise click.UsageError("give either --scope or --step, not both")
    with given.open() as well:
        run = well.run(execution_id)
        if step is not None:
            run.cancel_step(step)
        else:
            run.cancel(scope=scope)
    part = {"scope": scope} if scope is not None else {"step": step} if step is not None else {}
    what = "".join(f"{kind} {name} of " for kind, name in part.items())
    report(given, {"execution_id": execution_id, "cancel": "asked", **part}, f"{what}{execution_id} is requested to end")


@command("pause")
@RUN_ID
@click.option("--reason", default="", metavar="TEXT", help="Why, for the people who see that it waits.")
@click.option("--by", default="", metavar="NAME", help="Who pauses it. Default: the user of this process.")
def pause(execution_id: str, reason: str, by: str) -> None:
    """Pause a run: what is under way may end, and nothing new begins until it is resumed. Signals and times keep."""
    given = settings()
    by = by or _user_name()
    with given.open() as well:
        receipt = well.run(execution_id).pause(reason, by=by)
    told = {"execution_id": execution_id, "pause": "recorded", "by": by, "reason": reason, "revision": receipt.revision}
    report(given, told, f"{execution_id} is paused; let it go on with: stepwell resume {quote(printable(execution_id))}")


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return ""


@command("resume")
@RUN_ID
def resume(execution_id: str) -> None:
    """Resume a paused run. Times that passed and signals that came meanwhile are taken now."""
    given = settings()
    with given.open() as well:
        receipt = well.run(execution_id).resume()
    report(given, {"execution_id": execution_id, "resume": "recorded", "revision": receipt.revision}, f"{execution_id} goes on")


@command("retry")
@RUN_ID
@click.option("--here", is_flag=True, help="Run it in this process, and wait for its result; name its workflow's module with -m.")
@_timeout
def retry(execution_id: str, here: bool, timeout: float | None) -> None:
    """Resume a failed run at the step that failed. Earlier records are kept. A run that came from the queue waits for a slot
    there.
    """
    given = settings()
    if here:
        _retry_here(given, execution_id, timeout)
        return
    with given.open() as well:
        run = well.run(execution_id)
        run.retry()
        status, item_id = str(run.status()), well.load(execution_id).identity.item_id
    told = {"execution_id": execution_id, "status": status}
    if item_id is None:
        report(given, told, f"{execution_id} is {status}, and waits for a worker")
    else:
        report(
            given, {**told, "item_id": item_id}, f"{execution_id} is {status}, and continues when queue item {item_id} gets a slot"
        )


def _retry_here(given: CliSettings, execution_id: str, timeout: float | None) -> None:
    screen = given.screen
    with screen.prints_beside():
        given.load_modules()
        given.shows_failures = True
        with given.open(worker=True) as well:
            workflow = well.executions.get(execution_id).workflow_id
            if workflow not in registered_versions() and workflow not in {each.name for each in well.definitions.list()}:
                raise NotFound(f"this process has no workflow {workflow!r}; name the module that defines it: -m FILE")
            run = well.run(execution_id)
            run.retry()
            _follow_to_end(well, run, screen, timeout, is_told=False)


@command("fork")
@RUN_ID
@click.argument("new_id", metavar="NEW")
@click.option("--at", type=click.IntRange(0), metavar="REVISION", help="The revision of the state. Default: the newest.")
@click.option("--input", "value", type=VALUE, default=msgspec.UNSET, metavar="JSON", help="Another input for the new run.")
@click.option("--variable", "variables", multiple=True, metavar="NAME=JSON", help="Set a variable in the new run; repeatable.")
def fork(execution_id: str, new_id: str, at: int | None, value: Any, variables: tuple[str, ...]) -> None:
    """Start a new run from the state of another one, which is not changed."""
    given = settings()
    pairs = [each.partition("=") for each in variables]
    if not all(sign for _, sign, _ in pairs):
        raise InvalidInput("--variable: give NAME=JSON, such as limit=5")
    named = {name: value_of(text) for name, _, text in pairs}
    with given.open() as well:
        receipt = well.fork(execution_id, new_id, at=at, input=value, variables=named)
    told = {"execution_id": new_id, "parent_id": execution_id, "revision": receipt.revision, "digest": receipt.digest}
    report(given, told, f"{new_id} is started from the state of {execution_id}")


@command("verify")
@RUN_ID
def verify(execution_id: str) -> None:
    """Verify every receipt of a run: no edit, gap, swap or truncation. Exits with 1 if there is a problem."""
    given = settings()
    screen = given.screen
    with given.open() as well:
        result = well.verify(execution_id)
    if given.is_json:
        screen.json({"execution_id": execution_id} | msgspec.to_builtins(result))
    elif result.ok:
        dark = f", {result.unreadable} of them without their content, which is erased or encrypted" if result.unreadable else ""
        screen.write(f"{screen.paint('green', 'ok')}  {counted(result.receipts, 'receipt')}, head {result.head}{dark}")
    else:
        for problem in result.problems:
            screen.write(f"{screen.paint('red', 'BROKEN')}  {printable(problem)}")
    sys.exit(ExitCode.DONE if result.ok else ExitCode.FAILED)
