"""Successive halving. Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization",
AISTATS 2016.
"""

from __future__ import annotations

from fedarena.hpo.optimizers.checks import check_at_least
from fedarena.hpo.optimizers.hyperband import Hyperband
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS
from fedarena.hpo.optimizers.rungs import Rung, rungs
from fedarena.hpo.space import Space


@OPTIMIZERS.register("sha")
class SuccessiveHalving(Hyperband):
    """One bracket of `hyperband`, from the fewest rounds up, again and again (SHA, which FedEx is wrapped in).

    It begins with so many `configurations`, by default as many as leave one to be trained in full; one in `eta` of a
    rung goes on, for `eta` times as many rounds.
    """

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        eta: int = 3,
        configurations: int | None = None,
    ):
        super().__init__(space, max_rounds, seed, min_rounds, eta=eta)
        ladder = rungs(max_rounds, min_rounds, eta)
        if configurations is None:
            configurations = eta ** (len(ladder) - 1)
        check_at_least(1, configurations=configurations)
        self._brackets = [
            [Rung(max(configurations // eta**climbed, 1), rounds) for climbed, rounds in enumerate(ladder)]
        ]
