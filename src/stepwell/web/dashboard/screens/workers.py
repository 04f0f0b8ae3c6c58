"""Workers: the processes that take items from the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from stepwell.model.access import Role
from stepwell.queue.worker_presence import LATE_SECONDS, WorkerPresence
from stepwell.web.dashboard.screen import Shown, View, screen
from stepwell.web.problem import HttpProblem

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["SCREENS"]


async def show_workers(view: View) -> Shown:
    """Show the workers, and whether they have the same code."""
    if view.identity.workspace is not None:
        raise HttpProblem("forbidden", "workers serve all workspaces: this page needs a token for all of the store")
    workers: list[WorkerPresence] = (await view.get("list_workers")).items
    chosen = view.query.get("worker", "")
    values = {
        "chosen": chosen,
        "leases": (await view.get("list_worker_leases", {"worker": chosen})).items if chosen else [],
        "workers": sorted(workers, key=lambda each: each.name),
        "skew": _skew(workers),
        "late_seconds": LATE_SECONDS,
        "demand": await view.get("get_demand"),
    }
    return Shown(template="workers.html", title="Workers", values=values, live=view.url("/live"))


async def drain_worker_form(view: View) -> Response:
    """Let a worker take nothing more."""
    return await _acted(view, "drain_worker", "drained")


async def resume_worker_form(view: View) -> Response:
    """Let a draining worker take work again."""
    return await _acted(view, "resume_worker", "undrained")


async def mark_worker_dead_form(view: View) -> Response:
    """Give the runs of a worker that is gone to others now."""
    form = await view.form()
    body = {"force": form.get("force") == "yes"}
    await view.act("mark_worker_dead", body=body, reason=form.get("reason"))
    return RedirectResponse(view.url("/workers", done="released"), 303)


async def _acted(view: View, name: str, done: str) -> Response:
    form = await view.form()
    await view.act(name, reason=form.get("reason"))
    return RedirectResponse(view.url("/workers", worker=view.path["worker"], done=done), 303)


def _skew(workers: list[WorkerPresence]) -> dict[str, list[int]]:
    """Return the workflows of which workers have different versions."""
    known: dict[str, set[int]] = {}
    for worker in workers:
        for name, version in worker.versions.items():
            known.setdefault(name, set()).add(version)
    return {name: sorted(versions) for name, versions in sorted(known.items()) if len(versions) > 1}


SCREENS = (
    screen("GET /workers", show_workers, Role.ADMIN),
    screen("POST /workers/{worker}/drain", drain_worker_form, Role.ADMIN, rail="/workers"),
    screen("POST /workers/{worker}/resume", resume_worker_form, Role.ADMIN, rail="/workers"),
    screen("POST /workers/{worker}/mark_dead", mark_worker_dead_form, Role.ADMIN, rail="/workers"),
)
