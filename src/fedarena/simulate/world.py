"""The clients and their phones, as a protocol sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import TrainingStuckError
from fedarena.simulate.jobs import FloatArray, Jobs
from fedarena.simulate.phones import Phones
from fedarena.simulate.selectors import Candidates, Selector, Uniform
from fedarena.train.engine import IntArray
from fedarena.train.memories import refusing_memories
from fedarena.train.own_code import seeded_if_own

_CLIENTS_AT_ONCE = 1 << 16  # when the whole population must be looked at
_OBSERVE = "only prepare and observe change a selector, and random numbers come from the candidates"
_DRAWS_EACH = 24  # with a fifth of the clients available, that is enough 199 times of 200


@dataclass(frozen=True)
class World:
    """Whom a server can invite, and what becomes of those it does."""

    seed: int
    clients: IntArray  # all who could ever be invited, sorted
    samples: Callable[[IntArray], IntArray]  # how many training samples these have
    selector: Selector
    phones: Phones
    overhead_seconds: float = 0.0  # what the server takes before every round
    current_loss: Callable[[IntArray], FloatArray] | None = None
    round: int = 0  # that is played now
    begin: Callable[[IntArray, FloatArray], FloatArray] | None = None  # when those hear of it who are invited at a time

    def invite(self, number: int, time: float, round: int, busy: IntArray | None = None, turn: int = 0) -> IntArray:
        """Up to `number` clients who are available at `time` and not busy, chosen by the selector."""
        phones = self.phones
        everybody = phones.never_leave
        candidates = Candidates(
            self.clients,
            time,
            self.seed,
            round,
            self.samples,
            is_available=None if everybody else phones.is_available,
            seconds_left=None if everybody else phones.seconds_left,
            busy=busy,
            current_loss=self.current_loss,
            turn=turn,
        )
        # Somebody's own selector may draw from a global generator: then its numbers are those of this choice.
        seeded = seeded_if_own(self.selector, self.seed, "own selector", round, turn)
        with seeded, refusing_memories(self.selector, "select", _OBSERVE):
            chosen = self.selector.select(number, candidates, round)
        return self._checked(chosen, number, busy)

    def invite_each(self, times: FloatArray, round: int, busy: IntArray, first_turn: int) -> IntArray:
        """A client for every one of these moments, one after the other; ends before the first at which there is nobody.

        `busy` are not invited, and nobody is invited twice.
        """
        chosen: list[int] = []
        is_uniform = type(self.selector).select is Uniform.select
        shortcut = self._draw_each(times, round, busy, first_turn) if is_uniform else {}
        for place, time in enumerate(times.tolist()):
            client = next((client for client in shortcut.get(place, ()) if client not in chosen), None)
            if client is None:
                taken = np.sort(np.concatenate([busy, np.array(chosen, dtype=np.int64)]))
                invited = self.invite(1, time, round, taken, first_turn + place)
                if not len(invited):
                    break
                client = int(invited[0])
            chosen.append(client)
        return np.array(chosen, dtype=np.int64)

    def _draw_each(self, times: FloatArray, round: int, busy: IntArray, first_turn: int) -> dict[int, list[int]]:
        """Candidates for every moment, independent uniform draws in the order in which they come into question."""
        turns = first_turn + np.arange(len(times))[:, None]
        chances = streams.uniform(self.seed, "one at a time", round, turns, np.arange(_DRAWS_EACH)[None, :])
        drawn = self.clients[(chances * len(self.clients)).astype(np.int64)]
        moments = np.repeat(times, _DRAWS_EACH)
        available = self.phones.is_available(drawn.ravel(), moments) & ~np.isin(drawn.ravel(), busy)
        places, columns = np.nonzero(available.reshape(drawn.shape))
        found: dict[int, list[int]] = {}
        for place, client in zip(places.tolist(), drawn[places, columns].tolist(), strict=True):
            found.setdefault(place, []).append(client)
        return found

    def invite_when_possible(self, number: int, time: float, round: int) -> tuple[float, IntArray]:
        """Like `invite`, but where nobody is available, the server waits until somebody is; also says since when.

        If somebody is available and it is by chance that nobody is invited, that is a cohort like any other.
        """
        clients = self.invite(number, time, round)
        while not len(clients):
            if self.selector.varies and self.next_available(time) <= time:
                break
            time = self.next_chance(time)
            clients = self.invite(number, time, round)
        return time, clients

    def next_chance(self, time: float) -> float:
        """When to try again after nobody was invited at `time`."""
        later = self.next_available(time)
        if later <= time:
            raise TrainingStuckError(f"{self._selector} chose nobody, although somebody is available")
        return later

    @property
    def _selector(self) -> str:
        return f"The selector {type(self.selector).__name__}"

    def next_available(self, time: float, busy: IntArray | None = None) -> float:
        """The first moment, from `time` on, at which somebody who is not busy is available."""
        moment = np.inf
        for begin in range(0, len(self.clients), _CLIENTS_AT_ONCE):
            clients = self.clients[begin : begin + _CLIENTS_AT_ONCE]
            if busy is not None:
                clients = np.setdiff1d(clients, busy, assume_unique=True)
            moment = min(moment, float(self.phones.next_available(clients, time).min(initial=np.inf)))
        if not np.isfinite(moment):
            raise TrainingStuckError(
                f"After {time / 3600:.1f} hours of virtual time nobody is left who is ever available again, "
                "so training cannot go on"
            )
        return moment

    def with_upload(self, upload_bytes: int) -> World:
        """The same, but every job that is planned from now on uploads so much."""
        load = replace(self.phones.load, upload_bytes=upload_bytes)
        return replace(self, phones=replace(self.phones, load=load))

    def with_decisions(self, decide: Callable[[IntArray, IntArray], FloatArray]) -> World:
        """The same, but for every job that is planned from now on it is decided how it trains."""
        load = replace(self.phones.load, decide=decide)
        return replace(self, phones=replace(self.phones, load=load))

    def plan(self, clients: IntArray, times: float | FloatArray, version: int, first_number: int) -> Jobs:
        """The jobs of clients who are invited at these times, numbered in this order."""
        numbers = np.arange(first_number, first_number + len(clients))
        invited = np.asarray(times, dtype=np.float64)
        begin = invited if self.begin is None else self.begin(clients, invited)
        return self.phones.plan(clients, numbers, begin, version, self.round, begin - invited)

    def _checked(self, chosen: Any, number: int, busy: IntArray | None) -> IntArray:
        """Whoever writes a selector of their own is told what it does wrong."""
        clients = np.asarray(chosen)
        if clients.ndim != 1 or (len(clients) and clients.dtype.kind not in "iu"):
            raise TrainingStuckError(f"{self._selector} must return an array of clients' indexes, not {chosen!r:.60}")
        clients = clients.astype(np.int64)
        too_many = len(clients) > number and not self.selector.varies
        ordered = np.sort(clients)
        if too_many or (ordered[1:] == ordered[:-1]).any():
            raise TrainingStuckError(f"{self._selector} must choose at most {number} different clients")
        place = np.minimum(np.searchsorted(self.clients, clients), len(self.clients) - 1)
        if (self.clients[place] != clients).any() or (busy is not None and np.isin(clients, busy).any()):
            raise TrainingStuckError(f"{self._selector} chose a client who is not a candidate")
        return clients
