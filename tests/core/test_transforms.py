"""Transforms and aggregators beside plain NumPy, on both engines, resumed, in other processes, and refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from logistic_clients import (
    ENGINES,
    LOCAL,
    SIZES,
    cohorts,
    flat,
    largest,
    local_sgd,
    logistic_simulation,
    make_clients,
    phones_of_different_speeds,
    plain,
)
from small_runs import StopAfter, config, content, interrupt

from fedarena.algorithms import Ditto, FedAvg, FedKD, Scaffold, TimelyFL
from fedarena.core.errors import BadInputError
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import simulate
from fedarena.simulate.protocols import Buffered, Synchronous
from fedarena.train import CohortEngine, Job, JobArrays, ReferenceEngine, Work, flatten_groups, unflatten_groups
from fedarena.train.examples import example_update
from fedarena.transforms import Clip, Partial, Rows, TopK, Transform, UpdatePath
from fedarena.transforms.aggregators import ByAge, Mean, Mixing

NUMBERS = itertools.count()


def run(make_federation, engine_kind, transforms, algorithm=None, **parts):
    federation = make_federation(make_clients(), 3, name=f"run {next(NUMBERS)}")
    simulation = logistic_simulation(federation, algorithm or FedAvg(), LOCAL, engine_kind)
    return list(simulate(replace(simulation, transforms=tuple(transforms), **parts)))


def clipped(update: np.ndarray, bound: float) -> np.ndarray:
    norm = np.sqrt((update**2).sum())
    return update * min(1.0, bound / norm)


def federated(start: np.ndarray, transform) -> np.ndarray:
    """Federated averaging whose clients' updates go through `transform(client, update)`."""
    w = start
    for round, cohort in cohorts():
        updates = [transform(c, local_sgd(w, c, round, plain, LOCAL)[0] - w) for c in cohort]
        sizes = np.array([SIZES[c] for c in cohort], dtype=float)
        w = w + sizes @ np.array(updates) / sizes.sum()
    return w


@ENGINES
def test_clipping_shortens_what_is_longer_than_the_bound(make_federation, engine_kind) -> None:
    first, *_, last = run(make_federation, engine_kind, [Clip(bound=0.5)])
    lengths = []

    def clip(client, update):
        lengths.append(np.linalg.norm(update))
        return clipped(update, 0.5)

    np.testing.assert_allclose(
        flat(last.snapshot.state["params"]), federated(flat(first.snapshot.state["params"]), clip), atol=1e-10
    )
    assert min(lengths) < 0.5 < max(lengths)  # or this test would show nothing


@ENGINES
@pytest.mark.parametrize("error_feedback", [True, False])
def test_the_largest_coordinates_are_sent_and_the_rest_is_kept(make_federation, engine_kind, error_feedback) -> None:
    first, *_, last = run(make_federation, engine_kind, [TopK(share=0.2, error_feedback=error_feedback)])
    errors: dict[int, np.ndarray] = {}

    def top_k(client, update):
        whole = update + errors.get(client, 0.0) if error_feedback else update
        sent = largest(whole, round(0.2 * len(update)))
        errors[client] = whole - sent
        return sent

    start = flat(first.snapshot.state["params"])
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), federated(start, top_k), atol=1e-10)
    assert sum(1 for _, cohort in cohorts() for _ in cohort) > len(errors)  # some come again
    kept = {client: dict(state) for client, state in last.snapshot.client_states.items()}
    if error_feedback:
        assert kept.keys() == errors.keys()
        for client, state in kept.items():
            np.testing.assert_allclose(flat(state["transform:0:error"]), errors[client], atol=1e-10)
    else:
        assert not kept


