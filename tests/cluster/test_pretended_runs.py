"""Whole runs with engine=ray where Ray is pretended: the bits of engine=cohort, whoever works and whoever fails."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pretend_ray import Call, Fate, PretendRay, pretending
from small_clusters import MANY_SHARDS, PHONES, Silent, bits, on_cluster, opened, play

import fedarena
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, resume_run
from fedarena.storage.run_data import load_run

SHORT = MANY_SHARDS | {"rounds": 2}
VALIDATED = {"federation.train_fraction": 0.6, "federation.validation_fraction": 0.2}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What engine=cohort makes of settings; computed once."""
    known: dict[str, dict[str, Any]] = {}

    def of(settings: dict[str, Any]) -> dict[str, Any]:
        key = repr(settings)
        if key not in known:
            known[key] = bits(play(settings, tmp_path_factory.mktemp("alone"), "alone"))
        return known[key]

    return of


@pytest.mark.parametrize(
    "more",
    [
        {"algorithm": "scaffold", "protocol": "deadline", **PHONES},
        {"algorithm": "qfedavg", "protocol": "buffered", **PHONES},
        {"algorithm": "ditto", "aggregator": "median"},
        {"policy": {"name": "fedex", "search": {"local.batch_size": [4, 8]}}, **VALIDATED},
        {"transforms": [{"name": "top_k", "error_feedback": True}], "attack": {"name": "backdoor", "share": 0.2}},
        {"model": "own_methods:branching"},
        {"privacy": {"name": "gaussian", "noise_multiplier": 1.0, "clipping": "adaptive"}, "selector": "poisson"},
    ],
    ids=lambda more: " ".join(map(str, more))[:40],
)
@pytest.mark.sampled(2)
def test_same_bits_whoever_is_done_first(more: dict[str, Any], expected: Any, tmp_path: Path) -> None:
    settings = merge(SHORT, more)
    with pretending(PretendRay(seed=5)) as ray:
        run = play(on_cluster(settings, 2, cores=2), tmp_path, "two workers")
    assert bits(run) == expected(settings)
    assert {call.worker.number for call in ray.began if call.method == "train"} == {0, 1}
    assert not ray.living()
    assert not ray.is_initialized()


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.sampled(1)
def test_same_bits_whoever_fails(seed: int, expected: Any, tmp_path: Path) -> None:
    settings = SHORT | {"algorithm": "scaffold"}
    draw = random.Random(seed)
    fates: list[Fate] = ["dies", "hangs", "slow", "lost", "late", "memory"]

    def fate(call: Call) -> Fate:
        return draw.choice(fates) if call.method != "prepare" and draw.random() < 0.3 else None

    with pretending(PretendRay(fate, seed)) as ray:
        run = play(on_cluster(settings, 2), tmp_path, "unlucky")
    assert bits(run) == expected(settings)
    assert len(ray.workers) > 2
    assert not ray.living()


def test_a_shard_that_ends_workers_stops_the_run_which_goes_on_elsewhere(expected: Any, tmp_path: Path) -> None:
    trainings = iter(range(10**6))

    def fate(call: Call) -> Fate:
        return "dies" if call.method == "train" and next(trainings) >= 10 else None

    with pretending(PretendRay(fate)), pytest.raises(RunFailedError, match=r"The training of .* ended 3 workers"):
        play(on_cluster(SHORT, 2), tmp_path, "ends")
    assert load_run(tmp_path / "ends").rounds.num_rows == 2  # before the first round, and after it
    with pretending(PretendRay()) as ray:
        resume_run(tmp_path / "ends", Silent(), elsewhere={"workers": 1})
    assert [call for call in ray.began if call.method == "train"]
    assert bits(tmp_path / "ends") == expected(SHORT)


def test_interrupted_in_the_middle_of_a_round(expected: Any, tmp_path: Path) -> None:
    trainings = iter(range(10**6))

    def stop(call: Call) -> Fate:
        if call.method == "train" and next(trainings) == 6:
            raise KeyboardInterrupt
        return None

    with pretending(PretendRay(stop)) as ray:
        with pytest.raises(KeyboardInterrupt):
            play(on_cluster(SHORT, 2), tmp_path, "stopped")
        assert not ray.living()
        assert not ray.is_initialized()
    resume_run(tmp_path / "stopped", Silent(), elsewhere="cohort")
    assert bits(tmp_path / "stopped") == expected(SHORT)


def test_a_fork_that_finds_no_workers_leaves_nothing_behind(tmp_path: Path) -> None:
    with pretending(PretendRay()) as ray:
        run = opened(on_cluster(SHORT, 1), tmp_path, "first").advance(1)
        ray.fates = lambda call: "dies" if call.method == "prepare" else None
        with pytest.raises(RunFailedError, match="ended before they had built the run"):
            run.fork({"local.lr": 0.01}, "second")
        assert not (tmp_path / "second").exists()
        run.close()
    assert isinstance(run, Run)


