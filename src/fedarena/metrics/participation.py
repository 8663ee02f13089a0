"""Who takes part: how evenly jobs are spread over all clients that could have had one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def gini(counts: IntArray, clients: int) -> float:
    """The Gini coefficient of how often each of `clients` took part: 0 if all equally often, near 1 if one alone.

    `counts` are of those who did; whoever is missing counts as zero. NaN where nobody took part.
    """
    taken = np.sort(counts).astype(np.float64)
    if not taken.sum():
        return float("nan")
    ranks = np.arange(clients - len(taken) + 1, clients + 1)
    return float(2 * (ranks * taken).sum() / (clients * taken.sum()) - (clients + 1) / clients)


def lorenz_curve(counts: IntArray, clients: int, shares: FloatArray) -> FloatArray:
    """Which share of all jobs fell to the given `shares` of the clients, beginning with those who had the fewest."""
    taken = np.sort(counts)
    have = np.concatenate([[0.0, 0.0], np.cumsum(taken) / taken.sum()])
    absent = clients - len(taken)
    places = np.concatenate([[0.0], np.arange(absent, clients + 1) / clients])
    return np.asarray(np.interp(shares, places, have), dtype=np.float64)


def summarize_participation(
    jobs_of: IntArray, used: npt.NDArray[np.bool_], clients: int, running: IntArray | None = None
) -> dict[str, Any]:
    """How many of `clients` were ever invited, and how evenly.

    `jobs_of` is the client of every job that ended, `used` says whose update went into a model, and `running` are those
    who are still at work, with jobs that overlap with rounds.
    """
    _, counts = np.unique(jobs_of, return_counts=True)
    invited = len(counts if running is None else np.union1d(jobs_of, running))
    contributing = len(np.unique(jobs_of[used]))
    return {
        "clients": clients,
        "invited_clients": invited,
        "gini": gini(counts, clients) if len(counts) else None,
        "never_invited_share": 1 - invited / clients,
        "used_clients": contributing,
        "never_used_share": 1 - contributing / clients,
    }
