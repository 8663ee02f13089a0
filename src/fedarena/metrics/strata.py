"""Metrics by what is known about clients: how those of one play, one subreddit, one kind of phone fare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.metrics.clients import FloatArray, is_loss, summarize_clients

IntArray = npt.NDArray[np.int64]

# Of values that only few clients have, no more than these are told apart.
MOST_STRATA = 100


def stratify(
    values: Sequence[Any],
    samples: IntArray,
    means: Mapping[str, tuple[FloatArray, IntArray]],
    most: int = MOST_STRATA,
) -> list[dict[str, Any]]:
    """One row per value of an attribute, the one with most samples first; the rest is one more, with no value.

    A row has the `value`, the number of `clients` and `samples`, and for every metric what `summarize_clients` tells,
    over the clients that have a mean of it. `means` has that of every client, and how many predictions it is a mean of.
    """
    names, places = np.unique(np.asarray(values, dtype=object).astype(str), return_inverse=True)
    original = {str(value): value for value in values}
    totals = np.bincount(places, weights=samples, minlength=len(names))
    order = np.argsort(-totals, kind="stable")
    shown, rest = order[:most], order[most:]
    rank = np.empty(len(names), dtype=np.int64)
    rank[shown], rank[rest] = np.arange(len(shown)), len(shown)
    stratum = rank[places]
    rows = []
    for number in range(len(shown) + (len(rest) > 0)):
        inside = stratum == number
        row: dict[str, Any] = {
            "value": original[str(names[shown[number]])] if number < len(shown) else None,
            "clients": int(inside.sum()),
            "samples": int(samples[inside].sum()),
        }
        for metric, (of_clients, predictions) in means.items():
            scored = inside & np.isfinite(of_clients) & (predictions > 0)
            if scored.any():
                weights = predictions[scored]
                row |= summarize_clients(metric, of_clients[scored] * weights, weights, not is_loss(metric))
        rows.append(row)
    return rows
