"""CMA-ES whose state is made again from the trials of a study."""

from __future__ import annotations

import numpy as np
import optuna
import pytest

from fedarena.hpo.space import Space
from fedarena.hpo.tune.cma import CmaSampler
from fedarena.hpo.tune.library import quiet_optuna

SPACE = Space.parse({"x": {"from": -5.0, "to": 5.0}, "y": {"from": 0.001, "to": 10.0, "log": True}})


def search(trials: int, storage=None, seed: int = 0, sign: float = 1.0):
    with quiet_optuna():
        direction = "minimize" if sign > 0 else "maximize"
        study = optuna.create_study(storage=storage, study_name="s", load_if_exists=True, direction=direction)
        while len(study.trials) < trials:
            study.sampler = CmaSampler(SPACE, len(study.trials) + 1000 * seed, seed, None)
            trial = study.ask()
            x, y = trial.suggest_float("x", -5.0, 5.0), trial.suggest_float("y", 0.001, 10.0, log=True)
            study.tell(trial, sign * ((x - 1) ** 2 + (np.log10(y) + 1) ** 2))
    return study


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_finds_a_minimum_or_a_maximum(sign: float) -> None:
    study = search(84, sign=sign)
    first, last = (np.mean([abs(t.value) for t in study.trials[part]]) for part in (slice(12), slice(-12, None)))
    assert abs(study.best_value) < 0.01
    assert last < first / 20


def test_it_keeps_nothing_but_the_trials() -> None:
    storage = optuna.storages.InMemoryStorage()
    search(9, storage)
    search(20, storage)
    pieces = search(30, storage)
    whole = search(30)
    assert [trial.params for trial in pieces.trials] == [trial.params for trial in whole.trials]
    kept = {key for trial in whole.trials for key in trial.system_attrs}
    assert kept == {"cma:place", "cma:generation"}
    assert search(3, seed=1).trials[0].params != whole.trials[0].params
