"""TPE with median stopping, by Optuna (Akiba et al., KDD 2019). Median stopping is Golovin et al., "Google Vizier: A
Service for Black-Box Optimization", KDD 2017."""

from __future__ import annotations

from typing import Any, ClassVar

from fedarena.hpo.optimizers.checks import check_at_least
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS
from fedarena.hpo.optimizers.tpe import PrunedTPE
from fedarena.hpo.space import Space


@OPTIMIZERS.register("tpe_md")
class MedianPrunedTPE(PrunedTPE):
    """TPE; a course ends whose best value is worse than the median of the completed ones at that rung (TPE_MD).

    A rung has `eta` times the rounds of the one before. Nothing is pruned before `pruning_startup_trials` courses are
    complete. `startup_trials` configurations are random; then the best of so many `candidates` is taken,
    each hyperparameter for itself or, if `multivariate`, all together. Defaults are those of Optuna 2.10, as in the
    paper. What diverged never goes on.
    """

    _name: ClassVar[str] = "tpe_md"

    def __init__(
        self,
        space: Space,
        max_rounds: int,
        seed: int,
        min_rounds: int = 1,
        *,
        eta: int = 3,
        startup_trials: int = 10,
        candidates: int = 24,
        multivariate: bool = False,
        pruning_startup_trials: int = 5,
    ):
        check_at_least(0, pruning_startup_trials=pruning_startup_trials)
        self._pruning_startup_trials = pruning_startup_trials
        super().__init__(
            space,
            max_rounds,
            seed,
            min_rounds,
            eta=eta,
            startup_trials=startup_trials,
            candidates=candidates,
            multivariate=multivariate,
        )

    def pruner(self, optuna: Any) -> Any:
        """Median stopping."""
        return optuna.pruners.MedianPruner(n_startup_trials=self._pruning_startup_trials)
