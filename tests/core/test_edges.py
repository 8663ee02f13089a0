"""Edge servers: sums of all edges are those of all clients, links take time, and edges may have rounds of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from logistic_clients import LOCAL, SIZES, cohorts, flat, local_sgd, plain
from small_runs import StopAfter, content
from test_transforms import ENGINES
from test_transforms import run as simulated

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, SourceSpec, TaskSpec
from fedarena.display.report.methods import methods_of
from fedarena.display.report.tables.saved import saved_table
from fedarena.runs.config import resolve
from fedarena.runs.identity import settings_fingerprint
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, resume_run
from fedarena.simulate.edges import ByChance, EdgeFacts
from fedarena.storage.run_data import load_run

PHONES = {"name": "uniform", "seconds_per_sample": 0.1, "download_bits_per_second": 1e6, "upload_bits_per_second": 1e5}
SMALL: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "iid", "clients": 12}},
    "model": "logistic_regression",
    "fleet": PHONES,
    "protocol": {"name": "synchronous", "over_commit": 1.0},
    "rounds": 2,
    "cohort": 6,
    "engine": {"name": "reference", "dtype": "float64"},
}
EDGES = {"name": "by_chance", "number": 3}


def run(folder: Path, name: str, **settings: Any) -> Any:
    return fedarena.run(merge(merge({}, SMALL), settings), name=name, runs_folder=folder, progress=False)


def three_edges(rounds: int) -> ByChance:
    edges = ByChance(number=3, rounds=rounds)
    edges.prepare(EdgeFacts(2, np.arange(len(SIZES)), lambda name, clients: clients))
    return edges


@pytest.mark.sampled(2)
@ENGINES
@pytest.mark.parametrize("rounds", [1, 3])
def test_edges_compute_what_the_paper_says(make_federation: Any, engine_kind: Any, rounds: int) -> None:
    """Every edge averages its clients so often; the server averages the edges, by how many samples they have."""
    edges = three_edges(rounds)
    first, *_, last = simulated(make_federation, engine_kind, [], edges=edges)
    w = flat(first.snapshot.state["params"])
    for round, cohort in cohorts():
        of_edges, samples = [], []
        for edge in range(3):
            own = [client for client in cohort if edges.edge_of(np.array([client]))[0] == edge]
            sizes = np.array([SIZES[client] for client in own], dtype=float)
            model = w
            for turn in range(rounds if own else 0):
                trained = [local_sgd(model, client, round + turn * 2**40, plain, LOCAL)[0] for client in own]
                model = sizes @ np.array(trained) / sizes.sum()
            of_edges.append(model)
            samples.append(sizes.sum())
        w = np.array(samples) @ np.array(of_edges) / sum(samples)
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-10)


def test_sums_of_edges_are_bit_for_bit_the_sum_of_all_and_take_their_time(tmp_path: Path) -> None:
    alone = run(tmp_path, "alone")
    linked = run(tmp_path, "edges", edges={**EDGES, "bits_per_second": 1e5, "seconds": 3.0})
    for name, p in alone.model().state_dict().items():
        assert torch.equal(linked.model().state_dict()[name], p), name
    model_bytes = 8 * (64 * 10 + 10)
    link = 3.0 + 8 * model_bytes / 1e5
    seconds = [np.array(result.rounds["end_seconds"].to_pylist()) for result in (alone, linked)]
    np.testing.assert_allclose(seconds[1] - seconds[0], [0, 2 * link, 4 * link])
    used, sent = (linked.rounds[name].to_pylist()[1:] for name in ("edges", "edge_bytes_up"))
    assert sent == [number * model_bytes for number in used]
    assert all(1 <= number <= 3 for number in used)
    assert "edges" not in alone.rounds.column_names


def test_rounds_of_edges_take_as_often_as_long(tmp_path: Path) -> None:
    once, twice = (
        run(tmp_path, f"{rounds}", edges={**EDGES, "rounds": rounds}, transforms=["half"]).rounds for rounds in (1, 2)
    )
    real = [np.array(rounds["real_bytes_up"].to_pylist()[1:]) for rounds in (once, twice)]
    np.testing.assert_allclose(real[1], 2 * real[0], rtol=0.1)  # zeros are not sent, of which there may be others
    for column in ("end_seconds", "bytes_up", "bytes_down", "steps", "flops"):
        np.testing.assert_allclose(twice[column].to_pylist()[1:], 2 * np.array(once[column].to_pylist()[1:]))


def test_two_rounds_of_one_edge_are_two_rounds(tmp_path: Path) -> None:
    everything = {"cohort": 12, "local": {"steps": 1, "batch_size": 1000, "lr": 1.0}}
    plain = run(tmp_path, "plain", **everything)
    one = run(tmp_path, "edge", edges={"name": "by_chance", "number": 1, "rounds": 2}, **everything, rounds=1)
    assert one.rounds["train_loss"].to_pylist()[1] == pytest.approx(np.mean(plain.rounds["train_loss"].to_pylist()[1:]))
    assert one.rounds["bytes_up"].to_pylist()[1] == sum(plain.rounds["bytes_up"].to_pylist()[1:])
    assert saved_table(methods_of([load_run(one.path)])) == []  # nothing is compressed


def test_what_clients_do_by_the_deadline_leaves_room_for_the_links_of_edges(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        "late begin",
        algorithm={"name": "fedprox", "partial_work": True},
        fleet={**PHONES, "seconds_per_sample": 1.0},
        protocol={"name": "deadline", "seconds": 60},
        local={"epochs": 1, "batch_size": 4},
        edges={**EDGES, "seconds": 20.0},
    )
    jobs = found.jobs.to_pandas()
    assert (jobs["share"] < 1).all()
    assert (jobs["outcome"] == "used").all()


def test_edges_for_an_attribute(tmp_path: Path) -> None:
    columns = {"x": ColumnSpec(dtype="float32", shape=(2,)), "y": ColumnSpec(dtype="int64")}
    task = TaskSpec(kind="classification", classes=2)
    path, random = tmp_path / "towns", np.random.default_rng(0)
    with FederationWriter(
        path, name="towns", task=task, columns=columns, source=SourceSpec(name="t"), attributes={"town": "string"}
    ) as writer:
        for client in range(6):
            samples = {"x": random.normal(size=(4, 2)).astype(np.float32), "y": np.arange(4) % 2}
            town = {"town": "near" if client < 4 else "far"}
            writer.add_client(f"{client}", train=samples, test=samples, attributes=town)
    federation = Federation.open(path)
    found = fedarena.run(
        *[{key: value for key, value in SMALL.items() if key != "federation"}],
        federation=federation,
        edges={"name": "by_attribute", "attribute": "town"},
        name="run",
        runs_folder=tmp_path,
        progress=False,
    )
    assert found.rounds["edges"].to_pylist()[1:] == [2, 2]
    with pytest.raises(BadInputError, match=r"edges.attribute is 'city', which clients .* have not; there are none"):
        run(tmp_path, "x", edges={"name": "by_attribute", "attribute": "city"})


def test_a_run_with_edges_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    settings = merge(merge({}, SMALL), {"edges": {**EDGES, "rounds": 2}, "rounds": 3})
    whole = resolve({**settings, "name": "whole"})
    Run.create(whole, tmp_path / "a", StopAfter(9, lambda: None)).advance().close()
    stopped = Run.create(whole, tmp_path / "b", StopAfter(9, lambda: None))
    stopped.advance(1)
    stopped.close()
    resume_run(tmp_path / "b" / "whole", StopAfter(9, lambda: None))
    assert content(tmp_path / "a" / "whole") == content(tmp_path / "b" / "whole")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"aggregator": "krum"}, "server gets sums of updates, and the aggregator krum needs every client's; choose"),
        ({"protocol": "buffered"}, "jobs of protocol=buffered go on when a round ends; choose another protocol"),
        ({"attack": "a_little_is_enough"}, "nobody sees the updates of all clients, which the attack"),
        ({"training": "iid"}, "edges=by_chance is for real clients, and training=iid has none"),
        ({"edges.rounds": 2, "algorithm": "scaffold"}, "edges.rounds is 2, but clients of scaffold keep or send more"),
        ({"edges.rounds": 2, "transforms": [{"name": "top_k", "error_feedback": True}]}, "a transform keeps something"),
        ({"edges.rounds": 2, "policy": "by_speed"}, "policy=by_speed decides about one job of a client"),
        ({"edges.rounds": 2, "download": "half"}, "download=half compresses what the server sends"),
        ({"edges.number": 13}, "edges.number is 13, but there are only 12 clients"),
        ({"edges.number": 0}, "edges.number must be at least 1, not 0"),
        ({"edges.rounds": 0}, "edges.rounds must be at least 1, not 0"),
        ({"edges.seconds": -1}, "edges.seconds must not be negative, but is -1"),
        ({"edges.bits_per_second": 0}, "edges.bits_per_second must be above 0, not 0"),
    ],
)
def test_what_does_not_fit_edges_is_refused(tmp_path: Path, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        run(tmp_path, "x", **merge({"edges": EDGES}, settings))


def test_runs_without_edges_are_the_same_runs_as_before_there_were_any() -> None:
    config = resolve(merge({}, SMALL))
    assert config.to_dict()["edges"] == {"name": "none"}
    without = {key: value for key, value in config.to_dict().items() if key != "edges"}
    assert settings_fingerprint(config) == settings_fingerprint(resolve(without))