@ENGINES
def test_transforms_chain_in_their_order(make_federation, engine_kind) -> None:
    orders = []
    for transforms in ([Clip(bound=0.4), TopK(share=0.3)], [TopK(share=0.3), Clip(bound=0.4)]):
        errors: dict[int, np.ndarray] = {}
        clips_first = isinstance(transforms[0], Clip)

        def both(client, update, errors=errors, clip_first=clips_first):
            whole = (clipped(update, 0.4) if clip_first else update) + errors.get(client, 0.0)
            sent = largest(whole, round(0.3 * len(update)))
            errors[client] = whole - sent
            return sent if clip_first else clipped(sent, 0.4)

        first, *_, last = run(make_federation, engine_kind, transforms)
        expected = federated(flat(first.snapshot.state["params"]), both)
        np.testing.assert_allclose(flat(last.snapshot.state["params"]), expected, atol=1e-10)
        orders.append(expected)
    assert not np.allclose(*orders)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", [Scaffold, Ditto, FedAvg])
@pytest.mark.parametrize("protocol", [Synchronous(over_commit=1.5), Buffered(buffer_size=2)])
def test_both_engines_agree_on_clients_that_keep_several_things(make_federation, algorithm, protocol) -> None:
    parts = {"protocol": protocol, "fleet": phones_of_different_speeds()}
    outcomes = [
        run(make_federation, kind, [Clip(bound=0.3), TopK(share=0.4)], algorithm(), **parts)[-1]
        for kind in (CohortEngine, ReferenceEngine)
    ]
    one, other = (outcome.snapshot for outcome in outcomes)
    for group, tensors in one.state.items():
        for name, t in tensors.items():
            torch.testing.assert_close(other.state[group][name], t, rtol=0, atol=1e-10)
    assert set(one.client_states) == set(other.client_states)
    for client, state in one.client_states.items():
        assert state.keys() == other.client_states[client].keys()
    if algorithm is Ditto:
        losses = [outcome.personal_scores.means("loss") for outcome in outcomes]
        np.testing.assert_allclose(*losses, atol=1e-10)


def test_clipping_can_bound_all_that_is_sent() -> None:
    rows = rows_of({"params": {"w": torch.tensor([[3.0, 0.0]])}, "control": {"w": torch.tensor([[4.0]])}})
    update, _ = Clip(bound=1.0, groups="all").at_client(rows, {}, {})
    assert update["params"]["w"].tolist() == [[pytest.approx(0.6), 0]]
    assert update["control"]["w"].tolist() == [[pytest.approx(0.8)]]
    update, _ = Clip(bound=1.0).at_client(rows, {}, {})
    assert update["params"]["w"].tolist() == [[1, 0]]
    assert update["control"]["w"].tolist() == [[4]]


def rows_of(update, weights=None) -> Rows:
    clients = len(next(iter(next(iter(update.values())).values())))
    jobs = JobArrays.of([Job(client, 1) for client in range(clients)])
    given_weights = np.ones(clients) if weights is None else np.asarray(weights, dtype=float)
    return Rows(update, jobs, Work(given_weights, None, None), given_weights, ("params",))


# --- what is sent ----------------------------------------------------------------------------------------------------


@ENGINES
def test_bytes_are_planned_and_real(make_federation, engine_kind) -> None:
    _, *rounds = run(make_federation, engine_kind, [TopK(share=0.2)])
    numbers = 18  # of the model, 8 bytes each
    # Of 4 values, a byte that says how places are sent, and a bit for every place.
    planned = round(0.2 * numbers) * 8 + 1 + 3
    for outcome in rounds:
        assert set(np.asarray(outcome.jobs["bytes_up"]).tolist()) == {planned}
        assert (np.asarray(outcome.jobs["real_bytes_up"]) <= planned).all()
        assert outcome.row["real_bytes_up"] == np.asarray(outcome.jobs["real_bytes_up"]).sum()


