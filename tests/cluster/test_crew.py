"""What engine=ray does without many machines: the plan, what travels, what is refused; and one short run on Ray."""

from __future__ import annotations

import os
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_clusters import MANY_SHARDS, Silent, bits, on_cluster, opened, play
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.runs.building import prepare
from fedarena.runs.cluster import joining, probe
from fedarena.runs.cluster.admission import why_refused
from fedarena.runs.cluster.messages import (
    pack_groups,
    pack_measured,
    pack_result,
    pack_shard,
    unpack_groups,
    unpack_measured,
    unpack_result,
    unpack_shard,
)
from fedarena.runs.cluster.probe import fingerprint_of_bits
from fedarena.runs.cluster.workplace import Workplace, workplace_of
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, resume_run
from fedarena.train import JobArrays, RayEngine, wide_products
from fedarena.train.jobs import Job
from fedarena.train.validation import Validation


def _simulation(settings: dict[str, Any]) -> Any:
    return prepare(resolve(merge({}, settings)), Silent()).simulation


def test_alone_it_computes_the_bits_of_the_cohort_engine(tmp_path: Path) -> None:
    assert bits(play(on_cluster(MANY_SHARDS, 0), tmp_path, "ray")) == bits(play(MANY_SHARDS, tmp_path, "cohort"))


@pytest.mark.parametrize("algorithm", ["fedavg", "qfedavg"])  # the latter needs the losses of first models
def test_a_crew_gets_the_same_shards(algorithm: str) -> None:
    simulation = _simulation(on_cluster(MANY_SHARDS | {"algorithm": algorithm}, 0))
    engine = simulation.engine
    jobs = JobArrays.of([Job(int(client), 1) for client in simulation.training_clients[:12]])
    broadcasts = {0: simulation.broadcast(simulation.first_snapshot())}
    alone = engine.divide(jobs, broadcasts, {})
    engine.crew = _Nobody()
    planned = engine.divide(jobs, broadcasts, {})
    assert len(alone) == len(planned) > 2
    for one, other in zip(alone, planned, strict=True):
        assert one.jobs.clients.tolist() == other.jobs.clients.tolist()
        assert one.batch_width == other.batch_width
        np.testing.assert_array_equal(one.start_losses, other.start_losses)
        assert engine.count_steps(other) > 0


class _Nobody:
    """A crew that knows no test."""

    def measures(self, other: object) -> bool:
        return False


@pytest.mark.parametrize("algorithm", ["scaffold", "fedkd"])
def test_shards_and_results_travel(algorithm: str) -> None:
    simulation = _simulation(on_cluster(MANY_SHARDS | {"algorithm": algorithm}, 0))
    engine, path = simulation.engine, simulation.path
    jobs = JobArrays.of([Job(int(client), 1) for client in simulation.training_clients[:4]])
    broadcasts = {0: simulation.broadcast(simulation.first_snapshot())}
    (first,) = engine.divide(jobs, broadcasts, {})[:1]
    with torch.no_grad():
        result = path.collect(engine.train(first), first, [])
    states = {
        int(client): {g: {n: t[row].clone() for n, t in some.items()} for g, some in kept.items()}
        for clients, kept in result.client_states
        for row, client in enumerate(clients)
    }
    assert states
    (second,) = engine.divide(jobs, broadcasts, states)[:1]
    arrived = unpack_shard(pack_shard(second), unpack_all(broadcasts))
    with torch.no_grad():
        here, there = (path.collect(engine.train(shard), shard, []) for shard in (second, arrived))
    back = unpack_result(pack_result(there))
    assert back.partials[0].numbers == here.partials[0].numbers
    for group, tensors in here.partials[0].tensors.items():
        for name, t in tensors.items():
            assert torch.equal(t, back.partials[0].tensors[group][name]), (group, name)
    np.testing.assert_array_equal(back.losses, here.losses)


def unpack_all(broadcasts: dict[int, Any]) -> dict[int, Any]:
    return {version: unpack_groups(pack_groups(groups)) for version, groups in broadcasts.items()}


