"""Who proposes what to try next, and who ends trials early: parts of Optuna, chosen by name.

A sampler is made anew for every trial, with a seed of that trial. So what it proposes depends on the study and the
trials in it alone, and a study that was killed goes on as if it never had been.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna

from fedarena.core.streams import bits
from fedarena.hpo.tune.cma import CmaSampler
from fedarena.hpo.tune.plan import TuningPlan

# As many as TPE draws before it learns. First rounds tell little of a federation's course, so they never decide.
_TRIALS_BEFORE_MEDIAN = 10
EXCESSES = "excesses"  # the attribute of a trial that says by how much it breaks each constraint


def make_sampler(plan: TuningPlan, number: int, population: int | None) -> Any:
    """The sampler for the trial of that number."""
    seed = int(bits(plan.options.seed, "tune/trial", number)) >> 32
    constrained = {"constraints_func": _excesses} if plan.constraints else {}
    name = plan.options.sampler
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False, **constrained)
    if name == "cmaes":
        return CmaSampler(plan.space, seed, plan.options.seed, population)
    if name == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=population, **constrained)
    # Other processes' trials count as bad ones until they end, so that two do not try the same at once.
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True, warn_independent_sampling=False, **constrained)


def make_pruner(plan: TuningPlan, rounds: int, every: int) -> Any:
    """The pruner for runs of so many rounds that are evaluated every so many."""
    name = plan.options.pruner
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_TRIALS_BEFORE_MEDIAN, n_warmup_steps=rounds // 5)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=min(every, rounds), max_resource=rounds)
    if name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=min(every, rounds), reduction_factor=3)
    return optuna.pruners.NopPruner()


def _excesses(trial: Any) -> Sequence[float]:
    found: Sequence[float] = trial.user_attrs.get(EXCESSES, ())
    return found
