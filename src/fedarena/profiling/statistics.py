"""How long something took, over many times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Clock = Callable[[], float]
Summary = dict[str, float | None]


def time_calls(call: Callable[[], None], times: int, clock: Clock) -> list[float]:
    """Seconds of every one of so many calls."""
    seconds = []
    for _ in range(times):
        begin = clock()
        call()
        seconds.append(clock() - begin)
    return seconds


def summarize(values: Sequence[float]) -> Summary:
    """Mean, standard deviation (of a sample; None if there is one value only), median, and what lies around it."""
    array = np.asarray(values, dtype=np.float64)
    p10, median, p90 = np.quantile(array, [0.1, 0.5, 0.9])
    return {
        "mean": float(array.mean()),
        "std": float(array.std(ddof=1)) if len(array) > 1 else None,
        "median": float(median),
        "p10": float(p10),
        "p90": float(p90),
        "min": float(array.min()),
        "max": float(array.max()),
    }
