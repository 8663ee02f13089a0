"""Candidates for tests of selectors, from plain lists; they count how many clients were looked at, and how often."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import scipy.stats

from fedarena.core import streams
from fedarena.simulate.selectors import Candidates, Feedback, Selector


def select_uniform(eligible: np.ndarray, cohort: int, seed: int, round: int) -> np.ndarray:
    """Whom a run invites where everybody is available: the numbers that runs have always drawn."""
    if cohort == len(eligible):
        return eligible
    chosen = streams.generator(seed, "cohort", round).choice(len(eligible), size=cohort, replace=False, shuffle=False)
    return eligible[np.sort(chosen)]


class Population:
    """Some clients, how many samples they have, who of them is there, when they leave and how well they do."""

    def __init__(
        self,
        sizes: Iterable[int],
        available: Iterable[int] | None = None,
        busy: Iterable[int] = (),
        seconds_left: Callable[[np.ndarray], np.ndarray] | None = None,
        losses: Callable[[np.ndarray], np.ndarray] | None = None,
        every: int = 1,  # clients are 0, every, 2 * every, …
    ):
        self.sizes = np.repeat(np.array(list(sizes), dtype=np.int64), every)  # by client, like all arrays here
        self.clients = np.arange(0, len(self.sizes), every)
        self.available = None if available is None else np.isin(np.arange(len(self.sizes)), list(available))
        self.busy = np.array(sorted(busy), dtype=np.int64)
        self.seconds_left = seconds_left
        self.losses = losses
        self.questions = self.looked_at = 0

    def _is_available(self, clients: np.ndarray, time: float) -> np.ndarray:
        assert self.available is not None
        self.questions += 1
        self.looked_at += len(clients)
        return self.available[clients]

    def samples(self, clients: np.ndarray) -> np.ndarray:
        return self.sizes[clients]

    def at(self, round: int = 1, seed: int = 0, turn: int = 0) -> Candidates:
        leaves = self.seconds_left
        return Candidates(
            clients=self.clients,
            time=0.0,
            seed=seed,
            round=round,
            samples=self.samples,
            is_available=None if self.available is None else self._is_available,
            seconds_left=None if leaves is None else lambda clients, time: leaves(clients),
            busy=self.busy,
            current_loss=self.losses,
            turn=turn,
        )

    def prepare(self, selector: Selector, cohort: int = 5) -> Selector:
        selector.prepare(self.clients, self.samples, cohort, 0)
        return selector


def make_feedback(
    clients: Iterable[int],
    losses: npt.ArrayLike = 1.0,
    seconds: npt.ArrayLike = 1.0,
    used: npt.ArrayLike = True,
    samples: npt.ArrayLike = 10,
) -> Feedback:
    found = np.array(list(clients), dtype=np.int64)

    def column(values: npt.ArrayLike, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, dtype), found.shape)

    used_clients = column(used, np.bool_)
    return Feedback(
        clients=found,
        used=used_clients,
        losses=np.where(used_clients, column(losses, np.float64), np.nan),
        seconds=column(seconds, np.float64),
        samples=column(samples, np.int64),
    )


def assert_frequencies(counts: Iterable[float], probabilities: Iterable[float]) -> None:
    """Fails if counts like these, or further off, come by chance once in a thousand times."""
    observed, expected = np.array(list(counts), dtype=float), np.array(list(probabilities), dtype=float)
    np.testing.assert_allclose(expected.sum(), 1, rtol=1e-9)
    assert (observed[expected == 0] == 0).all()
    possible = expected > 0
    result = scipy.stats.chisquare(observed[possible], expected[possible] * observed.sum())
    assert result.pvalue > 1e-3, (observed, expected * observed.sum())
