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
from fedarena.train.batches import count_processed, count_steps_within
from fedarena.train.optimizers import training_of
from fedarena.train.systems_hooks import SHARE_ROUNDING

_STEPS = "local.steps"


@POLICIES.register("by_speed")
class BySpeed(Policy):
    """As many local steps as a phone manages in the time of the round, from `least` to `most`.

    That time is `seconds`, or if none is given, what `share` of the phones that are invited together need for `usual`
    steps. What there is to do beside them takes its part of it: downloading, uploading, and losses that the method asks
    for before training. Clients say nothing about how well that went.
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
        self.facts, self._batch_size = facts, facts.local.batch_size
        few = {"from": self.least, "to": self.most} if self.least < self.most else [self.least]
        self.space = Space.parse({_STEPS: few})
        check_space(self.space, facts.algorithm, facts.local)

    def decide(self, server: Groups, clients: IntArray, numbers: IntArray, kept: Sequence[Groups]) -> FloatArray:
        """The steps of every job."""
        if self.speeds is None:  # where no time passes, nobody is slow
            return np.full((len(clients), 1), float(self.usual))
        speeds, samples, batch_size = self.speeds(clients, numbers), self.facts.samples(clients), self._batch_size
        each = speeds.seconds_per_sample
        beside = speeds.download_seconds + speeds.upload_seconds + speeds.scoring_seconds
        # A method may take steps beside those that are decided on, for a head of one's own.
        single = training_of(self.facts.local, {_STEPS: np.ones(len(clients))})
        more = self.facts.algorithm.local_steps(samples, single) - 1
        seconds = self.seconds
        if seconds is None:
            usual = each * count_processed(samples, self.usual + more, batch_size)
            seconds = float(np.quantile(beside + usual, self.share, method="higher"))
        # An epoch's last batch is as short as it is, so that steps of clients with few samples take less.
        fitting = np.divide(seconds - beside, each, out=np.full(len(each), np.inf), where=each > 0)
        fitting = np.clip(fitting, 0, (self.most + more) * float(batch_size)) + SHARE_ROUNDING
        fitting_steps = count_steps_within(fitting, samples, batch_size) - more
        steps: FloatArray = np.clip(fitting_steps, self.least, self.most)
        return steps[:, None]

    def hyperparameters(self, decisions: FloatArray) -> dict[str, FloatArray]:
        """The steps."""
        return {_STEPS: decisions[:, 0]}
