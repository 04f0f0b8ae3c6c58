"""Metrics of the HTTP server itself: requests by route and status, their latency, and open streams."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from stepwell.pipeline.write_statistics import BUCKETS, WriteStatistics

__all__ = ["ServerMetrics", "store_metrics"]


class ServerMetrics:
    """Counts what one server does. Each has a registry of its own, so that two in one process do not clash."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "stepwell_http_requests_total", "HTTP requests by route and status.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "stepwell_http_request_seconds", "Latency of HTTP requests by route.", ["route"], registry=self._registry
        )
        self.streams = Gauge("stepwell_http_event_streams", "Streams of events that are open.", registry=self._registry)
        self.dropped = Counter(
            "stepwell_http_event_streams_dropped_total",
            "Streams closed because the client read too slowly.",
            registry=self._registry,
        )

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self._registry).decode()


def store_metrics(written: WriteStatistics, *, parts: Mapping[str, str], workers: int, leases: int) -> str:
    """Return what this process wrote, and whether each part of the well works, in the text format of Prometheus.

    - ``parts``: of the well's health, each ``ok`` or what is wrong.
    - ``workers``: how many workers serve the queue.
    - ``leases``: how many runs the worker of this process has.
    """
    lines = [
        "# HELP stepwell_up Whether a part of the well works.",
        "# TYPE stepwell_up gauge",
        *(f'stepwell_up{{part="{name}"}} {int(state == "ok")}' for name, state in parts.items()),
        "# HELP stepwell_workers Workers that serve the queue, in all processes.",
        "# TYPE stepwell_workers gauge",
        f"stepwell_workers {workers}",
        "# HELP stepwell_leases Runs that the worker of this process has leased.",
        "# TYPE stepwell_leases gauge",
        f"stepwell_leases {leases}",
        "# HELP stepwell_commits_total Commits that this process wrote.",
        "# TYPE stepwell_commits_total counter",
        f"stepwell_commits_total {written.commits}",
        "# HELP stepwell_runs_total Runs that reached a status by a commit of this process.",
        "# TYPE stepwell_runs_total counter",
        *(f'stepwell_runs_total{{status="{status}"}} {count}' for status, count in sorted(written.runs.items())),
        "# HELP stepwell_step_commits_total Commits of this process that only record what steps did.",
        "# TYPE stepwell_step_commits_total counter",
        f"stepwell_step_commits_total {written.steps}",
        "# HELP stepwell_commits_refused_total Commits that the store refused, by error: another worker was first.",
        "# TYPE stepwell_commits_refused_total counter",
        *(f'stepwell_commits_refused_total{{error="{name}"}} {count}' for name, count in sorted(written.refused.items())),
        "# HELP stepwell_webhooks_total Webhook messages that this process sent, by whether they were accepted.",
        "# TYPE stepwell_webhooks_total counter",
        *(f'stepwell_webhooks_total{{result="{name}"}} {count}' for name, count in sorted(written.webhooks.items())),
        "# HELP stepwell_store_write_failures_total Groups of writes that failed.",
        "# TYPE stepwell_store_write_failures_total counter",
        f"stepwell_store_write_failures_total {written.failed_groups}",
        "# HELP stepwell_store_write_seconds Latency of a group of writes, from the call of the store to its reply.",
        "# TYPE stepwell_store_write_seconds histogram",
    ]
    total = 0
    for bound, count in zip((*BUCKETS, inf), written.groups_by_bucket, strict=True):
        total += count
        lines.append(f'stepwell_store_write_seconds_bucket{{le="{"+Inf" if bound == inf else bound}"}} {total}')
    lines += [f"stepwell_store_write_seconds_sum {written.seconds}", f"stepwell_store_write_seconds_count {total}"]
    return "\n".join(lines) + "\n"
