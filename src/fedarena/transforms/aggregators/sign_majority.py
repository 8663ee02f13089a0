"""A vote on the direction of every coordinate. Bernstein et al., "signSGD with Majority Vote", ICLR 2019."""

from __future__ import annotations

from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train import Algorithm, Groups
from fedarena.transforms.aggregators.base import AGGREGATORS, ServerStep
from fedarena.transforms.aggregators.collected import Collected
from fedarena.transforms.aggregators.defence import Defence, combine_columns, sends_more
from fedarena.transforms.rows import FloatArray


@AGGREGATORS.register("sign_majority")
class SignMajority(Defence):
    """Every coordinate goes `step` in the direction that most clients want; nowhere if as many want either.

    A client has one vote, however old its update is.
    """

    def __init__(self, *, step: float = 0.01):
        super().__init__(staleness_exponent=0.0)
        if not step > 0:
            raise BadInputError(f"aggregator.step must be above 0, not {step}")
        self.step = step

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """Steps of one length make no sense of what else is sent."""
        return super().obstacle(algorithm, update) or sends_more(algorithm, update)

    def defend(self, updates: Collected, kept: Groups, step: ServerStep) -> tuple[Groups, FloatArray, Groups]:
        """The steps, and how often each client was with the majority."""

        def combine(rows: Tensor) -> tuple[Tensor, Tensor]:
            votes = rows.sign()
            outcome = votes.sum(0).sign()
            return self.step * outcome, ((votes == outcome) & (outcome != 0)).sum(1)

        return *combine_columns(updates, combine), kept
