"""Metrics by attributes of clients."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena import api
from fedarena.core.errors import BadInputError
from fedarena.metrics import KeptScores, make_metric, stratify
from fedarena.metrics.metric import Loss

CLIENTS = st.lists(
    st.tuples(st.sampled_from("abcde"), st.integers(1, 50), st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=40
)


@given(CLIENTS, st.integers(1, 6))
def test_strata_are_summaries_of_the_clients_in_them(clients: list, most: int) -> None:
    values = [client[0] for client in clients]
    samples, predictions = (np.array([client[i] for client in clients], dtype=np.int64) for i in (1, 2))
    accuracy = np.array([client[3] for client in clients])
    kept = KeptScores(make_metric("accuracy"), accuracy, predictions)
    rows = stratify(values, samples, {"accuracy": kept}, most)

    totals = {value: sum(c[1] for c in clients if c[0] == value) for value in set(values)}
    ranked = sorted(totals, key=lambda value: (-totals[value], value))
    expected = {value: [value] for value in ranked[:most]}
    if len(ranked) > most:
        expected[None] = ranked[most:]
    assert [row["value"] for row in rows] == list(expected)
    for row, inside in zip(rows, expected.values(), strict=True):
        members = [client for client in clients if client[0] in inside]
        assert row["clients"] == len(members)
        assert row["samples"] == sum(client[1] for client in members)
        scored = [client for client in members if client[2] > 0]
        if not scored:
            assert "accuracy" not in row
            continue
        right, predicted = (sum(c[3] * c[2] for c in scored), sum(c[2] for c in scored))
        each = [client[3] for client in scored]
        assert row["accuracy"] == pytest.approx(right / predicted)
        assert row["accuracy_by_client"] == pytest.approx(np.mean(each))
        assert row["accuracy_p90"] == pytest.approx(np.percentile(each, 90))
        assert row["accuracy_worst_decile"] == pytest.approx(np.mean(sorted(each)[: max(1, round(len(each) / 10))]))


def test_the_worst_losses_are_the_largest() -> None:
    (row,) = stratify(
        ["a", "a"], np.array([1, 1]), {"loss": KeptScores(Loss(), np.array([1.0, 3.0]), np.array([1, 1]))}
    )
    assert row["loss_worst_decile"] == 3.0


def test_values_keep_their_type() -> None:
    rows = stratify([2, 10, 10], np.array([1, 1, 1]), {})
    assert [row["value"] for row in rows] == [10, 2]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> api.Result:
    """Clients of three clusters with personal models, evaluated on their test samples."""
    return api.run(
        federation={"name": "synthetic", "clients": 30, "cluster_probabilities": [0.5, 0.3, 0.2]},
        algorithm="ditto",
        rounds=2,
        cohort=5,
        evaluation={"every": 1},
        runs_folder=tmp_path_factory.mktemp("runs"),
        progress=False,
    )


def test_a_run_tells_how_groups_of_its_clients_fare(result: api.Result) -> None:
    found = result.by_attribute("cluster").to_pylist()
    clusters = dict(zip(*(result.attributes[name].to_pylist() for name in ("client", "cluster")), strict=True))
    last = [row for row in result.clients.to_pylist() if row["round"] == 2]
    assert {row["value"] for row in found} == set(clusters.values()) == {0, 1, 2}
    for row in found:
        members = [client for client in last if clusters[client["client"]] == row["value"]]
        right = sum(client["accuracy"] * client["predictions"] for client in members)
        assert row["accuracy"] == pytest.approx(right / sum(client["predictions"] for client in members))
        assert row["personal_accuracy_by_client"] == pytest.approx(
            np.mean([client["personal_accuracy"] for client in members if client["personal_accuracy"] is not None])
        )
    total = sum(row["accuracy"] * row["samples"] for row in found) / sum(row["samples"] for row in found)
    assert total == pytest.approx(result.summary["final"]["accuracy"])
    assert result.summary["strata"]["cluster"] == found
    assert result.by_attribute("cluster", round=0)["accuracy"] != result.by_attribute("cluster")["accuracy"]


def test_a_loss_in_which_classes_weigh_differently_is_that_of_all_samples_of_a_group(tmp_path) -> None:
    found = api.run(
        federation={"name": "synthetic", "clients": 12, "classes": 3, "cluster_probabilities": [0.6, 0.4]},
        task={"name": "classification", "class_weights": [0.1, 1.0, 5.0]},
        rounds=1,
        cohort=4,
        runs_folder=tmp_path,
        progress=False,
    )
    clusters = dict(zip(*(found.attributes[name].to_pylist() for name in ("client", "cluster")), strict=True))
    last = [row for row in found.clients.to_pylist() if row["round"] == 1]
    told = found.by_attribute("cluster").to_pylist()
    assert told == found.summary["strata"]["cluster"]
    for row in told:
        members = [client for client in last if clusters[client["client"]] == row["value"]]
        sums, weights = (sum(client[f"loss.{part}"] for client in members) for part in ("sum", "weight"))
        assert row["loss"] == pytest.approx(sums / weights)


def test_who_has_only_samples_that_weigh_nothing_has_no_loss_and_is_no_divergence(tmp_path) -> None:
    found = api.run(
        federation={"name": "digits", "partition": "natural", "split": "within_client"},  # a class for every client
        task={"name": "classification", "class_weights": [0.0] + 9 * [1.0]},
        model="linear",
        rounds=1,
        cohort=4,
        runs_folder=tmp_path,
        progress=False,
    )
    first, *others = (row for row in found.clients.to_pylist() if row["round"] == 1)
    assert first["loss"] is None
    assert first["accuracy"] is not None
    mean = sum(row["loss"] * row["samples"] for row in others) / sum(row["samples"] for row in others)
    assert found.summary["final"]["loss"] == pytest.approx(mean)
    assert found.summary["final"]["loss_by_client"] == pytest.approx(np.mean([row["loss"] for row in others]))


def test_the_report_shows_groups_of_clients(result: api.Result) -> None:
    page = (result.path / "report.html").read_text()
    assert "Groups of clients" in page
    assert "Accuracy by cluster" in page


def test_unknown_attributes_and_rounds_are_refused(result: api.Result) -> None:
    with pytest.raises(BadInputError, match=r"Nothing called 'clustre' is known .* did you mean 'cluster'"):
        result.by_attribute("clustre")
    with pytest.raises(BadInputError, match="has not evaluated any client in round 7"):
        result.by_attribute("cluster", round=7)


def test_a_run_without_attributes_has_no_groups(tmp_path) -> None:
    result = api.run(federation="digits", rounds=1, cohort=2, runs_folder=tmp_path, progress=False)
    assert result.attributes is None
    assert "strata" not in result.summary
    assert "Groups of clients" not in (result.path / "report.html").read_text()
    with pytest.raises(BadInputError, match="Nothing called 'play' is known"):
        result.by_attribute("play")


def test_the_column_of_predictions_counts_characters(tmp_path) -> None:
    result = api.run(
        federation="chitchat", rounds=1, cohort=2, evaluation={"max_clients": 5}, runs_folder=tmp_path, progress=False
    )
    clients = result.clients.to_pandas()
    last = clients[clients["round"] == 1]
    assert (last["predictions"] > last["samples"]).all()
    weighted = (last["accuracy"] * last["predictions"]).sum() / last["predictions"].sum()
    assert weighted == pytest.approx(result.summary["final"]["accuracy"])
    assert isinstance(result.clients, pa.Table)


def test_many_numbers_and_groups_without_a_score_make_a_table(result: api.Result) -> None:
    """The largest group has no personal score, and there are more values than are told apart."""
    clients = pa.table(
        {
            "round": [1] * 150,
            "client": [f"c{i}" for i in range(150)],
            "samples": [5] * 150,
            "predictions": [40 + i for i in range(150)],
            "loss": [1.0] * 150,
            "accuracy": [i / 150 for i in range(150)],
            **{f"personal_{name}": [None, None] + [3] * 148 for name in ("samples", "predictions")},
            **{f"personal_{name}": [None, None] + [0.5] * 148 for name in ("loss", "accuracy")},
        }
    )
    attributes = pa.table({"client": clients["client"], "age": [0, 0, *range(2, 150)], "height": [np.nan] * 150})
    many = api.Result(**{**vars(result), "clients": clients, "attributes": attributes})
    table = many.by_attribute("age").to_pylist()
    assert [row["value"] for row in table[:2]] == [0, 10]
    assert table[-1]["value"] is None
    assert table[-1]["clients"] == 150 - 2 - 99
    assert table[0]["personal_accuracy"] is None
    assert table[1]["personal_accuracy"] == 0.5
    assert table[0]["accuracy"] == pytest.approx((0 * 40 + 41 / 150) / 81)  # by predictions, not by samples
    assert many.by_attribute("height")["value"].to_pylist() == ["unknown"]