def test_tensors_that_numpy_does_not_know_travel() -> None:
    groups = {"a": {"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "flag": torch.tensor(True)}, "empty": {}}
    back = unpack_groups(pack_groups(groups))
    assert back.keys() == groups.keys()
    for name, t in groups["a"].items():
        assert back["a"][name].dtype == t.dtype
        assert torch.equal(back["a"][name], t)


@pytest.mark.parametrize("metrics", [["accuracy"], ["auc"]])
def test_states_of_metrics_travel(metrics: list[str]) -> None:
    simulation = _simulation(on_cluster(MANY_SHARDS | {"task": {"metrics": metrics}}, 0))
    engine, clients = simulation.engine, simulation.evaluation_clients
    params = engine.initial_params()
    (states,) = engine.measure(params, clients[:6], "test", [(1, 4)])
    back = unpack_measured(pack_measured(states))
    assert back.positions.tolist() == [1, 2, 3]
    assert back.states.keys() == states.states.keys()
    assert (back.ranked is None) == (states.ranked is None)


def test_machines_of_other_bits_are_told_apart() -> None:
    one = fingerprint_of_bits(_simulation(on_cluster(MANY_SHARDS, 0)))
    again = fingerprint_of_bits(_simulation(on_cluster(MANY_SHARDS, 0)))
    other = fingerprint_of_bits(_simulation(on_cluster(MANY_SHARDS | {"local.lr": 0.0500001}, 0)))
    assert one == again != other


def test_machines_that_multiply_large_matrices_otherwise_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a run's first steps are: its model may be small, and the mean of many clients' updates not."""
    simulation = _simulation(on_cluster(MANY_SHARDS, 0))

    def fingerprints() -> list[str]:
        return [fingerprint_of_bits(simulation), probe.fingerprint_of_arithmetic.__wrapped__("cpu")]

    def otherwise(left: Tensor, right: Tensor) -> Tensor:
        assert left.numel() * right.shape[1] >= wide_products.FEWEST
        return (left.double() @ right.double()).float()

    before = fingerprints()
    monkeypatch.setattr(probe, "product", otherwise)
    assert all(one != other for one, other in zip(before, fingerprints(), strict=True))


def test_on_a_gpu_a_cohort_is_divided_by_the_plan() -> None:
    engine = _simulation(on_cluster(MANY_SHARDS, 0, shards=6)).engine
    assert isinstance(engine, RayEngine)
    assert [len(shard) for shard in engine._shards(np.full(48, 5))] == [8] * 6
    assert len(engine._shards(np.full(2, 5))) == 1


def test_models_are_validated_while_others_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that comes later does not copy a module that is in use."""
    simulation = _simulation(MANY_SHARDS)
    task, clients = simulation.task, simulation.training_clients[:2]
    validation = Validation(task, simulation.engine.data, "train", compares=False, stacked=True)

    def in_use(memo: object) -> None:
        raise NotImplementedError("its parameters are those of somebody's computation")

    monkeypatch.setattr(task.module, "__deepcopy__", in_use, raising=False)
    rows = {name: torch.stack([p, p]) for name, p in simulation.engine.initial_params().items()}
    with ThreadPoolExecutor(1) as other:
        losses = other.submit(validation.of, rows, None, clients).result().after
    assert np.isfinite(losses).all()


MINE: dict[str, Any] = {
    "node": "here",
    "versions": {"python": "3.11.7", "fedarena": "1", "torch": "2.6", "numpy": "2", "ray": "2.60"},
    "source": "ab",
    "federation": "aa",
    "weights": None,
    "device": "cpu",
    "bits": "00",
}


@pytest.mark.parametrize(
    ("different", "sentence"),
    [
        ({}, None),
        ({"versions": MINE["versions"] | {"python": "3.11.9"}}, None),
        ({"versions": MINE["versions"] | {"torch": "2.7"}}, "there has torch 2.7, and this machine 2.6; install"),
        ({"source": "cd"}, "there has another source of fedarena 1 than this machine; install the same"),
        ({"source": None}, "there has another source"),
        ({"versions": {}}, "there has fedarena None"),
        ({"versions": MINE["versions"] | {"fedarena": "2"}, "refused": "no such setting"}, "there has fedarena 2, "),
        ({"federation": "bb"}, "The federation on there is another one .*copy the store"),
        ({"weights": "cc"}, "The file of weights on there"),
        ({"device": "cuda"}, "The worker on there computes on cuda"),
        ({"bits": "11"}, "there does not compute the same bits.*engine.mixed_hardware=true"),
        ({"refused": "no module named mine"}, "A worker on there cannot build the run: no module named mine"),
    ],
)
def test_who_is_refused(different: dict[str, Any], sentence: str | None) -> None:
    reason = why_refused(MINE | {"node": "there"} | different, MINE)
    assert (reason is None) if sentence is None else re.match(sentence, reason or "")
    if "bits" in different:
        assert why_refused(MINE | {"node": "there"} | different, MINE, mixed_hardware=True) is None


@pytest.mark.parametrize(
    ("elsewhere", "expected"),
    [
        (None, Workplace(None, 2, 1)),
        ("cohort", Workplace(workers=0)),
        ("ray", Workplace(None, 2, 1)),
        ({"workers": 5, "address": "auto"}, Workplace("auto", 5, 1)),
    ],
)
def test_where_a_run_goes_on(elsewhere: Any, expected: Workplace) -> None:
    engine = resolve(merge({}, on_cluster(MANY_SHARDS, 2))).engine
    assert workplace_of(engine, elsewhere) == expected


@pytest.mark.parametrize(
    ("elsewhere", "sentence"),
    [("reference", "engine=reference"), ({"lanes": 3}, "engine.lanes"), ({"workers": "many"}, "engine.workers")],
)
def test_what_of_an_engine_cannot_be_changed(elsewhere: Any, sentence: str) -> None:
    engine = resolve(merge({}, on_cluster(MANY_SHARDS, 2))).engine
    with pytest.raises(BadInputError, match=sentence):
        workplace_of(engine, elsewhere)


def test_only_runs_on_ray_go_on_elsewhere(tmp_path: Path) -> None:
    opened(MANY_SHARDS, tmp_path, "plain").advance(1).close()
    with pytest.raises(BadInputError, match="Only a run with engine=ray"):
        resume_run(tmp_path / "plain", Silent(), elsewhere={"workers": 2})


def test_a_finished_run_on_ray_is_read_wherever_it_is_to_go_on(tmp_path: Path) -> None:
    play(on_cluster(MANY_SHARDS, 0), tmp_path, "ray")
    for elsewhere in ("cohort", {"workers": 3}):
        assert resume_run(tmp_path / "ray", Silent(), elsewhere=elsewhere).summary["status"] == "finished"
    with pytest.raises(BadInputError, match=r"engine.lanes of a run that is there cannot be changed"):
        resume_run(tmp_path / "ray", Silent(), elsewhere={"lanes": 3})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": -1}, "engine.workers must be from 0"),
        ({"cores": 0}, "engine.cores must be from 1"),
        ({"address": "nowhere"}, "host:port"),
        ({"address": "127.0.0.1:1"}, "No Ray cluster answers at 127.0.0.1:1"),
    ],
)
def test_bad_options(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    if "address" in options:
        pytest.importorskip("ray")
    settings = MANY_SHARDS | {"engine": {"name": "ray", "lanes": 2, **options}}
    with pytest.raises(BadInputError, match=sentence):
        opened(settings, tmp_path, "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.6\r\n"], ids=["silent", "another"])
def test_something_else_than_a_cluster_is_told_apart(greeting: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as other:
        answering = other.submit(lambda: server.accept()[0])
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if greeting:
            answering.add_done_callback(lambda accepted: accepted.result().sendall(greeting))
        with pytest.raises(BadInputError, match=f"No Ray cluster answers at {address}"):
            joining._check_answers(address)
        answering.result().close()


def test_without_ray_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInputError, match=r"pip install 'fedarena\[ray\]'"):
        opened(on_cluster(MANY_SHARDS, 1), tmp_path, "refused")


def test_a_run_on_ray_in_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is in `make test-ray`."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    settings = MANY_SHARDS | {"algorithm": "scaffold", "rounds": 2}
    run = opened(on_cluster(settings, 1), tmp_path, "ray")
    assert run._crew is not None
    (member,) = run._crew.pool.members.values()
    assert member.node == socket.gethostname()
    assert member.pid != os.getpid()
    run.advance(1)
    assert member.done > 0
    run.close()
    import ray

    assert not ray.is_initialized()  # nothing is left behind
    assert bits(Run.reopen(tmp_path / "ray", Silent(), elsewhere="cohort").advance().close().path) == bits(
        play(settings, tmp_path, "cohort")
    )
