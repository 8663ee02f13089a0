"""Losses that clients compute beside their training: passes forward alone, which take time as well."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedarena.simulate.policies import Policy
from fedarena.train import Algorithm, ClientData
from fedarena.train.engine import IntArray, Part

SCORED_SAMPLES = "scored_samples"  # the column of the table of jobs that says on how many


def scores_in_jobs(algorithm: Algorithm, policy: Policy | None) -> bool:
    """Whether clients compute such losses: of what they download, for a method, or to judge hyperparameters by."""
    return bool(_scored_parts(algorithm, policy))


def scored_samples(
    algorithm: Algorithm, policy: Policy | None, data: ClientData, times: int
) -> Callable[[IntArray], IntArray] | None:
    """On how many samples clients compute them in a job in which they train so many `times`; None: on none."""
    parts = _scored_parts(algorithm, policy)

    def scored(clients: IntArray) -> IntArray:
        found: IntArray = np.sum([data.counts(clients, part) for part in parts], axis=0, dtype=np.int64)
        return times * found

    return scored if parts else None


def _scored_parts(algorithm: Algorithm, policy: Policy | None) -> list[Part]:
    """The part of the samples of every such pass."""
    parts: list[Part] = ["train"] if algorithm.needs_start_loss else []
    if policy is not None and policy.judges:
        parts += [policy.judged_on] * (2 if policy.judgement == "difference" else 1)
    return parts
