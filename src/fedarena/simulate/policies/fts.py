"""Federated Thompson sampling. Dai et al., "Federated Bayesian Optimization via Thompson Sampling", NeurIPS 2020.

Every client has a belief of its own about how good hyperparameters x are for it: a Gaussian process whose kernel is
approximated by random Fourier features φ(x), the same for everybody. With its observations, Σ = ΦᵀΦ + σ²I and
ν = Σ⁻¹ Φᵀ y; a sample of the belief is ω ~ N(ν, σ²Σ⁻¹), and x is chosen where φ(x)·ω is largest. For its t-th
choice a client draws, with probability p_t = 1 - 1/t², a sample of its own, and otherwise takes one that another client
has shared. What a client knows stays with it, but for the sample that it sends with its update.

Samples are kept at the server in `slots`. Where there are more clients than slots, several share one, which holds the
mean of the samples that came last: what a server learns by adding up. x is looked for among `candidates` random
points. What is observed is by which share local training made the loss smaller (or minus the loss after it). Both
change while the model learns, so y is that minus its discounted mean over all clients so far, in units of how far it is
usually from that; the first observations, which have nothing to be compared with, are 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.simulate.policies.arms import plain
from fedarena.simulate.policies.base import (
    POLICIES,
    POLICY_GROUP,
    Baseline,
    FloatArray,
    IntArray,
    Judged,
    JudgedOn,
    Judgement,
    Policy,
    PolicyFacts,
)
from fedarena.train import Groups, JobContext
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import Sent, Wire

_BELIEF, _SHARED, _LEVEL, _SPREAD = "belief", "shared", "level", "spread"
_TINY = 1e-12
_MOST_SPREADS = 3.0  # that an observation may be from the mean
OWN_SHARE = "policy_own_share"


@POLICIES.register("fts")
class FTS(Policy):
    """Thompson sampling by every client, with samples of others' beliefs.

    `features` is how many random features there are, `lengthscale` how far apart (in the unit cube of the search space)
    hyperparameters are that have little to do with each other, and `noise` is σ, the deviation of what is observed
    (whose own deviation is about 1).
    """

    def __init__(
        self,
        *,
        search: dict[str, Any] | None = None,
        features: int = 50,
        lengthscale: float = 0.2,
        noise: float = 0.3,
        slots: int = 32,
        candidates: int = 256,
        judgement: Judgement = "difference",
        judged_on: JudgedOn = "validation",
    ):
        super().__init__(search=search, judgement=judgement, judged_on=judged_on)
        for name, number, most in (
            ("features", features, 1000),
            ("slots", slots, 4096),
            ("candidates", candidates, 10**5),
        ):
            if not 1 <= number <= most:
                raise BadInputError(f"policy.{name} must be from 1 to {most}, not {number}")
        for name, value in (("lengthscale", lengthscale), ("noise", noise)):
            if not 0 < value < math.inf:
                raise BadInputError(f"policy.{name} must be above 0, not {value}")
        self.features, self.lengthscale, self.noise = features, lengthscale, noise
        self.slots, self.candidates = slots, candidates
        self.baseline = Baseline(discount=0.9)

    def prepare(self, facts: PolicyFacts) -> None:
        """Draws the features."""
        super().prepare(facts)
        self.slots = min(self.slots, len(facts.clients))
        generator = streams.generator(facts.seed, "random features")
        self._frequencies = generator.standard_normal((len(self.space), self.features)) / self.lengthscale
        self._phases = 2 * math.pi * generator.random(self.features)

    def private_obstacle(self) -> str | None:
        """Samples of beliefs do not survive being clipped together with an update."""
        return (
            "its clients send samples of what they believe, of which clipping and noise would leave nothing; choose "
            "policy=fedex"
        )

    def phi(self, places: FloatArray) -> FloatArray:
        """The features of points of the unit cube, ``[…, features]``."""
        found: FloatArray = math.sqrt(2 / self.features) * np.cos(places @ self._frequencies + self._phases)
        return found

    def slot_of(self, clients: IntArray) -> IntArray:
        """Where the samples of these clients are kept."""
        places: IntArray = np.searchsorted(self.facts.clients, clients) % self.slots
        return places

    def server_init(self, update: Groups) -> Groups:
        """Nobody has shared anything."""
        zeros = torch.zeros((self.slots, self.features), dtype=torch.float64)
        return {
            _SHARED: {"samples": zeros, "filled": torch.zeros(self.slots, dtype=torch.int64)},
            _LEVEL: self.baseline.start(),
            _SPREAD: self.baseline.start(),
        }

    def client_init(self, update: Groups) -> Groups:
        """A belief without observations."""
        return {
            _BELIEF: {
                "precision": self.noise**2 * torch.eye(self.features, dtype=torch.float64),
                "targets": torch.zeros(self.features, dtype=torch.float64),
                "observations": torch.zeros((), dtype=torch.int64),
            }
        }

    def sample(self, precision: FloatArray, targets: FloatArray, normals: FloatArray) -> FloatArray:
        """ω ~ N(ν, σ²Σ⁻¹) from standard normal numbers."""
        factor = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, targets)
        drawn: FloatArray = mean + self.noise * np.linalg.solve(factor.T, normals)
        return drawn

    def decide(self, server: Groups, clients: IntArray, numbers: IntArray, kept: Sequence[Groups]) -> FloatArray:
        """Where a sample is largest; a decision is the point in the unit cube, and whether the sample was one's own."""
        filled = np.flatnonzero(server[_SHARED]["filled"].cpu().numpy())
        shared = server[_SHARED]["samples"].cpu().numpy()
        new = self.client_init({})
        own_slots = self.slot_of(clients)
        decisions = np.empty((len(clients), len(self.space) + 1))
        for row, (client, number) in enumerate(zip(clients.tolist(), numbers.tolist(), strict=True)):
            generator = streams.generator(self.facts.seed, "thompson", number, client)
            belief = (kept[row] or new)[_BELIEF]
            choice = int(belief["observations"]) + 1
            others = filled[filled != own_slots[row]]
            own = not len(others) or generator.random() < 1 - 1 / choice**2
            if own:
                normals = generator.standard_normal(self.features)
                omega = self.sample(belief["precision"].numpy(), belief["targets"].numpy(), normals)
            else:
                omega = shared[generator.choice(others)]
            candidates = generator.random((self.candidates, len(self.space)))
            decisions[row, :-1] = candidates[(self.phi(candidates) @ omega).argmax()]
            decisions[row, -1] = own
        return decisions

    def hyperparameters(self, decisions: FloatArray) -> dict[str, FloatArray]:
        """The values at the points."""
        return {
            one.name: np.array([float(one.value_at(place)) for place in decisions[:, column]])
            for column, one in enumerate(self.space)
        }

    def points(self, decisions: FloatArray) -> FloatArray:
        """Where the values that were really tried are, after rounding to whole numbers or to one of a list."""
        columns = [
            [one.place_of(one.value_at(place)) for place in decisions[:, column]]
            for column, one in enumerate(self.space)
        ]
        return np.array(columns).T

    def empty_message(self) -> Tensors:
        """Nothing shared."""
        scalars = {name: torch.zeros(()) for name in ("gains", "spreads", "weight")}
        return {"samples": torch.zeros(self.slots, self.features), "counts": torch.zeros(self.slots), **scalars}

    def message(self, judged: Judged, kept: Groups, server: Groups) -> tuple[Tensors, Groups]:
        """Observations come to the beliefs of clients, who then share a sample."""
        if self.judgement == "after":  # no loss is known that diverging could count as
            judged = replace(judged, weights=np.where(judged.diverged, 0.0, judged.weights))
        gains = self.gains(judged)
        distances, y = self.compared(gains, server)
        told = judged.weights > 0
        phi = torch.from_numpy(self.phi(self.points(judged.decisions)) * told[:, None])
        belief = kept[_BELIEF]
        precision = belief["precision"] + phi[:, :, None] * phi[:, None, :]
        targets = belief["targets"] + phi * torch.from_numpy(y)[:, None]
        observations = belief["observations"] + torch.from_numpy(told.astype(np.int64))
        samples = torch.zeros((len(told), self.slots, self.features), dtype=torch.float64)
        counts = torch.zeros((len(told), self.slots), dtype=torch.float64)
        for row, (client, slot) in enumerate(zip(judged.clients.tolist(), self.slot_of(judged.clients), strict=True)):
            if told[row]:
                generator = streams.generator(self.facts.seed, "shared sample", int(observations[row]), client)
                normals = generator.standard_normal(self.features)
                omega = self.sample(precision[row].numpy(), targets[row].numpy(), normals)
                samples[row, slot] = judged.weights[row] * torch.from_numpy(omega)
                counts[row, slot] = judged.weights[row]
        sent: Tensors = {"samples": samples, "counts": counts}
        sent["gains"] = torch.from_numpy(judged.weights * gains)
        sent["spreads"] = torch.from_numpy(judged.weights * np.abs(distances))
        sent["weight"] = torch.from_numpy(judged.weights)
        after = {"precision": precision, "targets": targets, "observations": observations}
        return sent, {_BELIEF: after}

    def gains(self, judged: Judged) -> FloatArray:
        """By which share losses got smaller, or minus the losses; who diverged has a loss that doubled."""
        if self.judgement == "after":
            return -judged.losses
        losses = np.where(judged.diverged, np.abs(judged.before), judged.losses)
        return -losses / np.maximum(np.abs(np.nan_to_num(judged.before)), _TINY)

    def compared(self, gains: FloatArray, server: Groups) -> tuple[FloatArray, FloatArray]:
        """How far gains are from the mean so far, and the same in units of how far they usually are."""
        level, spread = (self.baseline.value(server[name]) for name in (_LEVEL, _SPREAD))
        if level is None:
            return np.zeros(len(gains)), np.zeros(len(gains))
        distances = gains - level
        unit = spread if spread else float(np.abs(level)) or 1.0
        return distances, np.clip(distances / unit, -_MOST_SPREADS, _MOST_SPREADS)

    def learn(self, message: Tensors, server: Groups, context: JobContext) -> Groups:
        """Slots of those who shared something hold that from now on."""
        counts, weight = message["counts"], float(message["weight"])
        if not weight > 0:
            return server
        came = counts > _TINY
        means = message["samples"] / counts.clamp(min=_TINY)[:, None]
        shared = server[_SHARED]
        samples = torch.where(came[:, None], means, shared["samples"])
        after = {_SHARED: {"samples": samples, "filled": torch.where(came, 1, shared["filled"])}}
        after[_LEVEL] = self.baseline.with_loss(server[_LEVEL], float(message["gains"]) / weight)
        after[_SPREAD] = server[_SPREAD]
        if self.baseline.value(server[_LEVEL]) is not None:
            after[_SPREAD] = self.baseline.with_loss(server[_SPREAD], float(message["spreads"]) / weight)
        return after

    def sent(self, wire: Wire, updates: Groups | None) -> Wire:
        """One sample, and which slot it is for."""
        form = {name: t.float() for name, t in self.empty_message().items()}
        numbers = self.features + 4  # the sample, which slot it is for, and three more
        return wire | {POLICY_GROUP: Sent(4 * numbers, form, numbers)}

    def observe(self, before: Rows, after: Groups) -> dict[str, float | Tensor]:
        """Where clients looked, and how many by samples of their own."""
        decisions = before.jobs.decisions
        if decisions is None:
            return {}
        noted: dict[str, float | Tensor] = {"clients": float(len(before)), "own": float(decisions[:, -1].sum())}
        points = self.points(decisions)
        return noted | {one.name: float(points[:, place].sum()) for place, one in enumerate(self.space)}

    def measure(self, server: Groups, observed: Mapping[str, float]) -> dict[str, float]:
        """The same on average."""
        clients = observed.get("clients", 0.0)
        if not clients:
            return {}
        middle = {f"policy_mean:{one.name}": float(one.value_at(observed[one.name] / clients)) for one in self.space}
        return {OWN_SHARE: observed["own"] / clients, **middle}

    @property
    def columns(self) -> dict[str, str]:
        """How many clients used samples of their own, and what was tried."""
        middle = {
            f"policy_mean:{one.name}": f"mean of {one.name} over the round's jobs (by its place in the range)"
            for one in self.space
        }
        return {OWN_SHARE: "share of the jobs whose clients used a sample of their own belief", **middle}

    def summary(self, server: Groups) -> dict[str, Any]:
        """Where the samples that clients shared are largest on average."""
        filled = server[_SHARED]["filled"].cpu().numpy() > 0
        if not filled.any():
            return {}
        mean = server[_SHARED]["samples"].cpu().numpy()[filled].mean(0)
        candidates = streams.generator(self.facts.seed, "best of all").random((4 * self.candidates, len(self.space)))
        best = self.space.at(candidates[(self.phi(candidates) @ mean).argmax()])
        return {"best": {name: plain(name, float(value)) for name, value in best.items()}}
