"""The numbers that FLAIR's authors published, and that `flair_like` has in common with it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.data.flair_like.arrays import Floats


@cache
def published() -> dict[str, Any]:
    """All of them, with where they are from as ``source``."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
    return found


def coarse_labels() -> tuple[str, ...]:
    """FLAIR's 17 coarse labels, the most frequent first."""
    return tuple(published()["images_with_label"])


def label_frequencies() -> Floats:
    """The share of images that have each coarse label."""
    found: Floats = np.array(list(published()["images_with_label"].values())) / published()["images"]
    return found
