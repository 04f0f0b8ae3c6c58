"""The state of a run at any of its receipts, and forks from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import UNSET
from starlette.responses import RedirectResponse

from stepwell.errors import NotFound, StepwellError
from stepwell.model.access import Role
from stepwell.model.execution_state import Change
from stepwell.model.status import StepStatus
from stepwell.runtime.step_history import StepRecord
from stepwell.state.history import ExecutionSummary
from stepwell.web.api.runs import ReceiptView, RunView
from stepwell.web.dashboard.form_fields import field_fault, json_field
from stepwell.web.dashboard.rendering import pretty
from stepwell.web.dashboard.screen import Shown, View, screen
from stepwell.web.dashboard.screens.run import origin_of, page_of, run_crumbs
from stepwell.web.filters import filter_text
from stepwell.web.problem import HttpProblem

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]

_WINDOW = 50
_PAGE = 200
_SEARCHED = 100
"""The runs among which forks are looked for: a fork names its origin, and not the other way round."""
_LARGE_BYTES = 16_384
"""The size of a value in JSON from which on it is shown only on request."""
_LARGEST_EDITED = 65_536
"""The largest value in a form, as indented JSON: two of them, percent-encoded, must fit into what a form may send."""
_ENDED = frozenset(StepStatus)


class Part(msgspec.Struct, frozen=True):
    """A value of a section of the state, with its size if it is too large to be shown unasked."""

    name: str
    value: Any
    large_bytes: int | None = None


class ReceiptLine(msgspec.Struct, frozen=True):
    """A receipt in the list: what its commit did, in a few words."""

    receipt: ReceiptView
    step: str
    keys: int
    bytes: int


async def show_state(view: View) -> Shown:
    """Show the state of a run at a receipt, and what changed up to it."""
    run: RunView = await view.get("get_run")
    at = _revision(view, "at", run.revision)
    against = _revision(view, "against", max(at - 1, 0))
    state = await view.get("get_run_state", at=at)
    lines = await _lines(view, run, at)
    changes: list[Change] = []
    problem = ""
    if against != at:
        try:
            changes = (await view.get("diff_run", a=against, b=at)).items
        except NotFound as error:  # the revision before may be archived: the state itself is still shown
            problem = error.message
    values: dict[str, Any] = {
        "run": run,
        "page": page_of(run.execution_id),
        "at": at,
        "against": against,
        "state": state,
        "parts": {name: _parts(view, name, getattr(state, name)) for name in ("variables", "context", "trigger")},
        "lines": lines,
        "first": lines[0].receipt.revision if lines else at,
        "changes": changes,
        "diff_problem": problem,
        "verification": await view.get("verify_run") if "verify" in view.query else None,
    }
    return Shown(template="state.html", title=f"State at {at}", values=values, crumbs=run_crumbs(view, run.execution_id))


def _parts(view: View, section: str, value: Any) -> list[Part]:
    """Return the values of a section; a large one only if the query asks for it."""
    values = cast("dict[str, Any]", value) if isinstance(value, dict) else {"": value}
    parts: list[Part] = []
    for name, each in values.items():
        size = len(msgspec.json.encode(each))
        is_shown = size < _LARGE_BYTES or view.query.get("load") == f"{section}:{name}"
        parts.append(Part(name, each if is_shown else None, None if is_shown else size))
    return parts


def _revision(view: View, name: str, default: int) -> int:
    text = view.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise HttpProblem("malformed", f"the parameter `{name}` is a revision: a whole number from 0")
    return int(text)


async def _lines(view: View, run: RunView, at: int) -> list[ReceiptLine]:
    """Return the receipts around a revision."""
    after = max(at - _WINDOW // 2, -1) - 1
    binding = ["receipts", view.workspace, run.execution_id]
    cursor = None if after < 0 else (await view.server.signer()).cursor(binding, after)
    found: list[ReceiptView] = (await view.get("list_receipts", cursor=cursor, limit=_WINDOW)).items
    return [_line(each) for each in found]


def _line(receipt: ReceiptView) -> ReceiptLine:
    mutations: list[dict[str, Any]] = list(receipt.mutations)
    steps = [str(each.get("name")) for each in mutations if each.get("type") == "record_step"]
    others = [str(each.get("status") or each.get("token_id") or "") for each in mutations if each.get("type") != "record_step"]
    named = ", ".join(steps) or ", ".join(dict.fromkeys(each for each in others if each))
    return ReceiptLine(receipt, named, len(mutations), len(msgspec.json.encode(mutations)))


async def show_fork(view: View) -> Shown:
    """Show what a fork of a run would keep, run again, and repeat."""
    run: RunView = await view.get("get_run")
    step = view.query.get("step", "")
    at = _revision(view, "at", run.revision)
    missing = False
    if step and "at" not in view.query:
        found = await _before_step(view, step)
        missing, at = found is None, run.revision if found is None else found
    then: list[StepRecord] = (await view.get("list_steps", at=at)).items
    now: list[StepRecord] = (await view.get("list_steps")).items
    kept = [each for each in then if each.status in _ENDED]
    names = {each.name for each in kept}
    again = [each for each in now if each.name not in names]
    values: dict[str, Any] = {
        "run": run,
        "page": page_of(run.execution_id),
        "at": at,
        "step": step,
        "is_missing": missing,
        "kept": kept,
        "again": again,
        "effects": [each for each in again if each.attempts],
        "is_newest": at == run.revision,
        "input": _editable(run.input),
        "variables": _editable(await _variables(view, at)),
        "forks": await _forks(view, run),
        "searched": _SEARCHED,
    }
    return Shown(template="fork.html", title="Fork or rewind", values=values, crumbs=run_crumbs(view, run.execution_id))


async def _forks(view: View, run: RunView) -> dict[str, int]:
    """Return the forks of a run, each with the revision that it began with, among the newest runs of its workflow."""
    workflow = filter_text({"workflow": run.workflow_id})
    found: list[ExecutionSummary] = (await view.get("list_runs", filter=workflow, limit=_SEARCHED)).items
    forks: dict[str, int] = {}
    for each in found:
        if each.execution_id == run.execution_id or each.created_at < run.created_at:
            continue
        try:
            origin = await origin_of(view, each.execution_id)
        except StepwellError:  # it was deleted at this very moment, or cannot be read: its own page says so
            continue
        if origin is not None and origin.execution_id == run.execution_id:
            forks[each.execution_id] = origin.revision
    return forks


async def _before_step(view: View, step: str) -> int | None:
    """Return the revision before the commit that first speaks of a step; None if none does."""
    cursor: str | None = None
    while True:
        page = await view.get("list_receipts", cursor=cursor, limit=_PAGE)
        for receipt in page.items:
            for mutation in receipt.mutations:
                if mutation.get("type") == "record_step" and mutation.get("name") == step:
                    return max(receipt.revision - 1, 0)
                token: dict[str, Any] = mutation.get("token") or {}
                if mutation.get("type") == "add_token" and step in (mutation.get("token_id"), token.get("node")):
                    return max(receipt.revision - 1, 0)
        cursor = page.next_cursor
        if cursor is None:
            return None


async def fork_form(view: View) -> Response:
    """Make a fork of a run."""
    form = await view.form()
    text = form.get("at", "")
    body: dict[str, Any] = {}
    if text:
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise HttpProblem("invalid", "the revision is a whole number from 0")
        body["at"] = int(text)
    if form.get("new_id", "").strip():
        body["new_id"] = form["new_id"].strip()
    await _edit(view, form, body)
    fork = await view.act("fork_run", body=body, reason=form.get("reason"))
    return RedirectResponse(view.url(page_of(fork.execution_id), done="forked"), 303)


async def _variables(view: View, at: int | None) -> dict[str, Any]:
    """Return the variables of the run at a revision that code may set; the others are Stepwell's own."""
    variables: dict[str, Any] = (await view.get("get_run_state", at=at)).variables
    return {name: value for name, value in variables.items() if not name.startswith("$")}


def _editable(value: Any) -> str | None:
    """Return a value as the text of a form; None for a large one, since a form sends it also if nobody has edited it."""
    text = pretty(value)
    return text if len(text.encode()) <= _LARGEST_EDITED else None


async def _edit(view: View, form: dict[str, str], body: dict[str, Any]) -> None:
    """Add the input and the variables of the form to a fork, as far as they differ from what the run has at the revision."""
    value, variables = json_field(form, "input"), json_field(form, "variables")
    run: RunView = await view.get("get_run")
    if value is not UNSET and value != run.input:
        body["input"] = value
    if variables is UNSET:
        return
    if not isinstance(variables, dict):
        raise field_fault("variables", "give an object of variables by name, in braces")
    before = await _variables(view, body.get("at"))
    changed = {name: each for name, each in cast("dict[str, Any]", variables).items() if name not in before or before[name] != each}
    if changed:
        body["variables"] = changed


SCREENS = (
    screen("GET /runs/{execution_id}/state", show_state, rail="/runs"),
    screen("GET /runs/{execution_id}/fork", show_fork, rail="/runs"),
    screen("POST /runs/{execution_id}/fork", fork_form, Role.OPERATOR, rail="/runs"),
)
