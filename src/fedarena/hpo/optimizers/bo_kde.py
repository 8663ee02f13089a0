"""Bayesian optimization with kernel densities: the model of BOHB (Falkner et al., ICML 2018) without its brackets."""

from __future__ import annotations

from fedarena.hpo.optimizers.kernel_density import KernelDensityModel
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal
from fedarena.hpo.space import Space


@OPTIMIZERS.register("bo_kde")
class KernelDensitySearch(Optimizer):
    """Configurations that are likelier among the good than among the bad ones, each trained for all rounds (BO_KDE).

    Of `candidates` drawn near good configurations, `bandwidth_factor` times as widely as the density has it, the most
    promising is proposed; a `random_fraction` is drawn without the model. `good_fraction` of what was seen counts as
    good. No density is narrower than `min_bandwidth` (of the range of a hyperparameter). Configurations that were tried
    are not proposed again as long as there are others.
    """

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        candidates: int = 64,
        random_fraction: float = 1 / 3,
        bandwidth_factor: float = 3.0,
        min_bandwidth: float = 1e-3,
        good_fraction: float = 0.15,
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        self._model = KernelDensityModel(
            space,
            self.generator,
            candidates=candidates,
            random_fraction=random_fraction,
            bandwidth_factor=bandwidth_factor,
            min_bandwidth=min_bandwidth,
            good_fraction=good_fraction,
        )

    def ask(self) -> Proposal:
        """What the model proposes."""
        return self.new_course(self._model.propose())

    def tell(self, proposal: Proposal, value: float) -> None:
        """Shows it to the model."""
        self._model.observe(proposal.configuration, proposal.rounds, value)
