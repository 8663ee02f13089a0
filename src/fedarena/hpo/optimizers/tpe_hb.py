"""TPE with Hyperband's stopping, by Optuna (Akiba et al., KDD 2019). In the code of FedHPO-Bench the pruner was never
handed over, so that its TPE_HB was TPE_MD; here it is.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fedarena.hpo.optimizers.optimizer import OPTIMIZERS
from fedarena.hpo.optimizers.tpe import PrunedTPE


@OPTIMIZERS.register("tpe_hb")
class HyperbandPrunedTPE(PrunedTPE):
    """TPE; courses are spread over Hyperband's brackets, and only the best 1/eta of a bracket's rung go on (TPE_HB).

    A rung has `eta` times the rounds of the one before. `startup_trials` configurations of each bracket are random;
    then the best of so many `candidates` is taken, each hyperparameter for itself or, if `multivariate`, all together.
    Defaults are those of Optuna 2.10, as in the paper. What diverged never goes on.
    """

    _name: ClassVar[str] = "tpe_hb"

    def pruner(self, optuna: Any) -> Any:
        """Hyperband's, with a bracket for each rung to begin at."""
        last = self._eta ** (len(self._ladder) - 1)
        # Optuna computes the number of brackets by a logarithm, which can come out just below a whole number; half as
        # much again has the same number of brackets, and rounding does not matter.
        most = last + last // 2
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=most, reduction_factor=self._eta)
