"""Optuna's tree-structured Parzen estimator with a pruner: what TPE_MD and TPE_HB share.

Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS 2011; Akiba et al., "Optuna: A Next-generation
Hyperparameter Optimization Framework", KDD 2019.

A course is trained rung by rung, and after each the pruner decides whether it goes on.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from fedarena.hpo.optimizers.checks import check_at_least
from fedarena.hpo.optimizers.optimizer import Optimizer, Proposal
from fedarena.hpo.optimizers.rungs import rungs
from fedarena.hpo.optimizers.with_optuna import OptunaSpace, imported, quiet_study
from fedarena.hpo.space import Space

_LARGEST = 1e300  # what diverged is told as this; Optuna's percentiles of infinities are not numbers


class PrunedTPE(Optimizer):
    """Configurations by TPE, courses that a pruner may end."""

    multi_fidelity: ClassVar[bool] = True
    _name: ClassVar[str]

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
    ):
        super().__init__(space, max_rounds, seed, min_rounds)
        check_at_least(2, eta=eta)
        check_at_least(0, startup_trials=startup_trials)
        check_at_least(1, candidates=candidates)
        optuna = imported(self._name)
        self._optuna_space = OptunaSpace(space, optuna)
        self._pruned = optuna.trial.TrialState.PRUNED
        self._eta = eta
        self._ladder = rungs(max_rounds, min_rounds, eta)
        sampler = optuna.samplers.TPESampler(
            seed=int(self.generator.integers(2**31)),
            n_startup_trials=startup_trials,
            n_ei_candidates=candidates,
            multivariate=multivariate,
        )
        self._study = quiet_study(optuna, sampler, self.pruner(optuna))
        self._trial: Any = None
        self._paused: Proposal | None = None  # the course that goes on

    @abstractmethod
    def pruner(self, optuna: Any) -> Any:
        """Optuna's pruner that decides; rung number n, from 0, is its step ``eta ** n``."""

    def ask(self) -> Proposal:
        """The next rung of the course, if it goes on, or the first of a new one."""
        if self._paused is not None:
            return self.go_on(self._paused, self._ladder[self._ladder.index(self._paused.rounds) + 1])
        self._trial = self._study.ask(self._optuna_space.distributions)
        return self.new_course(self._optuna_space.configuration(self._trial.params), self._ladder[0])

    def tell(self, proposal: Proposal, value: float) -> None:
        """Has the pruner decide."""
        rung = self._ladder.index(proposal.rounds)
        value = min(max(value, -_LARGEST), _LARGEST)
        self._trial.report(value, step=self._eta**rung)
        self._paused = None
        if proposal.rounds == self.max_rounds:
            self._study.tell(self._trial, value)
        elif value == _LARGEST or self._trial.should_prune():
            self._study.tell(self._trial, state=self._pruned)
        else:
            self._paused = proposal
