"""Statistical and systems metrics."""

from fedarena.metrics.clients import PERSONAL, summarize_clients, summary_names

__all__ = ["PERSONAL", "summarize_clients", "summary_names"]
