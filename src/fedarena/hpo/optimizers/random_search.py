"""Random search. Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 2012."""

from __future__ import annotations

from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal


@OPTIMIZERS.register("random")
class RandomSearch(Optimizer):
    """Configurations drawn independently of each other, each trained for all rounds (RS in FedHPO-Bench)."""

    def ask(self) -> Proposal:
        """One more draw."""
        return self.new_course(self.space.sample(self.generator))

    def tell(self, proposal: Proposal, value: float) -> None:
        """Nothing is learned."""
