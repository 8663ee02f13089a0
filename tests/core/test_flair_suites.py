"""The suites of FLAIR's tables: every row is there with the paper's settings, and a small version really runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedarena.runs.run import start_run
from fedarena.runs.suite import builtin_suites, read_suite

LABELS = ("coarse", "fine", "structure")


@pytest.mark.parametrize("start", ["", "-imagenet"])
@pytest.mark.parametrize("labels", LABELS)
def test_rows_have_the_settings_of_the_paper(labels: str, start: str) -> None:
    runs = read_suite(f"flair-{labels}{start}", {}).runs
    centralized, federated, private = runs.values()
    for run in runs.values():
        assert run.federation["labels"] == labels
        assert run.model["norm"] == ("frozen_batch" if start else "group")
        assert (run.weights is not None) == bool(start)
        assert {
            "size": 224,
            "flip": True,
            "flip_vertical": True,
            "evaluation": "resize",
        }.items() <= run.augmentation.items()
    steps_per_epoch = -(-345_879 // centralized.local.batch_size)
    assert centralized.rounds == (50 if start else 100) * steps_per_epoch
    assert (centralized.training, centralized.local.batch_size) == ("centralized", 512)
    assert centralized.algorithm["server_lr"] == (1e-4 if start else 5e-4)
    for run, server_lr in ((federated, 0.1), (private, 0.02)):
        assert (run.cohort, run.rounds, run.algorithm["name"]) == (200, 5000, "fedadam")
        assert (run.algorithm["server_lr"], run.algorithm["tau"]) == (server_lr, 0.01)
        assert (run.local.epochs, run.local.batch_size, run.local.clip_norm) == (2, 16, 10)
        assert run.local.lr == (0.01 if start else 0.1)
        assert run.federation["max_samples"] == 512
    assert federated.privacy["name"] == "none"
    wanted = {"name": "gaussian", "epsilon": 2.0, "clipping": "adaptive", "quantile": 0.1, "noise_cohort": 5000}
    assert wanted.items() <= private.privacy.items()
    assert private.privacy["delta"] is None  # which is N^-1.1
    assert private.selector["name"] == "poisson"


def test_all_are_built_in() -> None:
    assert {name for name in builtin_suites() if name.startswith("flair-")} == {
        *(f"flair-{labels}{start}" for labels in LABELS for start in ("", "-imagenet")),
        *("flair-cohorts", "flair-fig4", "flair-like", "flair-like-gpu", "flair-like-personal"),
    }
    for name in ("flair-fig4", "flair-like-gpu", "flair-like-personal"):
        assert read_suite(name, {}).runs


def test_the_small_suite_runs(tmp_path: Path) -> None:
    """A round of each setting, on a few users, with every metric of the table."""
    shorter = {
        "rounds": 1,
        "seeds": [0],
        "engine": "reference",
        "federation.users": 60,
        "federation.side": 12,
        "augmentation.size": 10,
    }
    for name, run in read_suite("flair-like", shorter).runs.items():
        smaller = run.to_dict() | {"cohort": 1 if run.training == "centralized" else 4}
        if run.privacy["name"] != "none":
            smaller["privacy"] |= {"noise_cohort": 40, "quantile_noise": 50.0}
        found = start_run(type(run)(**smaller), tmp_path / name)
        last = found.rounds.to_pylist()[-1]
        assert set(run.task["metrics"]) <= last.keys()
        assert min(last["average_precision"], last["micro_average_precision"]) > 0
        assert (last["epsilon"] is not None) == (run.privacy["name"] != "none")
