"""Compressed downloads: what clients hold, what it costs them, in virtual time, resumed, and refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from logistic_clients import (
    COHORT,
    ENGINES,
    LOCAL,
    ROUNDS,
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

from fedarena.algorithms import Ditto, FedAvg, Scaffold
from fedarena.core.errors import BadInputError
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import ClockOptions, simulate
from fedarena.simulate.protocols import Asynchronous, Synchronous
from fedarena.train import CohortEngine, ReferenceEngine
from fedarena.transforms import QSGD, Half, LowRank, RandomK, Sign, Sketched, Ternary, TopK
from fedarena.transforms.aggregators import Mixing
from fedarena.transforms.downlink import Downlink
from fedarena.transforms.encodings import Values

NUMBERS = itertools.count()
COMPRESSORS = (
    *(TopK(share=0.2), RandomK(share=0.3), RandomK(share=0.3, error_feedback=True), QSGD(bits=2), Sign()),
    *(Ternary(), Half(), LowRank(rank=1), Sketched(share=0.3), Sketched(share=0.3, rows=2, error_feedback=False)),
)
PARAMETERS, WHOLE = 18, 18 * 8


def run(make_federation, engine_kind, download, algorithm=None, model="logistic_regression", **parts):
    federation = make_federation(make_clients(), 3, name=f"download {next(NUMBERS)}")
    simulation = logistic_simulation(federation, algorithm or FedAvg(), LOCAL, engine_kind, model=model)
    return list(simulate(replace(simulation, download=download, **parts)))


@ENGINES
def test_clients_begin_with_what_they_hold_and_the_server_sends_what_they_lack(make_federation, engine_kind) -> None:
    first, *rounds = run(make_federation, engine_kind, TopK(share=0.2))
    w = flat(first.snapshot.state["params"])
    held, last_seen, sizes = w, {}, [0]
    for (round, cohort), outcome in zip(cohorts(), rounds, strict=True):
        costs = {
            client: min(sum(sizes[last_seen[client] + 1 :]), WHOLE) if client in last_seen else WHOLE
            for client in cohort
        }
        found = dict(zip(outcome.jobs["index"].tolist(), outcome.jobs["bytes_down"].tolist(), strict=True))
        assert found == costs
        assert outcome.jobs["real_bytes_down"].tolist() == outcome.jobs["bytes_down"].tolist()
        assert outcome.row["bytes_down"] == outcome.row["real_bytes_down"] == sum(costs.values())
        last_seen |= dict.fromkeys(cohort, round - 1)
        counts = np.array([SIZES[c] for c in cohort], dtype=float)
        updates = np.array([local_sgd(held, c, round, plain, LOCAL)[0] - held for c in cohort])
        w = w + counts @ updates / counts.sum()
        difference = largest(w - held, 4)
        held = held + difference
        message = {"values": torch.from_numpy(difference)}
        sizes.append(len(Values(PARAMETERS, torch.float64).encode(message)) + 8)
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), w, atol=1e-10)
        np.testing.assert_allclose(flat(outcome.snapshot.download_state["held"]), held, atol=1e-10)
    assert len(rounds) == ROUNDS
    assert min(found.values()) < WHOLE  # or this test would show nothing
    assert np.abs(w - held).max() > 1e-3


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: type(c).__name__)
def test_what_clients_hold_comes_near_the_model_and_never_goes_away_from_it(compressor) -> None:
    generator = torch.Generator().manual_seed(0)
    params = {"w": torch.randn(30, 20, generator=generator), "b": torch.randn(20, generator=generator)}
    downlink = Downlink(FedAvg(), compressor, seed=3)
    kept = downlink.start({"params": params})
    assert all(torch.equal(kept["held"][name], p) for name, p in params.items())
    moved = {name: p + torch.randn(p.shape, generator=generator) for name, p in params.items()}
    distances = [distance(params, moved)]
    for version in range(1, 60):
        kept = downlink.advance({"params": moved}, kept, version)
        distances.append(distance(kept["held"], moved))
    assert all(later <= earlier + 1e-5 for earlier, later in itertools.pairwise(distances))
    assert distances[-1] < 0.2 * distances[0]
    assert len(downlink.sizes_so_far(kept)) == 60
    assert (np.diff(downlink.sizes_so_far(kept)) > 0).all()
    assert downlink.sizes_so_far(kept)[1] == pytest.approx(downlink.planned_bytes({"params": params}), rel=0.25)


def distance(one, other) -> float:
    return float(sum(((one[name] - t) ** 2).sum() for name, t in other.items()) ** 0.5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", [Scaffold, Ditto])
@pytest.mark.parametrize("compressor", [QSGD(bits=3), LowRank(rank=1), Sketched(share=0.5)])
def test_both_engines_agree(make_federation, algorithm, compressor) -> None:
    outcomes = [run(make_federation, kind, compressor, algorithm())[-1] for kind in (CohortEngine, ReferenceEngine)]
    one, other = (outcome.snapshot for outcome in outcomes)
    for groups, others in ((one.state, other.state), (one.download_state, other.download_state)):
        for group, tensors in groups.items():
            for name, t in tensors.items():
                torch.testing.assert_close(others[group][name], t, rtol=0, atol=1e-9)
    if algorithm is Ditto:
        np.testing.assert_allclose(*(outcome.personal_scores.means("loss") for outcome in outcomes), atol=1e-9)


def test_what_is_not_parameters_is_downloaded_as_it_is(make_federation) -> None:
    _, *rounds = run(make_federation, ReferenceEngine, Sign(), Scaffold())
    smallest = min(min(outcome.jobs["bytes_down"]) for outcome in rounds)
    assert WHOLE < smallest < 2 * WHOLE  # control variates are of the model's size


def test_downloads_enter_virtual_time(make_federation) -> None:
    parts = {"protocol": Synchronous(over_commit=1.0), "fleet": phones_of_different_speeds()}
    plainly, compressed = (run(make_federation, ReferenceEngine, download, **parts) for download in (Half(), Sign()))
    assert compressed[1].row["end_seconds"] == plainly[1].row["end_seconds"]  # everybody is new in the first round
    assert compressed[-1].row["end_seconds"] < plainly[-1].row["end_seconds"]
    for outcome in compressed[1:]:
        seconds = np.subtract(outcome.jobs["downloaded_seconds"], outcome.jobs["begin_seconds"])
        np.testing.assert_allclose(seconds, 8 * np.asarray(outcome.jobs["bytes_down"]) / 1e4)


def test_asynchronous_jobs_are_planned_before_differences_are_known(make_federation) -> None:
    """Versions that a round makes have the planned size in the plan; the tables have the real one beside it."""
    parts = {
        "protocol": Asynchronous(updates_per_round=4),
        "fleet": phones_of_different_speeds(),
        "aggregator": Mixing(),
    }
    first, *rounds = run(make_federation, ReferenceEngine, QSGD(bits=2), None, "mlp", cohort=3, rounds=12, **parts)
    whole = 8 * sum(p.numel() for p in first.snapshot.state["params"].values())
    sizes = np.diff(rounds[-1].snapshot.download_state["sizes"]["so_far"].numpy())
    last_seen: dict[int, int] = {}
    differs = False
    for outcome in rounds:
        jobs = outcome.jobs
        for client, version, planned, real in zip(
            *(np.asarray(jobs[name]).tolist() for name in ("index", "start_version", "bytes_down", "real_bytes_down")),
            strict=True,
        ):
            seen = last_seen.get(client)
            assert real == (whole if seen is None else min(whole, sizes[seen:version].sum()))
            differs |= planned != real
        last_seen |= dict(zip(jobs["index"].tolist(), jobs["start_version"].tolist(), strict=True))
        assert outcome.row["real_bytes_down"] == np.sum(jobs["real_bytes_down"])
    assert differs
    assert len(set(last_seen.values())) > 1


def test_who_leaves_while_downloading_still_holds_what_it_held(make_federation) -> None:
    parts = {"protocol": Synchronous(over_commit=1.5), "fleet": phones_of_different_speeds()}
    clock = ClockOptions(crash_rate=0.6)
    _, *rounds = run(make_federation, ReferenceEngine, Sign(), clock=clock, rounds=25, **parts)
    sizes = np.diff(rounds[-1].snapshot.download_state["sizes"]["so_far"].numpy())
    last_seen: dict[int, int] = {}
    incomplete = 0
    for outcome in rounds:
        jobs = outcome.jobs
        for client, version, downloaded, real in zip(
            *(jobs[name].tolist() for name in ("index", "start_version", "downloaded_seconds", "real_bytes_down")),
            strict=True,
        ):
            if not np.isfinite(downloaded):
                incomplete += client in last_seen
                assert np.isnan(real)
                continue
            seen = last_seen.get(client)
            assert real == (WHOLE if seen is None else min(WHOLE, sizes[seen:version].sum()))
            last_seen[client] = version
    assert incomplete > 0


def test_downloads_have_the_size_of_the_model_on_its_way(make_federation) -> None:
    found = []
    for model_bytes in (None, 10 * WHOLE):
        _, *rounds = run(make_federation, ReferenceEngine, Sign(), clock=ClockOptions(model_bytes=model_bytes))
        found.append(np.concatenate([outcome.jobs["bytes_down"] for outcome in rounds]))
    np.testing.assert_array_equal(found[1], 10 * found[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("download", "protocol"),
    [
        ({"name": "low_rank", "rank": 1}, "synchronous"),
        ("sign", "buffered"),
        ({"name": "random_k", "share": 0.1}, "buffered"),
    ],
)
def test_an_interrupted_run_ends_the_same(tmp_path: Path, download, protocol: str) -> None:
    settings = {
        "download": download,
        "transforms": ["qsgd"],
        "algorithm": "scaffold" if protocol == "synchronous" else "fedavg",
        "rounds": 12,
        "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]},
        "protocol": {"name": protocol, **({"buffer_size": 3} if protocol == "buffered" else {})},
        "engine": "reference",
    }
    start_run(config(**settings), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**settings), tmp_path, StopAfter(7, interrupt))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")
    jobs = pq.read_table(tmp_path / "small" / "jobs.parquet").to_pydict()
    late = [size for round, size in zip(jobs["round"], jobs["bytes_down"], strict=True) if round > 8]
    assert min(late) < max(late)  # some have been there before, some have not


def test_a_run_without_compressed_downloads_has_one_number_of_bytes(make_federation) -> None:
    federation = make_federation(make_clients(), 3, name=f"download {next(NUMBERS)}")
    _, *rounds = simulate(logistic_simulation(federation, FedAvg(), LOCAL, ReferenceEngine))
    assert all(outcome.row["bytes_down"] == COHORT * WHOLE for outcome in rounds)
    assert all(outcome.row["real_bytes_down"] is None for outcome in rounds)
    assert rounds[-1].snapshot.download_state == {}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"download": "qsdg"}, "There is no download called 'qsdg'; did you mean 'qsgd'"),
        ({"download": {"name": "top_k", "k": 651}}, "top_k.k is 651, but the model has only 650 parameters"),
        ({"download": {"name": "qsgd", "bits": 40}}, "qsgd.bits must be from 2 to 16"),
        ({"download": {"name": "half", "bit": 40}}, "has no option 'bit'"),
        ({"download": "sign", "training": "centralized", "cohort": 1, "algorithm": "fedavg"}, "downloads nothing"),
        ({"download": "clip"}, "There is no download called 'clip'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, settings, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(config(engine="reference", **settings), tmp_path)
    assert not list(tmp_path.iterdir())
