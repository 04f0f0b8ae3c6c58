"""``show``: everything about one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from stepwell.cli.main import command
from stepwell.cli.options import RUN_ID, CliSettings, settings
from stepwell.cli.output import Terminal, printable, shortened
from stepwell.cli.report import counted
from stepwell.cli.run_view import RunEvent, bars, events_of, offer_text, span_text, waiting_text, without_secrets
from stepwell.errors import StepFailed, ValueErased
from stepwell.model.execution_state import ExecutionState
from stepwell.model.receipt import Receipt
from stepwell.model.value import Value
from stepwell.runtime.cancellation import Cancellation
from stepwell.runtime.progress import Progress
from stepwell.runtime.step_history import StepRecord

if TYPE_CHECKING:
    from stepwell.app.blocking import Stepwell

__all__ = ["show"]


@command("show")
@RUN_ID
@click.option("--at", type=click.IntRange(0), metavar="REVISION", help="Show the state at a revision.")
@click.option("--receipts", "-r", "shown", type=click.IntRange(0), default=0, metavar="N", help="Show the newest N receipts, too.")
def show(execution_id: str, at: int | None, shown: int) -> None:
    """Show a run: its state, its steps with outputs and errors, and its timeline. With --json, with all receipts."""
    given = settings()
    with given.open() as well:
        try:
            state = well.load(execution_id, at)
        except ValueErased:
            _show_erased(given, well, execution_id)
            return
        secrets = state.identity.secrets or ()
        hidden = partial(well.redact, secrets=secrets)
        run = well.run(execution_id)
        progress = run.progress() if at is None else None
        steps = run.steps(state.revision)
        receipts = [each for each in well.receipts(execution_id) if each.revision <= state.revision]
    events = [without_secrets(well, event, secrets) for receipt in receipts for event in events_of(receipt)]
    if given.is_json:
        told = {"progress": hidden(msgspec.to_builtins(progress)), "timeline": _plain(events)}
        given.screen.json(hidden(_facts(state, steps)) | told | {"receipts": [_receipt(each) for each in receipts]})
        return
    screen = given.screen
    _write_state(screen, state, progress, hidden)
    _write_own_failure(screen, state, steps)
    _write_steps(screen, [msgspec.structs.replace(each, output=hidden(each.output)) for each in steps])
    _write_failures(screen, steps)
    _write_late_results(screen, steps)
    _write_timeline(screen, events)
    _write_receipts(screen, receipts, shown)


def _show_erased(given: CliSettings, well: Stepwell, execution_id: str) -> None:
    """Show what is left of a run whose data was erased: that it ran, and that its receipts verify."""
    summary, checked = well.executions.get(execution_id), well.verify(execution_id)
    if given.is_json:
        given.screen.json(msgspec.to_builtins(summary) | {"is_erased": True, "verification": msgspec.to_builtins(checked)})
        return
    screen = given.screen
    screen.write(f"{screen.paint('bold', printable(execution_id))}  {screen.paint_status(summary.status)}")
    screen.write("  its data was erased: the key of the person that it was about was destroyed")
    verdict = screen.paint("green", "ok") if checked.ok else screen.paint("red", "BROKEN")
    screen.write(f"  {printable(summary.workflow_id)} version {summary.version}, revision {summary.revision}, receipts {verdict}")


def _facts(state: ExecutionState, steps: Sequence[StepRecord]) -> dict[str, Any]:
    who = state.identity
    return {
        "execution_id": who.execution_id,
        "workspace_id": who.workspace_id,
        "workflow_id": who.workflow_id,
        "version": who.version,
        "parent_id": who.parent_id,
        "started_at": who.started_at.isoformat(),
        "status": str(state.status),
        "revision": state.revision,
        "step_count": state.step_count,
        "trigger": msgspec.to_builtins(state.trigger),
        "context": state.context,
        "variables": state.variables,
        "steps": {step.name: step.to_dict() for step in steps},
        "loops": {name: msgspec.to_builtins(loop) for name, loop in state.loops.items()},
        "tokens": {name: msgspec.to_builtins(token) for name, token in state.tokens.items()},
        "result": state.result,
    }


def _plain(events: Sequence[RunEvent]) -> list[Value]:
    return [msgspec.to_builtins(event) for event in events]


def _receipt(receipt: Receipt) -> dict[str, Value]:
    return {
        "revision": receipt.revision,
        "commit_id": receipt.commit_id,
        "committed_at": receipt.committed_at.isoformat(),
        "before": receipt.before,
        "after": receipt.after,
        "previous": receipt.previous,
        "digest": receipt.digest,
    }


def _write_state(screen: Terminal, state: ExecutionState, progress: Progress | None, hidden: Callable[[Value], Value]) -> None:
    who = state.identity
    screen.write(f"{screen.paint('bold', printable(who.execution_id))}  {screen.paint_status(state.status)}")
    fields: list[tuple[str, str]] = [
        ("workflow", printable(f"{who.workflow_id} version {who.version}")),
        ("workspace", printable(who.workspace_id)),
        ("started", f"{who.started_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("revision", f"{state.revision}, {counted(state.step_count, 'step')}"),
        ("parent", printable(who.parent_id or "")),
        ("input", "" if state.trigger is None else screen.brief(hidden(msgspec.to_builtins(state.trigger)))),
        *_standing(who.execution_id, progress),
        *(("variable", f"{printable(name)} = {screen.brief(value)}") for name, value in hidden(state.variables).items()),
        *_ending(screen, hidden(state.result)),
    ]
    for name, text in fields:
        if text:
            screen.write(f"  {screen.paint('dim', name.ljust(9))}  {text}")


def _standing(execution_id: str, progress: Progress | None) -> list[tuple[str, str]]:
    if progress is None:
        return []
    return [
        *(("does", printable(step)) for step in progress.current),
        *(("waits for", printable(waiting_text(each))) for each in progress.waiting),
        ("waits on", "" if progress.waiting_on is None else printable(progress.waiting_on.message)),
        *(("takes", printable(offer_text(execution_id, each))) for each in progress.offers),
        *(("not taken", printable(f"signal {name}: no wait has asked for it yet")) for name in progress.untaken),
        (
            "held by",
            "" if progress.held_by is None else f"{printable(progress.held_by.holder)} until {_time(progress.held_by.until)}",
        ),
        ("cancel", "" if progress.cancellation is None else _cancellation(progress.cancellation)),
    ]


def _cancellation(asked: Cancellation) -> str:
    stamps = {"requested": asked.requested_at, "acknowledged": asked.acknowledged_at, "done": asked.ended_at}
    return ", ".join(f"{word} {_time(at)}" for word, at in stamps.items() if at is not None) or "requested by its parent"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _ending(screen: Terminal, result: Value) -> list[tuple[str, str]]:
    match result:
        case {"output": output}:
            return [("output", screen.brief(output))]
        case {"error": {"kind": kind, "message": message}}:
            return [("error", screen.paint("red", printable(f"{kind}: {message}")))]
        case _:
            return []


def _write_own_failure(screen: Terminal, state: ExecutionState, steps: Sequence[StepRecord]) -> None:
    """Write the traceback of a run that its own code failed; that of a failed step stands with its attempts."""
    match state.result:
        case {"error": {"kind": kind, "traceback": str(text)}} if kind != StepFailed.__name__:
            if all(attempt.traceback != text for step in steps for attempt in step.attempts):
                screen.write()
                _write_traceback(screen, text, indent=2)
        case _:
            return


def _write_traceback(screen: Terminal, text: str, *, indent: int) -> None:
    for line in text.splitlines():
        screen.write(f"{' ' * indent}{screen.paint('dim', printable(line))}")


_MOST_STEPS = 40


def _write_steps(screen: Terminal, steps: Sequence[StepRecord]) -> None:
    """Write each step with its status, attempts, time and output or error; many of one name as one line."""
    if not steps:
        return
    rows: list[tuple[str, str, str, str]] = []
    for node, several in _runs_of(steps):
        alike = {each.status for each in several}
        if len(several) > _ALIKE and len(alike) == 1:
            rows.append((f"{node} ({len(several)} times)", alike.pop(), "", ""))
        else:
            rows += [_step_row(screen, each) for each in several]
    screen.write()
    screen.write(screen.paint("bold", "Steps"))
    left = rows[_MOST_STEPS:]
    rows = rows[:_MOST_STEPS]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, status, took, told in rows:
        shown = screen.paint_status(status) + " " * (widths[1] - len(status))
        room = max(screen.width - sum(widths) - 8, 20)
        screen.write(f"  {name.ljust(widths[0])}  {shown}  {took.rjust(widths[2])}  {shortened(told, room)}".rstrip())
    if left:
        screen.write(f"  ... {len(left)} more; all of them with --json")


_ALIKE = 5


def _runs_of(steps: Sequence[StepRecord]) -> list[tuple[str, list[StepRecord]]]:
    """Return the steps with those of one node that follow each other together."""
    found: list[tuple[str, list[StepRecord]]] = []
    for step in steps:
        if found and found[-1][0] == printable(step.node):
            found[-1][1].append(step)
        else:
            found.append((printable(step.node), [step]))
    return found


def _step_row(screen: Terminal, step: StepRecord) -> tuple[str, str, str, str]:
    tries = f", {len(step.attempts)} attempts" if len(step.attempts) > 1 else ""
    took = "" if step.duration_ms is None else f"{span_text(step.duration_ms / 1000)}{tries}"
    told = printable(str(step.error)) if step.error is not None else screen.brief(step.output) if step.status == "COMPLETED" else ""
    return printable(step.name), printable(step.status), took, told


def _write_failures(screen: Terminal, steps: Sequence[StepRecord]) -> None:
    failures = [(step, attempt) for step in steps for attempt in step.attempts if attempt.error is not None]
    if not failures:
        return
    screen.write()
    screen.write(screen.paint("bold", "Failed attempts"))
    for step, attempt in failures:
        when = screen.paint("dim", f"{attempt.ended_at:%H:%M:%S}")
        screen.write(f"  {when}  {printable(step.name)} attempt {attempt.number}: {printable(str(attempt.error))}")
        _write_traceback(screen, attempt.traceback or "", indent=4)


def _write_late_results(screen: Terminal, steps: Sequence[StepRecord]) -> None:
    late = [(step, result) for step in steps for result in step.late_results]
    if not late:
        return
    screen.write()
    screen.write(screen.paint("bold", "Late results, discarded"))
    for step, result in late:
        screen.write(f"  {screen.paint('dim', f'{result.at:%H:%M:%S}')}  {printable(step.name)} attempt {result.attempt}")


def _write_timeline(screen: Terminal, events: Sequence[RunEvent]) -> None:
    steps = [event for event in events if event.event == "step"]
    if not steps:
        return
    screen.write()
    screen.write(screen.paint("bold", "Timeline"))
    colours = {"COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow"}
    rows = bars(
        steps,
        width=min(screen.width, 120) - 2,
        began_at=events[0].at,
        paint=lambda event, text: screen.paint(colours.get(event.status, ""), text),
        block=screen.block,
    )
    for row in rows:
        screen.write(f"  {row}")


def _write_receipts(screen: Terminal, receipts: Sequence[Receipt], shown: int) -> None:
    if not shown or not receipts:
        return
    screen.write()
    screen.write(screen.paint("bold", f"Receipts: the newest {min(shown, len(receipts))} of {len(receipts)}"))
    for each in receipts[-shown:]:
        links = f"previous {each.previous[:12]}  state {each.before[:12]} -> {each.after[:12]}"
        screen.write(f"  {each.revision:>5}  {each.committed_at:%H:%M:%S}  {screen.paint('yellow', each.digest[:12])}  {links}")
