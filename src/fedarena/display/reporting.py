"""Reports of runs as soon as they end, for those that other places show as well."""

from __future__ import annotations

from pathlib import Path

from fedarena.core.errors import FedArenaError
from fedarena.runs.observer import Observer
from fedarena.storage.run_data import load_run
from fedarena.track.export import REPORT_FILE

__all__ = ["REPORT_FILE", "Reporting"]


class Reporting(Observer):
    """Writes a report of a run for its trackers, into its folder."""

    def __init__(self) -> None:
        self.reported: Path | None = None  # the last run that has a report by this

    def report(self, folder: Path) -> Path | None:
        """Writes it; None where there is nothing to report, or no room."""
        from fedarena.display.report.page import write_report  # draws, which needs libraries that take a while

        try:
            path = write_report([load_run(folder)], folder / REPORT_FILE)
        except (FedArenaError, OSError):
            return None
        self.reported = folder
        return path
