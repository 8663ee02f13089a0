"""The suite of pfl-research's benchmark on CIFAR-10: its settings."""

from __future__ import annotations

from fedarena.runs.suite import read_suite


def test_settings_are_pfls() -> None:
    runs = read_suite("pfl-cifar10", {}).runs
    assert len(runs) == 20
    for run in runs.values():
        assert (run.rounds, run.cohort, run.evaluation.every) == (1500, 50, 10)
        assert (run.local.epochs, run.local.batch_size, run.local.lr) == (1, 10, 0.1)
        assert run.model["name"] == "pfl_cnn"
        data = run.federation
        assert (data["clients"], data["validation_fraction"]) == (1000, 0)
        assert data["partition"] == "iid" or (data["partition"], data["alpha"]) == ("inner_dirichlet", 0.1)
        if run.privacy["name"] != "none":
            wanted = {"epsilon": 2, "delta": 1e-6, "clip_norm": 0.4, "noise_cohort": 1000, "noise_population": 10**6}
            assert wanted.items() <= run.privacy.items()
            assert run.selector["name"] == "poisson"
    assert {(run.federation["partition"], run.privacy["name"], run.seed) for run in runs.values()} == {
        (partition, privacy, seed)
        for partition in ("iid", "inner_dirichlet")
        for privacy in ("none", "gaussian")
        for seed in range(5)
    }
