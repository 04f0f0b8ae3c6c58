"""Statistics of the queue: figures for people, for Prometheus, and for autoscalers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from stepwell.model.plain_data import PlainRecord
from stepwell.model.queue_fairness import free_slots, rate_allowance
from stepwell.model.queue_item import Lane, QueueSettings, Tier, Workspace

__all__ = ["Demand", "LaneStats", "demand_of", "metrics_of", "percentile", "stats_of"]


class LaneStats(PlainRecord, frozen=True, kw_only=True):
    """The items of one workspace in one queue."""

    workspace_id: str
    queue: str
    depth: int
    """The number of items that wait, ready or delayed."""
    ready: int
    delayed: int
    running: int
    """The number of items that use a slot: claimed and dispatched ones."""
    cap: int | None
    """The limit of the workspace over all queues; None if it has none."""
    oldest_seconds: float
    """How long the item that waits longest has been ready."""
    wait_p50_seconds: float | None
    """Percentiles of how long the latest started items had been ready; None if none has started."""
    wait_p90_seconds: float | None
    wait_p99_seconds: float | None


class Demand(PlainRecord, frozen=True, kw_only=True):
    """The demand for workers: the figures that an autoscaler needs."""

    ready: int
    """The number of ready items, whether or not their workspaces have free slots."""
    running: int
    startable: int
    """The number of ready items that could start now if a worker had room; more workers help with these.

    Under a rate limit at most one second's worth counts, since no more can start at once.
    """
    oldest_seconds: float

    @property
    def wanted(self) -> int:
        """Return the total concurrency that all workers together should have."""
        return self.running + self.startable


def percentile(ascending: Sequence[int], share: float) -> int | None:
    """Return the smallest value that at least ``share`` of the values do not exceed (nearest rank)."""
    if not ascending:
        return None
    return ascending[max(ceil(share * len(ascending)), 1) - 1]


def stats_of(lanes: Iterable[Lane], caps: dict[str, int | None], now_ms: int) -> list[LaneStats]:
    """Return the figures of each lane that has any.

    Stores differ in when they forget an empty lane.
    """
    return [
        LaneStats(
            workspace_id=lane.workspace_id,
            queue=lane.queue,
            depth=lane.ready + lane.delayed,
            ready=lane.ready,
            delayed=lane.delayed,
            running=lane.claimed + lane.dispatched,
            cap=caps.get(lane.workspace_id),
            oldest_seconds=_age(lane, now_ms),
            wait_p50_seconds=_seconds(percentile(lane.waits_ms, 0.5)),
            wait_p90_seconds=_seconds(percentile(lane.waits_ms, 0.9)),
            wait_p99_seconds=_seconds(percentile(lane.waits_ms, 0.99)),
        )
        for lane in lanes
        if lane.ready or lane.delayed or lane.claimed or lane.dispatched or lane.waits_ms
    ]


def demand_of(
    stats: Sequence[LaneStats], workspaces: Iterable[Workspace], limits: Mapping[str, Tier], queues: Iterable[QueueSettings]
) -> Demand:
    """Return the demand of all lanes together. A lane that is paused, full, or has a rate of 0 has none.

    ``limits`` are those of each workspace now.
    """
    used_by, used_in = Counter[str](), Counter[str]()
    for lane in stats:
        used_by[lane.workspace_id] += lane.running
        used_in[lane.queue] += lane.running
    room_of = {
        each.workspace_id: 0 if each.is_paused else _room(limits[each.workspace_id], used_by[each.workspace_id])
        for each in workspaces
    }
    settings = {lane.queue: QueueSettings(name=lane.queue) for lane in stats} | {each.name: each for each in queues}
    room_in = {name: 0 if each.is_paused else _room(each, used_in[name]) for name, each in settings.items()}
    startable = 0
    # Take lanes without a limit on one side first: what they take of the other side's limit goes to one item, no matter which
    # lane takes it.
    for lane in sorted(stats, key=lambda lane: -max(room_of[lane.workspace_id], room_in[lane.queue])):
        count = min(lane.ready, room_of[lane.workspace_id], room_in[lane.queue])
        room_of[lane.workspace_id] -= count
        room_in[lane.queue] -= count
        startable += count
    return Demand(
        ready=sum(lane.ready for lane in stats),
        running=used_by.total(),
        startable=startable,
        oldest_seconds=max((lane.oldest_seconds for lane in stats), default=0.0),
    )


def _room(limits: Tier | QueueSettings, used: int) -> int:
    """Return how many more items may start at once.

    The latest starts are not known here, so a rate counts with its whole second.
    """
    return min(free_slots(limits.concurrency, used), rate_allowance(limits.rate_per_second, 0, 0))


_METRICS = (
    ("stepwell_queue_ready", "Items that are ready to start.", "ready"),
    ("stepwell_queue_delayed", "Items that wait for their time.", "delayed"),
    ("stepwell_queue_running", "Items that use a slot of their workspace.", "running"),
    ("stepwell_queue_capacity", "How many executions the workspace may run at once.", "cap"),
    ("stepwell_queue_oldest_ready_seconds", "How long the longest waiting item has been ready.", "oldest_seconds"),
)
_QUANTILES = (("0.5", "wait_p50_seconds"), ("0.9", "wait_p90_seconds"), ("0.99", "wait_p99_seconds"))


def metrics_of(stats: Sequence[LaneStats], demand: Demand) -> str:
    """Return the figures in the text format of Prometheus."""
    lines: list[str] = []
    for name, text, field in _METRICS:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{{{_labels(lane)}}} {getattr(lane, field):.15g}" for lane in stats if getattr(lane, field) is not None]
    name = "stepwell_queue_wait_seconds"
    lines += [f"# HELP {name} How long the latest started items had been ready.", f"# TYPE {name} gauge"]
    for lane in stats:
        for quantile, field in _QUANTILES:
            if (value := getattr(lane, field)) is not None:
                lines.append(f'{name}{{{_labels(lane)},quantile="{quantile}"}} {value:.15g}')
    for name, text, value in (
        ("stepwell_queue_startable", "Ready items that more workers could start now.", demand.startable),
        ("stepwell_queue_wanted_workers_room", "How many places all workers together should have.", demand.wanted),
    ):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"]
    return "\n".join(lines) + "\n"


def _labels(lane: LaneStats) -> str:
    return f'workspace="{_escaped(lane.workspace_id)}",queue="{_escaped(lane.queue)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _age(lane: Lane, now_ms: int) -> float:
    return 0.0 if lane.oldest_ready_ms is None else max(now_ms - lane.oldest_ready_ms, 0) / 1000


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
