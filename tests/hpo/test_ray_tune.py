"""Trials on a Ray cluster: the study that it would be here, wherever runs lie and whoever is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_studies import content, tune

from ray_clusters import pretend_folders_are_not_shared, small_cluster

pytest.importorskip("ray")
pytest.importorskip("optuna")
os.environ["RAY_AUTH_MODE"] = "disabled"
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One on this machine; gives the file that has a method kill its process, once."""
    with small_cluster(tmp_path_factory.mktemp("trigger") / "now") as trigger:
        yield trigger


@pytest.fixture(params=[True, False], ids=["shared", "brought"])
def shared(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether machines see the folder of the study."""
    if not request.param:
        pretend_folders_are_not_shared(monkeypatch)
    return bool(request.param)


def test_the_same_study_as_here(cluster: Path, shared: bool, tmp_path: Path) -> None:
    """Also with trials that are pruned, and one whose process is killed."""
    options: dict[str, Any] = {"trials": 6, "pruner": "asha", "seeds": 2, "algorithm": "small_studies:Dies"}
    tune(tmp_path / "here", **options)
    cluster.touch()
    with pytest.warns(UserWarning, match=r"Trial 0: Its process on .* has ended; it goes on elsewhere"):
        tune(tmp_path / "there", **options, cluster="auto")
    found = content(tmp_path / "there" / "small")
    assert found == content(tmp_path / "here" / "small")
    assert {trial["state"] for trial in found["trials"]} == {"complete", "pruned"}


def test_several_at_a_time(cluster: Path, shared: bool, tmp_path: Path) -> None:
    tuned = tune(tmp_path, trials=4, jobs=2, sampler="random", pruner="none", cluster="auto")
    assert [trial.state for trial in tuned.trials] == ["complete"] * 4
    assert content(tmp_path / "small")["runs"].keys() == {f"trial-000{number}" for number in range(4)}
