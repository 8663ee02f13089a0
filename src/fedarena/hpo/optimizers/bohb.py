"""BOHB. Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018."""

from __future__ import annotations

from fedarena.hpo.optimizers.hyperband import Hyperband
from fedarena.hpo.optimizers.kernel_density import KernelDensityModel
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Proposal
from fedarena.hpo.optimizers.rungs import Sizes
from fedarena.hpo.space import Configuration, Space


@OPTIMIZERS.register("bohb")
class BOHB(Hyperband):
    """The brackets of `hyperband`, begun with configurations that the model of `bo_kde` proposes (BOHB).

    The model is that of the most rounds for which enough configurations are known. Options are those of both.
    """

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        eta: int = 3,
        sizes: Sizes = "paper",
        candidates: int = 64,
        random_fraction: float = 1 / 3,
        bandwidth_factor: float = 3.0,
        min_bandwidth: float = 1e-3,
        good_fraction: float = 0.15,
    ):
        super().__init__(space, max_rounds, seed, min_rounds, eta=eta, sizes=sizes)
        self._model = KernelDensityModel(
            space,
            self.generator,
            candidates=candidates,
            random_fraction=random_fraction,
            bandwidth_factor=bandwidth_factor,
            min_bandwidth=min_bandwidth,
            good_fraction=good_fraction,
        )

    def propose(self, rounds: int) -> Configuration:
        """What the model proposes."""
        return self._model.propose()

    def tell(self, proposal: Proposal, value: float) -> None:
        """Shows it to the model, too."""
        super().tell(proposal, value)
        self._model.observe(proposal.configuration, proposal.rounds, value)
