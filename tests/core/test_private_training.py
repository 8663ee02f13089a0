"""User-level privacy in training: what one client changes, the noise, adaptive norms."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logistic_clients import ENGINES, LOCAL, SIZES, cohorts, flat, local_sgd, logistic_simulation, make_clients, plain
from small_runs import config

from fedarena.algorithms import ALGORITHMS, FedAvg, Scaffold
from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.runs.run import start_run
from fedarena.simulate import simulate
from fedarena.simulate.selectors import Poisson
from fedarena.train import CohortEngine, Job, JobArrays, JobContext, ReferenceEngine, Work, map_groups
from fedarena.train.examples import example_update
from fedarena.transforms import Attack, ClipAndNoise, Rows, Transform, UpdatePath
from fedarena.transforms.aggregators import FixedMean
from fedarena.transforms.clip_and_noise import CLIPPING, Quantile
from fedarena.transforms.rows import ScaledRows

NUMBERS = itertools.count()
MLP = {"model": "mlp", "hidden": (4,)}  # of which a part can stay at the clients
HARDLY_ANY = 1e-13  # noise
PRIVATE = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0}, "selector": "poisson"}


def private(make_federation, engine_kind, transform, algorithm=None, cohort=4, model=None, **parts):
    model = model or {}
    federation = make_federation(make_clients(), 3, name=f"private {next(NUMBERS)}")
    simulation = logistic_simulation(federation, algorithm or FedAvg(), LOCAL, engine_kind, cohort=cohort, **model)
    together = {"transforms": (transform,), "aggregator": FixedMean(transform.clients), "always_steps": True}
    return replace(simulation, **together, **parts)


def norms(rows: Rows) -> np.ndarray:
    update = ScaledRows(rows.update, rows.factors).rows()
    sent = [t for group, tensors in update.items() if group != CLIPPING for t in tensors.values()]
    return torch.linalg.vector_norm(torch.cat([t.reshape(len(t), -1) for t in sent], dim=1), dim=1).numpy()


class Watching(FixedMean):
    """Remembers what arrives."""

    def __init__(self, clients: float):
        super().__init__(clients)
        self.arrived: list[Rows] = []

    def add_up(self, rows: Rows):
        self.arrived.append(rows.take(np.arange(len(rows))))  # the engine uses its memory again
        return super().add_up(rows)

    def nothing_of(self, rows: Rows):
        return super().add_up(replace(rows, weights=np.zeros(len(rows))))

    def largest_influence(self) -> float:
        """How far leaving out one client moves the result of a shard, at most, over all of them."""
        most = 0.0
        for rows in self.arrived:
            whole = self.finish(super().add_up(rows))
            for client in range(len(rows)):
                others = [other for other in range(len(rows)) if other != client]
                rest = self.finish(super().add_up(rows.take(np.array(others))) if others else self.nothing_of(rows))
                apart = [
                    (whole[group][name] - t).flatten()
                    for group, tensors in rest.items()
                    if group not in ("cohort", CLIPPING)
                    for name, t in tensors.items()
                ]
                most = max(most, float(torch.linalg.vector_norm(torch.cat(apart))))
                assert torch.equal(whole["cohort"]["clients"], rest["cohort"]["clients"])
        return most


def fits(name: str) -> bool:
    """Whether a private run may use the algorithm."""
    return name not in ("fedkd", "local_only", "timelyfl")


ALLOWED = [name for name in ALGORITHMS.names() if fits(name)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("engine_kind", "name", "clipping"),
    [
        *itertools.product([CohortEngine, ReferenceEngine], ALLOWED, ["flat"]),
        *itertools.product([CohortEngine], ["fedavg", "qfedavg", "scaffold"], ["per_layer", "adaptive"]),
    ],
)
def test_no_client_changes_more_than_the_bound(make_federation, engine_kind, name, clipping) -> None:
    bound, cohort = 0.02, 5
    adaptive = Quantile(0.5, 0.2, HARDLY_ANY) if clipping == "adaptive" else None
    clip = ClipAndNoise(
        norm=bound, noise_multiplier=0.01, clients=cohort, per_layer=clipping == "per_layer", adaptive=adaptive
    )
    simulation = private(make_federation, engine_kind, clip, ALGORITHMS.get(name)(), cohort, MLP)
    simulation.path.check(example_update(simulation.algorithm, simulation.engine.initial_params()), None)
    watching = Watching(cohort)
    simulation = replace(simulation, aggregator=watching, rounds=3)
    rows = [outcome.row for outcome in simulate(simulation)]
    assert sum(row.get("clipped_share") or 0 for row in rows) > 0  # or this test would show nothing
    bounds = [row["clip_norm"] for row in rows[1:]]
    assert (len(set(bounds)) > 1) == (clipping == "adaptive")
    assert max(norms(rows).max() for rows in watching.arrived) <= max(bounds) * (1 + 1e-9)
    influence = watching.largest_influence()
    assert 0 < influence <= max(bounds) / cohort * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS.names() if not fits(name)])
def test_algorithms_whose_uploads_cannot_be_bounded_are_refused(tmp_path, name) -> None:
    with pytest.raises(BadInputError, match=r"does not fit|how much a client does depends on how fast others"):
        start_run(config(algorithm=name, **PRIVATE), tmp_path)
    assert not list(tmp_path.iterdir())


@st.composite
def uploads(draw):
    """Rows of clients with several groups, of any length."""
    clients = draw(st.integers(1, 6))
    scale = draw(st.sampled_from([1e-6, 1.0, 1e6]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def tensor(*shape: int) -> torch.Tensor:
        return scale * torch.randn(clients, *shape, generator=generator, dtype=torch.float64)

    update = {
        "params": {"0.weight": tensor(3, 2), "0.bias": tensor(3), "1.weight": tensor(2)},
        "control": {"0.weight": tensor(3, 2)},
        "normalizer": {"sum": tensor()},
    }
    jobs = JobArrays.of([Job(client, 1) for client in range(clients)])
    amounts = np.arange(1, clients + 1)
    return Rows(update, jobs, Work(amounts, amounts, amounts), np.ones(clients), ("params",))


class SendsNothing(ClipAndNoise):
    """Does something else at the client than what it inherits."""

    def at_client(self, rows, kept, server):
        update, kept = super().at_client(rows, kept, server)
        return map_groups(torch.zeros_like, update), kept


def test_a_subclass_is_heard_at_the_client(make_federation) -> None:
    transform = SendsNothing(norm=1.0, noise_multiplier=HARDLY_ANY, clients=4)
    first, *_, last = simulate(private(make_federation, CohortEngine, transform))
    for name, p in first.snapshot.state["params"].items():
        torch.testing.assert_close(last.snapshot.state["params"][name], p, rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(uploads(), st.floats(1e-3, 1e3), st.booleans())
def test_clipped_uploads_are_within_the_norm_and_keep_their_direction(rows, norm, per_layer) -> None:
    clip = ClipAndNoise(norm=norm, noise_multiplier=1.0, clients=3, per_layer=per_layer)
    before, untouched = norms(rows), rows.take(np.arange(len(rows)))
    update, _ = clip.at_client(rows, {}, clip.server_init({}))
    scaled = clip.scaled(rows, clip.server_init({}))
    as_factors = FixedMean(3).add_up(replace(rows, update=scaled.update, factors=scaled.factors)).tensors
    as_rows = FixedMean(3).add_up(replace(rows, update=update)).tensors
    for group, tensors in untouched.update.items():
        for name, t in tensors.items():
            assert torch.equal(rows.update[group][name], t)
            torch.testing.assert_close(as_factors[group][name], as_rows[group][name], rtol=1e-12, atol=1e-12 * norm)
    after = replace(rows, update=update)
    assert (norms(after) <= norm * (1 + 1e-9)).all()
    watching = Watching(3)
    watching.add_up(after)
    assert watching.largest_influence() <= norm / 3 * (1 + 1e-9)
    within = update[CLIPPING]["within"].numpy() > 0
    for group, tensors in rows.update.items():
        assert list(update[group]) == list(tensors)
        for name, t in tensors.items():
            torch.testing.assert_close(update[group][name][within], t[within], rtol=0, atol=0)
            assert (update[group][name] * t >= 0).all()
    if not per_layer:
        assert (within == (before <= norm)).all()
        np.testing.assert_allclose(norms(after), np.minimum(before, norm), rtol=1e-9)


@ENGINES
def test_clipped_sums_over_the_expected_cohort_as_in_plain_numpy(make_federation, engine_kind) -> None:
    clip = ClipAndNoise(norm=0.4, noise_multiplier=HARDLY_ANY, clients=4)
    first, *_, last = simulate(private(make_federation, engine_kind, clip))
    w = flat(first.snapshot.state["params"])
    for round, cohort in cohorts():
        changes = [local_sgd(w, client, round, plain, LOCAL)[0] - w for client in cohort]
        w = w + sum(change * min(1, 0.4 / np.linalg.norm(change)) for change in changes) / 4
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-10)


def test_an_adaptive_norm_finds_the_quantile(make_federation) -> None:
    adaptive = Quantile(quantile=0.5, lr=0.3, bit_deviation=HARDLY_ANY)
    clip = ClipAndNoise(norm=5.0, noise_multiplier=HARDLY_ANY, clients=4, adaptive=adaptive)
    first, *rounds = simulate(private(make_federation, CohortEngine, clip))
    w, norm = flat(first.snapshot.state["params"]), 5.0
    for (round, cohort), outcome in zip(cohorts(), rounds, strict=True):
        changes = [local_sgd(w, client, round, plain, LOCAL)[0] - w for client in cohort]
        lengths = np.array([np.linalg.norm(change) for change in changes])
        w = w + sum(change * min(1, norm / length) for change, length in zip(changes, lengths, strict=True)) / 4
        assert outcome.row["clip_norm"] == pytest.approx(norm, rel=1e-9)
        assert outcome.row["clipped_share"] == (lengths > norm).mean()
        norm *= math.exp(-0.3 * ((lengths <= norm).mean() - 0.5))
    np.testing.assert_allclose(flat(rounds[-1].snapshot.state["params"]), w, atol=1e-10)
    assert norm < 5.0


@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold])
def test_both_engines_agree_on_private_training(make_federation, algorithm) -> None:
    adaptive = Quantile(quantile=0.4, lr=0.2, bit_deviation=0.5)
    states = []
    for kind in (CohortEngine, ReferenceEngine):
        clip = ClipAndNoise(norm=0.5, noise_multiplier=0.7, clients=4, adaptive=adaptive)
        simulation = private(make_federation, kind, clip, algorithm(), selector=Poisson())
        states.append(list(simulate(simulation))[-1].snapshot)
    for group, tensors in states[0].state.items():
        for name, t in tensors.items():
            torch.testing.assert_close(states[1].state[group][name], t, rtol=0, atol=1e-10)
    norms_kept = [state.transform_states[0]["clipping"]["norm"] for state in states]
    torch.testing.assert_close(*norms_kept, rtol=0, atol=1e-10)


def context(version: int, seed: int = 0) -> JobContext:
    key = streams.bits(seed, "server transform 0", version).view(np.int64)
    return JobContext(1.0, version, version, False, torch.tensor(key))


def noise_of(clip: ClipAndNoise, version: int, size: int = 40_000, server=None):
    update = {
        "params": {"a": torch.ones(size, dtype=torch.float64), "b": torch.ones(size, dtype=torch.float64)},
        "control": {"a": torch.ones(size, dtype=torch.float64)},
        "cohort": {"clients": torch.tensor(4.0)},
        CLIPPING: {"within": torch.tensor(0.1, dtype=torch.float64)},
    }
    noisy, kept = clip.at_server(update, server or clip.server_init({}), context(version))
    assert CLIPPING not in noisy
    assert noisy["cohort"]["clients"] == 4
    drawn = [noisy["params"]["a"] - 1, noisy["params"]["b"] - 1, noisy["control"]["a"] - 1]
    return [noise.numpy() for noise in drawn], kept


def test_the_noise_is_normal_independent_and_as_large_as_promised() -> None:
    clip = ClipAndNoise(norm=0.3, noise_multiplier=1.7, clients=50)
    each, kept = noise_of(clip, version=1)
    later, _ = noise_of(clip, version=2)
    for noise in each:
        assert scipy.stats.kstest(noise / (1.7 * 0.3 / 50), "norm").pvalue > 1e-3
    for one, other in itertools.combinations([*each, *later], 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.025  # five standard deviations
    expected = np.sqrt(sum((noise**2).sum() for noise in each) / (3 * 40_000))
    assert clip.measure(kept, {})["noise_to_signal"] == pytest.approx(expected)


def test_noise_that_was_drawn_before_is_the_same() -> None:
    def step(clip: ClipAndNoise, version: int) -> torch.Tensor:
        clip_context = JobContext(1.0, 1, version, False, torch.tensor(version))
        return clip.at_server({"params": {"w": torch.ones(7, 3)}}, clip.server_init({}), clip_context)[0]["params"]["w"]

    def prepared(version: int, numbers: int = 21) -> ClipAndNoise:
        clip = ClipAndNoise(norm=1.0, noise_multiplier=1.0, clients=10)
        clip.draw_ahead(
            {"params": {"w": torch.zeros(numbers)}}, JobContext(1.0, 1, version, False, torch.tensor(version))
        )
        return clip

    expected = step(ClipAndNoise(norm=1.0, noise_multiplier=1.0, clients=10), 5)
    clip = prepared(5)
    assert torch.equal(step(clip, 5), expected)
    assert torch.equal(step(clip, 5), expected)  # not the scaled numbers again
    assert torch.equal(step(prepared(4), 5), expected)  # those of another step are of no use
    assert torch.equal(step(prepared(5, numbers=20), 5), expected)


@pytest.mark.parametrize("workers", [1, 2])
def test_noise_is_drawn_while_workers_are_busy(make_federation, monkeypatch, workers: int) -> None:
    prepared: list[int] = []
    draw_ahead = ClipAndNoise.draw_ahead

    def noted(self: ClipAndNoise, update, context: JobContext) -> None:
        prepared.append(int(context.version))
        draw_ahead(self, update, context)

    monkeypatch.setattr(ClipAndNoise, "draw_ahead", noted)
    clip = ClipAndNoise(norm=1.0, noise_multiplier=1.0, clients=4)
    simulation = private(make_federation, partial(CohortEngine, workers=workers, lanes=1), clip, cohort=6)
    params = [flat(outcome.snapshot.state["params"]) for outcome in simulate(simulation)]
    assert prepared == ([] if workers == 1 else list(range(len(params) - 1)))


def test_noise_of_a_large_cohort_is_simulated_with_a_small_one() -> None:
    small, large = (
        ClipAndNoise(norm=1.0, noise_multiplier=2.0, clients=clients, noise_clients=5000) for clients in (200, 5000)
    )
    for clip in (small, large):
        each, _ = noise_of(clip, version=3)
        assert np.std(each) == pytest.approx(2.0 / 5000, rel=0.02)  # of the mean over either cohort


def test_noise_follows_an_adaptive_norm_and_hides_who_was_clipped() -> None:
    adaptive = Quantile(quantile=0.5, lr=0.2, bit_deviation=5.0)
    clip = ClipAndNoise(norm=1.0, noise_multiplier=1.0, clients=100, adaptive=adaptive)
    logarithms = []
    for version in range(500):
        server = clip.server_init({})
        server["clipping"]["norm"] = torch.tensor(2.0, dtype=torch.float64)
        each, kept = noise_of(clip, version, 4, server)
        logarithms.append(math.log(float(kept["clipping"]["norm"]) / 2.0))
    each, _ = noise_of(clip, 1, server=server)
    assert np.std(each) == pytest.approx(2.0 / 100, rel=0.02)
    # 0.1 above one half were within the norm, which moves by -lr (share - quantile), with noise in the share.
    observed = np.array(logarithms) / -0.2
    assert scipy.stats.kstest((observed - 0.1) / (5.0 / 100), "norm").pvalue > 1e-3


def test_the_quantile_gets_its_part_of_the_privacy(tmp_path) -> None:
    summary = start_run(
        config(**PRIVATE | {"privacy.clipping": "adaptive", "privacy.quantile_noise": 2.0, "rounds": 1}), tmp_path
    ).summary["privacy"]
    updates = summary["update_noise_multiplier"]
    assert updates > 1.0
    # Both releases, scaled to a sensitivity of 1 each, are one Gaussian mechanism of the multiplier that was asked for.
    assert (updates**-2 + (2 * 2.0) ** -2) ** -0.5 == pytest.approx(1.0)


def test_a_step_is_made_although_nobody_came(make_federation) -> None:
    clip = ClipAndNoise(norm=0.3, noise_multiplier=1.0, clients=1)
    simulation = private(make_federation, CohortEngine, clip, Scaffold(), cohort=1, selector=Poisson())
    outcomes = list(simulate(replace(simulation, rounds=12)))
    empty = [place for place, outcome in enumerate(outcomes) if place and outcome.row["clients"] == 0]
    assert 1 <= len(empty) < 11
    for place, outcome in enumerate(outcomes):
        assert outcome.snapshot.clock.version == place
    for place in empty:
        before, after = (outcomes[p].snapshot.state for p in (place - 1, place))
        change = flat(after["params"]) - flat(before["params"])
        assert 0.05 < np.std(change) < 1.0  # 0.3, but of few numbers
        assert not torch.equal(after["control"]["1.bias"], before["control"]["1.bias"])
        assert "noise_to_signal" not in outcomes[place].row  # there was no signal


class Between(Transform):
    """Sees what other transforms of a run see."""

    write_only = ("at_clients", "at_the_server")

    def __init__(self) -> None:
        self.at_clients: list[float] = []
        self.at_the_server: list[float] = []

    def at_client(self, rows, kept, server):
        self.at_clients += norms(rows).tolist()
        return rows.update, kept

    def at_server(self, update, server, context):
        self.at_the_server.append(float(torch.linalg.vector_norm(update["params"]["1.weight"])))
        assert CLIPPING not in update
        return update, server


def test_clipping_is_last_at_the_client_and_noise_first_at_the_server(make_federation) -> None:
    clip, between = ClipAndNoise(norm=1e-3, noise_multiplier=1e6, clients=4), Between()
    simulation = replace(private(make_federation, CohortEngine, clip), transforms=(between, clip), rounds=2)
    list(simulate(simulation))
    assert max(between.at_clients) > 1e-3
    assert min(between.at_the_server) > 100  # noise of 250 in every number, and updates of at most 0.001


class Huge(Attack):
    forges_updates = True
    sees = "own"

    def forge(self, rows, seen):
        return {
            g: {name: 1e9 * torch.ones_like(t) for name, t in tensors.items()} for g, tensors in rows.update.items()
        }


@pytest.mark.parametrize("sees", ["own", "all"])
def test_corrupted_clients_are_clipped_as_well(make_federation, sees, monkeypatch) -> None:
    monkeypatch.setattr(Huge, "sees", sees)
    clip = ClipAndNoise(norm=0.3, noise_multiplier=HARDLY_ANY, clients=4)
    simulation = private(make_federation, CohortEngine, clip, attack=Huge(share=0.5))
    before, *later = (flat(outcome.snapshot.state["params"]) for outcome in simulate(simulation))
    for after in later:
        assert np.linalg.norm(after - before) <= 0.3 * (1 + 1e-9)
        before = after


def test_who_counts_how_much_does_not_depend_on_samples(make_federation) -> None:
    federation = make_federation(make_clients(), 3, name="weights")
    simulation = logistic_simulation(federation, FedAvg(), LOCAL, CohortEngine)
    watching = Watching(4)
    path = UpdatePath(simulation.algorithm, (ClipAndNoise(norm=1.0, noise_multiplier=1.0, clients=4),), watching)
    list(simulate(replace(simulation, transforms=path.transforms, aggregator=watching, rounds=1)))
    assert len(set(SIZES)) > 1
    assert all((rows.weights == 1).all() for rows in watching.arrived)
