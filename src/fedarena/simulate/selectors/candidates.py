"""Who may be invited at a moment, and how to draw some of them without looking at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.train.engine import IntArray

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Accept = Callable[[IntArray], npt.NDArray[Any]]  # clients → whether they are accepted, or with which probability


class Weights:
    """A whole number per client; drawing clients in proportion to it costs O(log clients) each."""

    def __init__(self, weights: IntArray):
        self._cumulative: IntArray = np.cumsum(weights, dtype=np.int64)

    @classmethod
    def by_size(cls, clients: IntArray, samples: Callable[[IntArray], IntArray]) -> Weights:
        """As many as clients have training samples; who has none counts like one sample, so that nobody is excluded."""
        return cls(np.maximum(samples(clients), 1))

    def draw(self, random: np.random.Generator, count: int) -> IntArray:
        """Positions of `count` clients, drawn independently of each other."""
        marks = random.integers(self._cumulative[-1], size=count)
        return np.searchsorted(self._cumulative, marks, side="right").astype(np.int64)

    def of(self, positions: IntArray) -> IntArray:
        """The weights at these positions."""
        before = np.where(positions > 0, self._cumulative[positions - 1], 0)
        return np.asarray(self._cumulative[positions] - before, dtype=np.int64)


class Candidates:
    """Who may be invited now: everybody in `clients` who is available at `time` and does not run already.

    A question costs as much as there are clients in it; only `everybody` looks at the whole population. `clients` (all
    who could ever be invited) and `busy` (who runs now) are sorted. The functions may be left out: then everybody is
    always available, nobody leaves, and losses cannot be asked for. `turn` counts the selections within a round, so
    that each of them draws numbers of its own.
    """

    def __init__(
        self,
        clients: IntArray,
        time: float,
        seed: int,
        round: int,
        samples: Callable[[IntArray], IntArray],
        is_available: Callable[[IntArray, float], BoolArray] | None = None,
        seconds_left: Callable[[IntArray, float], FloatArray] | None = None,
        busy: IntArray | None = None,
        current_loss: Callable[[IntArray], FloatArray] | None = None,
        turn: int = 0,
    ):
        self.clients = clients
        self.time = time
        self.seed = seed
        self.round = round
        self.samples = samples
        self._is_available = is_available
        self._seconds_left = seconds_left
        self._busy = np.empty(0, dtype=np.int64) if busy is None else busy
        self._current_loss = current_loss
        self._turn = turn

    def are_available(self, clients: IntArray) -> BoolArray:
        """Whether each of these is available now and idle."""
        available = np.ones(len(clients), dtype=np.bool_)
        if self._is_available is not None:
            available &= self._is_available(clients, self.time)
        if len(self._busy):
            place = np.minimum(np.searchsorted(self._busy, clients), len(self._busy) - 1)
            available &= self._busy[place] != clients
        return available

    def everybody(self) -> IntArray:
        """All candidates; costs a look at the whole population."""
        return self.clients[self.are_available(self.clients)]

    def seconds_left(self, clients: IntArray) -> FloatArray:
        """How long each of these, if available, stays so without a break; infinite for who never leaves."""
        if self._seconds_left is None:
            return np.full(len(clients), np.inf)
        return self._seconds_left(clients, self.time)

    def current_loss(self, clients: IntArray) -> FloatArray:
        """The mean loss of the current model on the training samples of each of these; costs an evaluation."""
        if self._current_loss is None:
            raise BadInputError(
                "The losses of the current model are not known here; use the latest losses seen instead"
            )
        return self._current_loss(clients)

    def random(self, purpose: str) -> np.random.Generator:
        """The generator of this purpose, round and turn."""
        turn = [self._turn] if self._turn else []
        return streams.generator(self.seed, purpose, self.round, *turn)

    def draw(
        self, number: int, purpose: str = "selector", accept: Accept | None = None, weights: Weights | None = None
    ) -> IntArray:
        """`number` different candidates, sorted, or all of them if there are fewer.

        Exactly uniform or, one after the other without replacement, in proportion to `weights` (by position in
        `clients`) times what `accept` says. It is done by rejection: clients are drawn from the whole population until
        enough of them are candidates, which looks at O(number / share of candidates) clients. When that would be more
        than the whole population, everybody is looked at instead.
        """
        random = self.random(purpose)
        population = len(self.clients)
        chosen = np.empty(0, dtype=np.int64)  # positions in `clients`, in the order of choice
        looked_at = tried = brought = 0  # in all; in the last draw, and how many new candidates that one brought
        if accept is None and weights is None and number < population:
            # Everybody's chances are equal, so the first draw can be one without replacement. Where everybody is
            # available it is also the last.
            first = random.choice(population, size=number, replace=False, shuffle=False)
            chosen = first[self.are_available(self.clients[first])]
            looked_at, tried, brought = number, number, len(chosen)
        while len(chosen) < number:
            missing = number - len(chosen)
            # A little more than the last draw suggests, so that this one is usually enough.
            tried = int(1.2 * missing * (tried + 1) / (brought + 0.5)) + 4
            looked_at += tried
            if looked_at > population:
                rest = self._choose_among_all(missing, random, chosen, accept, weights)
                chosen = np.concatenate([chosen, rest])
                break
            drawn = weights.draw(random, tried) if weights is not None else random.integers(population, size=tried)
            if accept is not None:
                coins = random.random(tried)
                drawn = drawn[coins < accept(self.clients[drawn])]
            drawn = drawn[self.are_available(self.clients[drawn])]
            known = len(chosen)
            chosen = _first_occurrences(np.concatenate([chosen, drawn]))
            brought, chosen = len(chosen) - known, chosen[:number]
        drawn_clients: IntArray = self.clients[np.sort(chosen)]
        return drawn_clients

    def _choose_among_all(
        self,
        number: int,
        random: np.random.Generator,
        chosen: IntArray,
        accept: Accept | None,
        weights: Weights | None,
    ) -> IntArray:
        """Positions of `number` more candidates, with the same chances as by rejection, by looking at everybody.

        Exponential waiting times whose rates are the weights come to an end in the order of draws without replacement.
        """
        left = self.are_available(self.clients)
        left[chosen] = False
        places = np.flatnonzero(left)
        rates = np.ones(len(places))
        if weights is not None:
            rates *= weights.of(places)
        if accept is not None:
            rates *= accept(self.clients[places])
        possible = rates > 0
        places, rates = places[possible], rates[possible]
        waiting = random.exponential(size=len(places)) / rates
        if number < len(places):
            places = places[np.argpartition(waiting, number)[:number]]
        return places


def _first_occurrences(values: IntArray) -> IntArray:
    """Every value once, in the order in which they first occur."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]
