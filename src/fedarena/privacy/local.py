"""Local mechanisms: every client makes its own update private before anybody else sees it.

What they guarantee holds for every client against everybody, the server included. It is spent anew with every upload,
so the ε of a run is that of the client who was asked to take part most often. Noise is large: it takes many clients.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import accounting, check_delta, check_epsilon, usual_delta
from fedarena.privacy.checks import check_audit, check_clip_norm, check_selects_without_losses
from fedarena.privacy.mechanism import MECHANISMS, Mechanism, RunFacts, most_invitations
from fedarena.simulate.participation import Participation
from fedarena.transforms import Transform
from fedarena.transforms.local_noise import LocalGaussian, LocalLaplace
from fedarena.transforms.privunit import Norms, PrivUnit


class LocalMechanism(Mechanism):
    """What local mechanisms share: an ε for every upload, and a budget for all uploads of a client."""

    name: str
    covers_all_that_is_sent = True

    def __init__(self, clip_norm: float, job_epsilon: float, epsilon: float | None, audit: int | None):
        check_clip_norm(clip_norm)
        check_audit(audit)
        self.audit, self.audited_norm = audit, clip_norm
        check_epsilon(job_epsilon, "privacy.job_epsilon")
        if epsilon is not None:
            check_epsilon(epsilon, "privacy.epsilon")
        self.clip_norm, self.job_epsilon, self.budget = clip_norm, job_epsilon, epsilon
        self.participation: Participation = Participation()

    def prepare(self, facts: RunFacts) -> None:
        """Refuses a budget that one upload exceeds, clients who do not exist, and a selector that is told of data."""
        if facts.training != "natural":
            raise BadInputError(
                f"privacy={self.name} protects clients, and training={facts.training} has no real ones; choose "
                "training=natural"
            )
        check_selects_without_losses(facts.selector, sizes_are_public=False)
        if not facts.protocol.overlaps:
            self.participation.limit = partial(most_invitations, facts)
        if self.delta is None:
            self.delta = usual_delta(facts.population)
        if self.budget is not None and self.composed(1) > self.budget:
            raise BadInputError(
                f"privacy.epsilon={self.budget:g} is too small for one round: a single upload spends "
                f"ε = {self.composed(1):.4g}; choose a smaller privacy.job_epsilon, or a larger privacy.epsilon"
            )

    def epsilon(self, steps: int) -> float:
        """Of the client who was asked to take part most often."""
        return self.composed(round(self.participation.most(steps)))

    def composed(self, uploads: int) -> float:
        """The ε of so many uploads of one client: they add up."""
        return uploads * self.job_epsilon

    def choices(self) -> dict[str, Any]:
        """δ, where it was not given."""
        return {"delta": self.delta} if self.delta else {}

    def summary(self, steps: int) -> dict[str, Any]:
        """What it comes to for the client who was asked most often."""
        uploads = round(self.participation.most(steps))
        return {
            "mechanism": self.name,
            "epsilon": self.composed(uploads),
            "delta": self.delta,
            "neighbours": "whatever one client has is replaced; the server is not trusted",
            "job_epsilon": self.job_epsilon,
            "most_uploads_of_a_client": uploads,
        }


@MECHANISMS.register("local_gaussian")
class LocalGaussianMechanism(LocalMechanism):
    """Clients shorten their updates to `clip_norm` (Euclidean) and add Gaussian noise that makes an upload private.

    `job_epsilon` is the ε of an upload for `delta`; `epsilon` is what all uploads of a client may come to, by exact
    composition of Gaussian mechanisms (Balle, Wang, ICML 2018). A run that would exceed it stops before.
    """

    name = "local_gaussian"

    def __init__(
        self,
        *,
        clip_norm: float = 1.0,
        job_epsilon: float = 8.0,
        epsilon: float | None = None,
        delta: float | None = None,
        audit: int | None = None,
    ):
        super().__init__(clip_norm, job_epsilon, epsilon, audit)
        if delta is not None:
            check_delta(delta, "privacy.delta")
        self.delta = delta

    @property
    def noise_multiplier(self) -> float:
        """The deviation of the noise, relative to how far two updates can be apart: twice the clipping norm."""
        return float(accounting().get_sigma_gaussian(self.job_epsilon, self.delta))

    def composed(self, uploads: int) -> float:
        """So many Gaussian mechanisms are one with less noise."""
        if not uploads:
            return 0.0
        return float(accounting().get_epsilon_gaussian(self.noise_multiplier / math.sqrt(uploads), self.delta))

    def transforms(self) -> tuple[Transform, ...]:
        """Clipping and noise at the client."""
        return (LocalGaussian(self.clip_norm, 2 * self.clip_norm * self.noise_multiplier),)


@MECHANISMS.register("local_laplace")
class LocalLaplaceMechanism(LocalMechanism):
    """Clients shorten their updates to `clip_norm` (sum of magnitudes) and add Laplace noise; δ is 0.

    `job_epsilon` is the ε of an upload; `epsilon` is what all uploads of a client may come to. A run that would exceed
    it stops before.
    """

    name = "local_laplace"
    delta = 0.0

    def __init__(
        self,
        *,
        clip_norm: float = 1.0,
        job_epsilon: float = 8.0,
        epsilon: float | None = None,
        audit: int | None = None,
    ):
        super().__init__(clip_norm, job_epsilon, epsilon, audit)

    def transforms(self) -> tuple[Transform, ...]:
        """Clipping and noise at the client."""
        return (LocalLaplace(self.clip_norm, 2 * self.clip_norm / self.job_epsilon),)


@MECHANISMS.register("privunit")
class PrivUnitMechanism(LocalMechanism):
    """Clients send a random direction that is, in the mean, that of their update; δ is 0.

    With ``norms: kept`` the mean is the update itself, shortened to `clip_norm`; if they are ``fixed``, all updates
    count as if they had this length. `job_epsilon` is the ε of an upload; `epsilon` is what all uploads of a client may
    come to. A run that would exceed it stops before.
    """

    name = "privunit"
    delta = 0.0

    def __init__(
        self,
        *,
        clip_norm: float = 1.0,
        job_epsilon: float = 8.0,
        norms: Norms = "kept",
        epsilon: float | None = None,
        audit: int | None = None,
    ):
        super().__init__(clip_norm, job_epsilon, epsilon, audit)
        self.norms: Norms = norms

    def transforms(self) -> tuple[Transform, ...]:
        """The random direction at the client."""
        return (PrivUnit(self.clip_norm, self.job_epsilon, self.norms),)
