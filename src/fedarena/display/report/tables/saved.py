"""What compression saves: bytes that were sent, beside what the same would have taken as raw numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow.compute as pc

from fedarena.display.report.methods import Method
from fedarena.metrics import USED
from fedarena.storage.run_data import RunData
from fedarena.storage.tables import sent_bytes

_WORTH_TELLING: Final = 0.005  # of the bytes: less is headers and rounding


@dataclass(frozen=True)
class Saved:
    """Bytes of one direction of all used jobs, means over seeds."""

    label: str
    direction: str
    raw_bytes: float
    sent_bytes: float

    @property
    def sent_share(self) -> float:
        """Of the raw bytes."""
        return self.sent_bytes / self.raw_bytes

    @property
    def is_something(self) -> bool:
        """Whether anything was saved that is worth telling, or lost."""
        return abs(1 - self.sent_share) > _WORTH_TELLING


def saved_table(methods: Sequence[Method]) -> list[Saved]:
    """Uploads and downloads of every method, for directions in which some method saves; empty where none does."""
    found = [saved for method in methods for direction in ("upload", "download") for saved in _of(method, direction)]
    telling = {saved.direction for saved in found if saved.is_something}
    return [saved for saved in found if saved.direction in telling]


def _of(method: Method, direction: str) -> list[Saved]:
    seeds = [found for run in method.counted if (found := _bytes(run, direction)) is not None]
    if not seeds:
        return []
    raw, sent = np.mean(np.array(seeds, dtype=np.float64), axis=0).tolist()
    return [Saved(method.label, direction, raw, sent)]


def _bytes(run: RunData, direction: str) -> tuple[float, float] | None:
    """Raw and sent bytes of the used jobs; None in runs of earlier versions, and where nothing was sent."""
    raw = run.environment.get(f"raw_{direction}_bytes")
    used = run.jobs.filter(pc.equal(run.jobs["outcome"], USED))
    if raw is None or not len(used):
        return None
    name = "bytes_up" if direction == "upload" else "bytes_down"
    return float(raw) * len(used), float(pc.sum(sent_bytes(used, name)).as_py())