def test_a_cluster_that_somebody_else_has_joined_is_left_alone(tmp_path: Path) -> None:
    with pretending(PretendRay()) as ray:
        ray.init()
        opened(on_cluster(SHORT, 1, address="auto"), tmp_path, "joined").advance(1).close()
        assert ray.is_initialized()
        assert not ray.living()


@pytest.mark.parametrize("address", ["10.0.0.2:6379", "10.0.0.1:6380", "127.0.0.1:6380"])
def test_another_cluster_than_that_of_this_process_is_refused(address: str, tmp_path: Path) -> None:
    with pretending(PretendRay()) as ray:
        ray.init()
        with pytest.raises(BadInputError, match=f"is in the Ray cluster at .* cannot join that at {address}"):
            opened(on_cluster(SHORT, 1, address=address), tmp_path, "refused")
        assert not (tmp_path / "refused").exists()
        opened(on_cluster(SHORT, 1, address="10.0.0.1:6379"), tmp_path, "joined").advance(0).close()


def test_what_comes_back_does_not_lie_in_the_store(tmp_path: Path) -> None:
    """An array that is kept for a table would keep all that came with it there."""
    from fedarena.runs.cluster.messages import pack_result, unpack_result
    from fedarena.train import JobArrays
    from fedarena.train.jobs import Job

    with pretending(PretendRay()) as ray:
        run = opened(on_cluster(SHORT | {"algorithm": "scaffold"}, 0), tmp_path, "here").advance(1)
        simulation = run.experiment.simulation
        jobs = JobArrays.of([Job(int(client), 1) for client in simulation.training_clients[:4]])
        broadcasts = {0: simulation.broadcast(simulation.first_snapshot())}
        shard = simulation.engine.divide(jobs, broadcasts, {})[0]
        result = simulation.path.collect(simulation.engine.train(shard), shard, [])
        arrived = unpack_result(ray.get(ray.put(pack_result(result)), timeout=1))
        run.close()
    kept = [arrived.clients, arrived.losses, *(clients for clients, _ in arrived.client_states)]
    assert all(isinstance(array, np.ndarray) and array.flags.owndata and array.flags.writeable for array in kept)


def test_termination_while_ray_starts_is_what_it_is_elsewhere(tmp_path: Path) -> None:
    """Ray's handler of termination ends the process in its own way; it is there before ours is again."""

    class Asked(BaseException):
        pass

    def asked(number: int, frame: object) -> None:
        raise Asked

    before = signal.signal(signal.SIGTERM, asked)
    try:
        with pretending(PretendRay()) as ray:
            ray.init = lambda **options: sys.exit(signal.SIGTERM)  # type: ignore[method-assign]
            with pytest.raises(Asked):
                opened(on_cluster(SHORT, 1), tmp_path, "asked")
        assert signal.getsignal(signal.SIGTERM) is asked
    finally:
        signal.signal(signal.SIGTERM, before)


def test_trials_of_a_study_have_the_same_workers(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pretending(PretendRay()) as ray:
        study = fedarena.tune(
            on_cluster(SHORT, 1),
            search={"local.lr": {"from": 0.01, "to": 0.1}},
            trials=2,
            sampler="random",
            name="study",
            runs_folder=tmp_path,
            progress=False,
            **VALIDATED,
        )
    assert len(study.trials) == 2
    assert ray.times_begun == 1
    assert len(ray.workers) == 1
    assert not ray.living()


def test_runs_of_a_suite_have_the_same_workers(tmp_path: Path) -> None:
    with pretending(PretendRay()) as ray:
        base = {key: value for key, value in on_cluster(SHORT, 1).items() if key != "seed"}
        suite = {"name": "two", "base": base, "matrix": {"local.lr": [0.01, 0.1]}, "seeds": [3]}
        compared = fedarena.suite(suite, runs_folder=tmp_path, progress=False)
    assert not compared.failures
    assert (ray.times_begun, len(ray.workers)) == (1, 1)
    assert not ray.living()


@pytest.mark.parametrize(("method", "kind"), [("prepare", BadInputError), ("train", RunFailedError)])
def test_a_full_disk_on_a_machine_is_named(
    method: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/digits")

    monkeypatch.setattr(f"fedarena.runs.cluster.worker.{'prepare' if method == 'prepare' else 'unpack_shard'}", full)
    with pretending(PretendRay()), pytest.raises(kind) as error:
        play(on_cluster(SHORT, 1), tmp_path, "full")
    assert socket.gethostname() in str(error.value)
    assert "make room there" in str(error.value)