def test_zeros_are_not_sent_and_a_dense_update_is_never_longer() -> None:
    update = {"params": {"w": torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8]])}}
    path = UpdatePath(FedAvg(), [TopK(share=1.0)])
    assert path.planned_bytes({"params": {"w": update["params"]["w"][0]}}) == 8 * 4
    _, _, sent = path._transform(rows_of(update), no_shard(), [{}], {})
    assert sent.tolist() == [4 + 1 + 1, 8 * 4]


def no_shard():
    return type("NoShard", (), {"states": {}})()


def test_methods_without_compression_have_one_number_of_bytes(make_federation) -> None:
    _, *rounds = run(make_federation, CohortEngine, [Clip()])
    assert all(outcome.row["real_bytes_up"] is None for outcome in rounds)
    _, *rounds = run(make_federation, CohortEngine, [], FedKD())
    sizes = [np.asarray(outcome.jobs["real_bytes_up"]) for outcome in rounds]
    assert all(np.isfinite(size).all() for size in sizes)
    # What a round is expected to send is what the last one really did, in the mean by samples.
    assert rounds[1].jobs["bytes_up"][0] == pytest.approx(
        np.average(sizes[0], weights=rounds[0].jobs["samples"]), abs=1
    )


# --- the server's side -----------------------------------------------------------------------------------------------


class ServerMomentum(Transform):
    """Keeps a running sum of updates at the server."""

    def server_init(self, update):
        return {
            "sum": {name: torch.zeros_like(t) for name, t in update["params"].items()},
            "rounds": {"n": torch.zeros(())},
        }

    def at_server(self, update, server, context):
        total = {name: 0.5 * server["sum"][name] + t for name, t in update["params"].items()}
        return {**update, "params": total}, {"sum": total, "rounds": {"n": server["rounds"]["n"] + 1}}


@ENGINES
def test_what_the_server_keeps_for_a_transform(make_federation, engine_kind) -> None:
    first, *rounds = run(make_federation, engine_kind, [ServerMomentum()])
    w, total = flat(first.snapshot.state["params"]), 0.0
    for (round, cohort), outcome in zip(cohorts(), rounds, strict=True):
        sizes = np.array([SIZES[c] for c in cohort], dtype=float)
        updates = np.array([local_sgd(w, c, round, plain, LOCAL)[0] - w for c in cohort])
        total = 0.5 * total + sizes @ updates / sizes.sum()
        w = w + total
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), w, atol=1e-10)
        assert outcome.snapshot.transform_states[0]["rounds"]["n"] == round


@pytest.mark.sampled(1)
@pytest.mark.parametrize("protocol", ["ideal", "buffered"])
def test_a_run_with_transforms_that_is_interrupted_ends_the_same(tmp_path: Path, protocol: str) -> None:
    settings = {
        "transforms": [f"{__name__}:ServerMomentum", {"name": "clip", "bound": 0.5}, {"name": "top_k", "share": 0.1}],
        "algorithm": "scaffold",
        "rounds": 12,
        "protocol": {"name": protocol, **({"buffer_size": 3} if protocol == "buffered" else {})},
        "engine": "reference",
    }
    if protocol == "buffered":
        settings["fleet"] = {"name": "uniform", "seconds_per_sample": [0.01, 0.4]}
    start_run(config(**settings), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**settings), tmp_path, StopAfter(7, interrupt))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


# --- work that can travel --------------------------------------------------------------------------------------------


def through_a_file(groups):
    """What is left of groups on the other side of a wire; files sort by name, and the order decides how sums round."""
    tensors = {name: t.contiguous() for name, t in flatten_groups(groups).items()}
    found = safetensors.torch.load(safetensors.torch.save(tensors))
    return unflatten_groups({name: found[name] for name in tensors}, groups)


