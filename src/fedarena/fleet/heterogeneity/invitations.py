"""Whom a simulated round invites: `cohort` of the clients that are available, or all where there are fewer.

All available clients have the same chance, and who is chosen follows from seed, simulation and round alone. Where about
as many are available as are wanted, each gets a random number, and the lowest are invited. Where they are very many,
clients are drawn from everybody until enough of those drawn are available; if half as many draws as there are clients
were not enough, it is done in the first way after all.
"""

from __future__ import annotations

import numpy as np

from fedarena.core import streams
from fedarena.fleet.arrays import IntArray
from fedarena.fleet.heterogeneity.populations import AvailableClients, Population, RoundStarts
from fedarena.fleet.heterogeneity.random_choices import RandomChoices, ranks

_FIRST_DRAWS = 1.3  # times as many as are needed on average


class Invitations:
    """Chooses at most `cohort` clients of a population for every round."""

    def __init__(self, population: Population, choices: RandomChoices, cohort: int, seed: int):
        self._population, self._choices, self._cohort, self._seed = population, choices, cohort, seed
        self.draws = choices.may_draw and population.mean_available > population.drawing_ratio * cohort

    def invite(self, rounds: RoundStarts) -> AvailableClients:
        """Different clients for every round."""
        if not self.draws:
            return self._choices.choose_clients(rounds, self._population.all_available(rounds), self._cohort)
        drawn, short = self._drawn(rounds)
        if not len(short):
            return drawn
        few = rounds.take(short)
        chosen = self._choices.choose_clients(few, self._population.all_available(few), self._cohort)
        rows = np.concatenate([drawn.rows, short[chosen.rows]])
        clients = np.concatenate([drawn.clients, chosen.clients])
        order = np.argsort(rows, kind="stable")
        return AvailableClients(rows[order], clients[order])

    def _drawn(self, rounds: RoundStarts) -> tuple[AvailableClients, IntArray]:
        """Available clients drawn from everybody, and the rounds for which they were too few, which have none."""
        clients = self._population.clients
        pairs = np.empty(0, dtype=np.int64)  # of a round and a client, in the order in which they were drawn
        short, begin = np.arange(len(rounds)), 0
        number = int(_FIRST_DRAWS * self._cohort * clients / self._population.mean_available) + 1
        while len(short) and begin < clients // 2:
            end = min(begin + number, clients // 2)
            few = rounds.take(short)
            random = streams.bits(
                self._seed,
                "heterogeneity/draw",
                few.streams_of[:, None],
                few.rounds[:, None],
                np.arange(begin, end)[None, :],
            )
            drawn = (random % np.uint64(clients)).astype(np.int64)
            there = self._population.are_available(few, drawn)
            pairs = np.concatenate([pairs, (short[:, None] * clients + drawn)[there]])
            _, first = np.unique(pairs, return_index=True)
            pairs = pairs[np.sort(first)]
            counts = np.bincount(pairs // clients, minlength=len(rounds))
            short = short[counts[short] < self._cohort]
            begin, number = end, 2 * number
        pairs = pairs[np.argsort(pairs // clients, kind="stable")]
        enough = (counts >= self._cohort)[pairs // clients] & (ranks(counts) < self._cohort)
        return AvailableClients(*np.divmod(pairs[enough], clients)), short
