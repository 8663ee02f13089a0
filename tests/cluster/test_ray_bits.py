"""engine=ray computes the bits of engine=cohort, whatever the number of workers. All of it: `make test-ray`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_clusters import MANY_SHARDS, PHONES, Silent, bits, on_cluster, opened, play

from fedarena.algorithms import ALGORITHMS
from fedarena.runs.cluster import shared_states, staying
from fedarena.runs.run import Run, resume_run

pytest.importorskip("ray")
os.environ["RAY_AUTH_MODE"] = "disabled"
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]

OPTIONS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.1, "partial_work": True},
    "fedbn": {"local_layers": ["1.*"]},
    "local_only": {"learning_rates": [0.01, 0.1]},
}
WORKERS = tuple(map(int, os.environ.get("FEDARENA_TEST_WORKERS", "1,2,3").split(",")))  # fewer on a small machine
ADDS_UP_STATES = ("scaffold", "feddyn", "mocha")  # which updates to older models would break


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for all: it takes long to start."""
    with staying():
        yield


def _same_for_all(settings: dict[str, Any], folder: Path, workers: tuple[int, ...]) -> None:
    expected = bits(play(settings, folder, "alone"))
    for number in workers:
        assert bits(play(on_cluster(settings, number), folder, f"{number} workers")) == expected, number


@pytest.mark.parametrize("protocol", ["ideal", "deadline", "buffered"])
@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_every_algorithm_and_protocol(algorithm: str, protocol: str, tmp_path: Path) -> None:
    if protocol == "buffered" and algorithm in ADDS_UP_STATES:
        pytest.skip("refused: it adds up what clients keep")
    method = {"algorithm": {"name": algorithm, **OPTIONS.get(algorithm, {})}, "protocol": protocol}
    _same_for_all(MANY_SHARDS | method | (PHONES if protocol != "ideal" else {}), tmp_path, WORKERS)


@pytest.mark.parametrize(
    "more",
    [
        {"transforms": [{"name": "top_k"}, {"name": "qsgd"}]},
        {"privacy": {"name": "gaussian", "noise_multiplier": 1.0, "clipping": "adaptive"}, "selector": "poisson"},
        {"aggregator": "median"},
        {"aggregator": "krum", "attack": {"name": "sign_flip", "share": 0.2}},
        {"attack": {"name": "backdoor", "share": 0.2}},
        {"attack": {"name": "label_flip", "share": 0.3}},
        {"training": "iid"},
        {"policy": {"name": "fedex", "search": {"local.lr": [0.01, 0.1]}}, "federation.train_fraction": 0.6}
        | {"federation.validation_fraction": 0.2},
        {"selector": "power_of_choice"},
        {"engine": {"lanes": 2, "dtype": "float64"}},
    ],
    ids=lambda more: next(iter(more)) + " " + str(next(iter(more.values())))[:30],
)
def test_every_other_part(more: dict[str, Any], tmp_path: Path) -> None:
    from fedarena.runs.merging import merge

    _same_for_all(merge(MANY_SHARDS, more), tmp_path, (2,))


@pytest.mark.parametrize("elsewhere", [{"workers": 3}, "cohort", {"workers": 1, "cores": 2}], ids=str)
def test_a_run_goes_on_with_others(elsewhere: Any, tmp_path: Path) -> None:
    settings = MANY_SHARDS | {"algorithm": "scaffold"}
    expected = bits(play(settings, tmp_path, "alone"))
    run = opened(on_cluster(settings, 2), tmp_path, "parted")
    run.advance(1).close()
    resume_run(tmp_path / "parted", Silent(), elsewhere=elsewhere)
    assert bits(tmp_path / "parted") == expected


def test_a_fork_has_workers_of_its_own(tmp_path: Path) -> None:
    run = opened(on_cluster(MANY_SHARDS, 1), tmp_path, "first")
    run.advance(1)
    fork = run.fork({"local.lr": 0.01}, "second")
    assert fork._crew is not None
    assert run._crew is not None
    assert fork._crew is not run._crew
    run.advance().close()
    fork.advance().close()
    alone = opened(MANY_SHARDS, tmp_path, "third")
    other = alone.advance(1).fork({"local.lr": 0.01}, "fourth")
    alone.close()
    other.advance().close()
    assert bits(tmp_path / "second") == bits(tmp_path / "fourth")
    assert isinstance(fork, Run)


@pytest.mark.parametrize("algorithm", ["scaffold", "ditto"])
def test_what_clients_keep_in_files(algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which workers write and read themselves; the driver alone decides about it."""
    monkeypatch.setattr(shared_states, "ABOVE_BYTES", 0)
    _same_for_all(MANY_SHARDS | {"algorithm": algorithm, "rounds": 4}, tmp_path, (2,))
    assert list((tmp_path / "2 workers" / "checkpoint").glob("*.part"))