@ENGINES
def test_a_shard_gives_the_same_bits_elsewhere(make_federation, engine_kind) -> None:
    federation = make_federation(make_clients(), 3, name="elsewhere")
    algorithm = Scaffold()
    here, there = (logistic_simulation(federation, algorithm, LOCAL, engine_kind) for _ in range(2))
    path = UpdatePath(algorithm, [Clip(bound=0.3), TopK(share=0.5)])
    state = algorithm.server_init(here.engine.initial_params())
    broadcasts = {version: algorithm.broadcast(state) for version in (0, 2)}
    broadcasts[2]["params"] = {name: 1.1 * p for name, p in broadcasts[2]["params"].items()}
    jobs = [Job(client, 3, version=2 * (client % 2)) for client in range(len(SIZES))]
    kept = {1: {**algorithm.client_init(broadcasts[0]), "transform:1:error": broadcasts[2]["params"]}}
    for shard in here.engine.divide(JobArrays.of(jobs), broadcasts, kept):
        alone = shard.self_contained()
        assert set(alone.states) <= set(shard.jobs.clients.tolist())
        travelled = replace(
            alone,
            broadcasts={version: through_a_file(groups) for version, groups in alone.broadcasts.items()},
            states={client: through_a_file(groups) for client, groups in alone.states.items()},
        )
        one = path.collect(here.engine.train(shard), shard, [{}, {}])
        other = path.collect(there.engine.train(travelled), travelled, [{}, {}])
        assert one.partials.keys() == other.partials.keys()
        for step, partial in one.partials.items():
            assert json.loads(json.dumps(partial.numbers)) == other.partials[step].numbers
            back = through_a_file(other.partials[step].tensors)
            for group, tensors in partial.tensors.items():
                assert all(torch.equal(t, back[group][name]) for name, t in tensors.items())
        np.testing.assert_array_equal(one.losses, other.losses)


@given(
    st.lists(st.tuples(st.integers(-8, 8), st.integers(1, 9), st.integers(0, 3)), min_size=2, max_size=8),
    st.data(),
    st.sampled_from([Mean(), Mean(rescale=True), ByAge(), ByAge(merging="sum")]),
)
def test_partial_results_merge_to_the_whole(updates, data, aggregator) -> None:
    def add_up(some) -> Partial:
        changes, weights, ages = (np.array(column) for column in zip(*some, strict=True))
        jobs = JobArrays.of([Job(n, 1, staleness=int(age)) for n, age in enumerate(ages)])
        tensors = torch.tensor(changes, dtype=torch.float64).reshape(-1, 1)
        update = {"params": {"w": tensors}, "other": {"c": 2 * tensors}}
        return aggregator.add_up(Rows(update, jobs, Work(weights, None, None), weights.astype(float), ("params",)))

    cut = data.draw(st.integers(1, len(updates) - 1))
    merged = aggregator.finish(aggregator.merge(add_up(updates[:cut]), add_up(updates[cut:])))
    whole = aggregator.finish(add_up(updates))
    assert merged.keys() == whole.keys()
    for group, tensors in whole.items():
        for name, t in tensors.items():
            torch.testing.assert_close(merged[group][name], t, rtol=1e-12, atol=1e-12)


# --- what is known about a job ---------------------------------------------------------------------------------------


class NoisyUpdates(FedAvg):
    """Adds random numbers wherever a client could."""

    def local_gradient(self, grad, params, client):
        return {name: g + 0.1 * client.job.normal(name, g) for name, g in grad.items()}

    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        noisy = {name: t + 0.1 * client.job.uniform(name, t) for name, t in update["params"].items()}
        return {"params": noisy}, state


class NoisyRows(Transform):
    """Adds random numbers on the way."""

    def at_client(self, rows, kept, server):
        noisy = {name: t + rows.context.normal(name, t) for name, t in rows.update["params"].items()}
        return rows.update | {"params": noisy}, kept


