"""Bringing a run that is on disk to a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedarena.track.session import Session, make_tracker

REPORT_FILE = "report.html"


def export_run(folder: Path, tracker: Mapping[str, Any]) -> int:
    """Shows in a tracker what it does not have yet of a run, finished or not; returns how many rounds that were."""
    make_tracker(tracker).check()
    session, report = Session(folder, tracker), folder / REPORT_FILE
    try:
        session.begin()
        number = session.send()
        session.finish(report if report.is_file() else None)
    finally:
        session.release()
    return number
