"""The HTTP server: the API under ``/api/v1``, health, metrics, and what the dashboard is built on."""