def test_random_numbers_are_the_same_on_both_engines_and_keyed(make_federation) -> None:
    outcomes = [
        run(make_federation, kind, [NoisyRows()], NoisyUpdates())[-1].snapshot.state["params"]
        for kind in (CohortEngine, ReferenceEngine)
    ]
    for name, p in outcomes[0].items():
        torch.testing.assert_close(outcomes[1][name], p, rtol=0, atol=1e-9)
    quiet = run(make_federation, CohortEngine, [])[-1].snapshot.state["params"]
    assert all((quiet[name] - p).abs().max() > 0.01 for name, p in outcomes[0].items())
    like = torch.zeros(2000, dtype=torch.float64)
    keys = ((0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1))  # client, round, seed
    jobs = [JobArrays.of([Job(client, round)]).contexts(like, seed) for client, round, seed in keys]
    draws = [context.normal("noise", like[None])[0] for context in jobs]
    draws.append(jobs[0].normal("other noise", like[None])[0])
    for one, other in itertools.combinations(draws, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    assert torch.equal(draws[0], jobs[0].normal("noise", like[None])[0])
    assert abs(draws[0].mean()) < 0.1
    assert abs(draws[0].std() - 1) < 0.1


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"transforms": "clib"}, "There is no transform called 'clib'; did you mean 'clip'"),
        ({"transforms": [{"name": "clip", "bond": 1}]}, "has no option 'bond'; did you mean 'bound'"),
        ({"transforms": [{"name": "clip", "bound": 0}]}, "bound must be above 0"),
        ({"transforms": [{"name": "top_k", "share": 2.0}]}, "share must be above 0 and at most 1"),
        ({"transforms": "top_k", "algorithm": "fetchsgd"}, "TopK does not fit FetchSGD: its clients do not send"),
        (
            {"transforms": "top_k", "algorithm": "timelyfl"},
            "TopK does not fit TimelyFL: some of its clients",
        ),
        ({"transforms": "clip", "algorithm": "local_only"}, "Clip does not fit LocalOnly: its clients send no update"),
        ({"aggregator": "meen"}, "There is no aggregator called 'meen'; did you mean 'mean'"),
        ({"aggregator": "mixing"}, "Mixing takes one update at a time.* protocol=asynchronous"),
        ({"aggregator": "os:path"}, "aggregator"),
        ({"protocol": {"name": "buffered", "rescale": True}}, "set aggregator.rescale"),
        ({"protocol": {"name": "asynchronous", "mixing": 0.5}}, "set aggregator.share"),
        ({"protocol": {"name": "staleness_aware", "merging": "sum"}}, "set aggregator.merging"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, settings, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(config(engine="reference", **settings), tmp_path)
    assert not list(tmp_path.iterdir())


def test_protocols_bring_their_usual_aggregator() -> None:
    assert config().aggregator["name"] == "mean"
    assert config(protocol="asynchronous").aggregator == {"name": "mixing", "share": 0.6, "staleness_exponent": 0.5}
    assert config(protocol="staleness_aware").aggregator["name"] == "by_age"
    changed = config(protocol="asynchronous", **{"aggregator.share": 0.9})
    assert changed.aggregator == {"name": "mixing", "share": 0.9, "staleness_exponent": 0.5}
    assert config(protocol="asynchronous", aggregator="mean").aggregator["name"] == "mean"


def test_an_update_that_shows_the_form_changes_nothing() -> None:
    update = example_update(TimelyFL(), {"w": torch.ones(3)})
    assert (update["params"]["w"] == 0).all()


def test_mixing_needs_where_the_client_began() -> None:
    rows = rows_of({"params": {"w": torch.tensor([[2.0]])}})
    mixing = Mixing(share=0.25)
    total = mixing.add_up(rows)
    state, starts = ({"params": {"w": torch.tensor([10.0])}}, {0: {"params": {"w": torch.tensor([4.0])}}})

    def take(state, update):
        return FedAvg().server_step(state, update, round=1)

    stepped = mixing.move_server(state, mixing.finish(total), total, starts, take)
    assert stepped["params"]["w"].tolist() == [10 + 0.25 * (4 + 2 - 10)]
