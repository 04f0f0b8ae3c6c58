"""Metrics of the HTTP server itself: requests by route and status, their latency, and open streams."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["ServerMetrics"]


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
