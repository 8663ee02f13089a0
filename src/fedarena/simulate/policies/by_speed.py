"""Local steps by how fast a phone is, so that all of a round are done at about the same time.

FedScale (Lai et al., ICML 2022, section 5.2) asks for it: with one number of steps for all, a round takes as long as
its slowest phone, and fast ones could have learned more meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.space import Space
from fedarena.simulate.policies.base import POLICIES, FloatArray, IntArray, Policy, PolicyFacts, check_between
from fedarena.simulate.policies.settings import check_space
from fedarena.train import Groups

_STEPS = "local.steps"


@POLICIES.register("by_speed")
class BySpeed(Policy):
    """As many local steps as a phone manages in the time of the round, from `least` to `most`.

    That time is `seconds`, or if none is given, what `share` of the phones that are invited together need for `usual`
    steps. Downloading and uploading take their part of it. Clients say nothing about how well that went.
    """

    judges = False

    def __init__(
        self, *, least: int = 1, usual: int = 10, most: int = 40, share: float = 0.5, seconds: float | None = None
    ):
        super().__init__()
        if not 1 <= least <= usual <= most:
            raise BadInputError(f"policy.least, usual and most must rise from 1, not be {least}, {usual} and {most}")
        if seconds is not None and not seconds > 0:
            raise BadInputError(f"policy.seconds must be above 0, not {seconds}")
        check_between("share", share)
        self.least, self.usual, self.most, self.share, self.seconds = least, usual, most, share, seconds

    def prepare(self, facts: PolicyFacts) -> None:
        """Told once, before the run."""
        self.facts = facts
        few = {"from": self.least, "to": self.most} if self.least < self.most else [self.least]
        self.space = Space.parse({_STEPS: few})
        check_space(self.space, facts.algorithm, facts.local)

    def decide(self, server: Groups, clients: IntArray, numbers: IntArray, kept: Sequence[Groups]) -> FloatArray:
        """The steps of every job."""
        if self.speeds is None:  # where no time passes, nobody is slow
            return np.full((len(clients), 1), float(self.usual))
        speeds = self.speeds(clients, numbers)
        step = speeds.seconds_per_sample * self.facts.local.batch_size
        sending = speeds.download_seconds + speeds.upload_seconds
        seconds = self.seconds
        if seconds is None:
            seconds = float(np.quantile(sending + self.usual * step, self.share, method="higher"))
        steps = np.divide(seconds - sending, step, out=np.full(len(step), float(self.most)), where=step > 0)
        whole: FloatArray = np.clip(np.floor(steps + 1e-9), self.least, self.most)
        return whole[:, None]

    def hyperparameters(self, decisions: FloatArray) -> dict[str, FloatArray]:
        """The steps."""
        return {_STEPS: decisions[:, 0]}
