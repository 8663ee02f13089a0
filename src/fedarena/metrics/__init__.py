"""Statistical and systems metrics."""

from fedarena.metrics.clients import summarize_clients, summary_names

__all__ = ["summarize_clients", "summary_names"]
