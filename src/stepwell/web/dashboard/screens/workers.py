"""Workers: the processes that take items from the queue."""

from __future__ import annotations

from stepwell.model.access import Role
from stepwell.queue.worker_presence import LATE_SECONDS, WorkerPresence
from stepwell.web.dashboard.screen import Shown, View, screen
from stepwell.web.problem import HttpProblem

__all__ = ["SCREENS"]


async def show_workers(view: View) -> Shown:
    """Show the workers, and whether they have the same code."""
    if view.identity.workspace is not None:
        raise HttpProblem("forbidden", "workers serve all workspaces: this page needs a token for all of the store")
    workers: list[WorkerPresence] = (await view.get("list_workers")).items
    values = {
        "workers": sorted(workers, key=lambda each: each.name),
        "skew": _skew(workers),
        "late_seconds": LATE_SECONDS,
        "demand": await view.get("get_demand"),
    }
    return Shown(template="workers.html", title="Workers", values=values, live=view.url("/live"))


def _skew(workers: list[WorkerPresence]) -> dict[str, list[int]]:
    """Return the workflows of which workers have different versions."""
    known: dict[str, set[int]] = {}
    for worker in workers:
        for name, version in worker.versions.items():
            known.setdefault(name, set()).add(version)
    return {name: sorted(versions) for name, versions in sorted(known.items()) if len(versions) > 1}


SCREENS = (screen("GET /workers", show_workers, Role.ADMIN),)
