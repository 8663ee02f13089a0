"""NbAFL. Wei et al., "Federated Learning with Differential Privacy: Algorithms and Performance Analysis", TIFS 2020.

Clients shorten the model they have trained, not its change, to the norm C, and add noise before they send it; the
server adds noise to the mean if what clients add is not enough for all rounds in which the mean is seen. With T rounds,
L uploads of a client, N clients, the smallest number of samples m, and c = √(2 ln(1.25 / δ)):

    σ_up = 2 c L C / (m ε)        σ_down = 2 c C √(T² - L² N) / (m N ε) if T > L √N, else 0.

FedHPO-Bench (FederatedScope) has σ_up = C T k / (m ε) with each client's own m and a constant k instead of c.

The paper's bound of what one sample can change, 2 C / m, takes local training for a mean over samples of models, each
trained on one of them. That does not hold for what clients really do, so its ε is a claim, and is called so here.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.privacy.accounting import check_delta, check_epsilon
from fedarena.privacy.checks import check_clip_norm
from fedarena.privacy.extended import extended
from fedarena.privacy.mechanism import MECHANISMS, Mechanism, RunFacts
from fedarena.train import COVERAGE, Algorithm, Client, Groups, JobContext, Work
from fedarena.transforms import Transform
from fedarena.transforms.clip_and_noise import normal_like

_CONSTANT_OF_FEDHPO = 30.0


class NoisyModels(Algorithm):
    """Clients shorten the models they send to the norm `clip_norm`, and add noise to them."""

    clip_norm: float
    uplink_std: float
    is_per_sample: bool  # whether that is divided by the number of a client's own samples

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The way from the downloaded model to the shortened, noisy one."""
        update, kept = super().client_update(params, client, work)
        if "params" not in update:  # which is refused when it is known
            return update, kept
        start, change = client.broadcast["params"], update["params"]
        model = {name: start[name] + t for name, t in change.items()}
        length = torch.stack([t.square().sum() for t in model.values()]).sum().sqrt()
        factor = self.clip_norm / length.clamp(min=self.clip_norm)
        std = self.uplink_std / work.samples if self.is_per_sample else self.uplink_std

        def noisy(name: str, t: Tensor) -> Tensor:
            return factor * t + std * client.job.normal(f"nbafl {name}", t) - start[name]

        return {**update, "params": {name: noisy(name, t) for name, t in model.items()}}, kept


class ServerNoise(Transform):
    """Independent Gaussian noise of the deviation `std` in the mean of the models."""

    def __init__(self, std: float):
        self.std = std

    def at_server(self, update: Groups, server: Groups, context: JobContext) -> tuple[Groups, Groups]:
        """The noisy mean."""
        params = {name: t + self.std * normal_like(t, name, context) for name, t in update["params"].items()}
        return {**update, "params": params}, server


@MECHANISMS.register("nbafl")
class NbAFL(Mechanism):
    """Noise before aggregation: clients clip and noise their models, the server adds noise where that is too little.

    `epsilon` and `delta` are what the paper claims about one sample of a client. `uploads` is L, by default how often a
    client is expected to take part. ``formula: fedhpo`` is that of FedHPO-Bench, with `constant` in place of c.
    """

    def __init__(
        self,
        *,
        epsilon: float = 10.0,
        delta: float = 0.01,
        clip_norm: float = 1.0,
        uploads: int | None = None,
        formula: Literal["paper", "fedhpo"] = "paper",
        constant: float | None = None,
    ):
        check_epsilon(epsilon, "privacy.epsilon")
        check_delta(delta, "privacy.delta")
        check_clip_norm(clip_norm)
        if uploads is not None and uploads < 1:
            raise BadInputError(f"privacy.uploads must be at least 1, not {uploads}")
        if constant is not None and not constant > 0:
            raise BadInputError(f"privacy.constant must be above 0, not {constant}")
        if constant is not None and formula == "paper":
            raise BadInputError(
                "privacy.constant is for privacy.formula=fedhpo; by the paper it follows from privacy.delta"
            )
        self.claimed_epsilon, self.delta, self.clip_norm = epsilon, delta, clip_norm
        self.uploads, self.formula, self.constant = uploads, formula, constant

    def wrapped(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm whose clients send noisy models. How much noise that takes is known later."""
        self._sending = extended(
            algorithm, NoisyModels, clip_norm=self.clip_norm, uplink_std=0.0, is_per_sample=self.formula == "fedhpo"
        )
        return self._sending

    def prepare(self, facts: RunFacts) -> None:
        """Computes both deviations."""
        name = type(facts.algorithm).__name__
        if set(facts.update) != {"params"}:
            more = ", ".join(group for group in facts.update if group != "params") or "no model"
            what = "which parts of it" if more == COVERAGE else more
            raise BadInputError(
                f"privacy=nbafl makes noisy models, and clients of {name} send {what}; choose another algorithm, such "
                "as fedavg"
            )
        assert facts.samples is not None
        self.rounds = facts.rounds
        self.smallest = int(facts.samples.min())
        if self.uploads is None:
            self.uploads = max(1, round(facts.rounds * facts.cohort / facts.population))
        c = self._constant
        if self.formula == "paper":
            self.uplink_std = 2 * c * self.uploads * self.clip_norm / (self.smallest * self.claimed_epsilon)
        else:  # per sample that a client has
            self.uplink_std = self.clip_norm * facts.rounds * c / self.claimed_epsilon
        beyond = facts.rounds**2 - self.uploads**2 * facts.population
        scale = 2 * c * self.clip_norm / (self.smallest * facts.population * self.claimed_epsilon)
        self.downlink_std = scale * math.sqrt(max(0, beyond))
        self._sending.uplink_std = self.uplink_std

    def check_goes_on(self, former: Mechanism) -> None:
        """Refuses another number of rounds: those before would have had other noise."""
        assert isinstance(former, NbAFL)
        if self.rounds != former.rounds:
            raise BadInputError(
                f"privacy=nbafl has the noise that {former.rounds} rounds need, so the run cannot have {self.rounds} "
                "instead; start a new one"
            )

    @property
    def _constant(self) -> float:
        if self.formula == "fedhpo":
            return _CONSTANT_OF_FEDHPO if self.constant is None else self.constant
        assert self.delta is not None
        return math.sqrt(2 * math.log(1.25 / self.delta))

    def transforms(self) -> tuple[Transform, ...]:
        """Noise at the server, if any is needed."""
        return (ServerNoise(self.downlink_std),) if self.downlink_std else ()

    def choices(self) -> dict[str, Any]:
        """How many uploads were counted on."""
        return {"uploads": self.uploads}

    def notes(self) -> list[str]:
        """That the claim is one."""
        return [
            f"Privacy: NbAFL claims ε = {self.claimed_epsilon:g} for δ = {self.delta:g} about one sample, if local "
            "training is a mean of models of single samples, which it is not; nothing is proved about this run"
        ]

    def summary(self, steps: int) -> dict[str, Any]:
        """What is claimed, and the noise."""
        return {
            "mechanism": "nbafl",
            "claimed_epsilon": self.claimed_epsilon,
            "delta": self.delta,
            "uplink_std": self.uplink_std / self.smallest if self.formula == "fedhpo" else self.uplink_std,
            "downlink_std": self.downlink_std,
        }
