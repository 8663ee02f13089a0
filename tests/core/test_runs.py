"""Runs from start to finish: what they leave behind, what does not fit, how they compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from small_runs import config, content

from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, FederationWriter, TaskSpec
from fedarena.display import write_report
from fedarena.runs.config import resolve
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.storage.run_data import load_runs


def test_a_run_folder_is_complete(tmp_path: Path) -> None:
    run = start_run(config(), tmp_path)
    folder = tmp_path / "small"
    assert run.path == folder
    assert {p.name for p in folder.iterdir()} == {
        *("config.yaml", "environment.json", "rounds.parquet", "clients.parquet", "timings.parquet"),
        *("jobs.parquet", "summary.json", "manifest.json", "checkpoint", "log.txt"),
    }
    assert run.status == "finished"
    rounds = run.rounds.to_pylist()
    assert [row["round"] for row in rounds] == list(range(41))
    assert [row["round"] for row in rounds if row["accuracy"] is not None] == [0, 7, 14, 21, 28, 35, 40]
    weights = (64 * 10 + 10) * 4
    assert all(row["bytes_down"] == row["bytes_up"] == 4 * weights for row in rounds[1:])
    assert all(row["flops"] == 2 * 2 * 64 * 10 * row["samples"] for row in rounds[1:])
    assert all(row["clients"] == 4 for row in rounds[1:])
    assert rounds[-1]["train_loss"] < rounds[1]["train_loss"]
    assert run.summary["final"]["accuracy"] > 2 * run.summary["baseline"]["accuracy"]
    assert run.summary["totals"]["bytes_up"] == 40 * 4 * weights
    assert run.environment["seed"] == 0
    assert {"python", "torch", "numpy", "fedarena"} <= set(run.environment["versions"])
    assert run.config == yaml.safe_load((folder / "config.yaml").read_text())


def test_tables_agree_with_each_other(tmp_path: Path) -> None:
    run = start_run(config(), tmp_path)
    for row in run.rounds.to_pylist():
        clients = [c for c in run.clients.to_pylist() if c["round"] == row["round"]]
        if row["accuracy"] is None:
            assert clients == []
            continue
        samples = np.array([c["samples"] for c in clients])
        accuracy = np.array([c["accuracy"] for c in clients])
        assert len(clients) == row["eval_clients"]
        assert samples.sum() == row["eval_samples"]
        assert (samples * accuracy).sum() / samples.sum() == pytest.approx(row["accuracy"])
        assert accuracy.mean() == pytest.approx(row["accuracy_by_client"])
        assert np.percentile(accuracy, 10) == pytest.approx(row["accuracy_p10"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("training", ["natural", "iid"])
def test_the_model_is_scored_on_the_training_set_as_well(tmp_path: Path, training: str) -> None:
    """As a run says that is evaluated on the training split instead."""
    settings = {"rounds": 3, "training": training, "federation.split": "within_client"}
    both = start_run(config(**settings, **{"evaluation.training_set": True}), tmp_path / "both")
    other = start_run(config(**settings, **{"evaluation.part": "train"}), tmp_path / "other")
    for ours, theirs in zip(both.rounds.to_pylist(), other.rounds.to_pylist(), strict=True):
        for metric in ("loss", "accuracy"):
            assert ours[f"training_set_{metric}"] == theirs[metric]
            assert theirs[f"training_set_{metric}"] is None
    write_report([both], tmp_path / "report.html")
    assert "Loss on the training data over rounds" in (tmp_path / "report.html").read_text()
    write_report([other], tmp_path / "report.html")
    assert "Loss on the training data" not in (tmp_path / "report.html").read_text()


def test_the_baseline_is_what_counting_gives(tmp_path: Path) -> None:
    from fedarena.data import load_federation

    run = start_run(config(rounds=1), tmp_path)
    options = dict(run.config["federation"])
    federation = load_federation(options.pop("name"), options)
    everybody = federation.clients("all")
    train, test = (federation.samples(everybody, part).columns["y"] for part in ("train", "test"))
    most_frequent = np.bincount(train).argmax()
    assert run.summary["baseline"]["accuracy"] == pytest.approx((test == most_frequent).mean())


def test_same_seed_same_bits_and_another_seed_other_bits(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        start_run(config(), tmp_path / folder)
    start_run(config(seed=1), tmp_path / "c")
    first, second, other = (content(tmp_path / folder / "small") for folder in "abc")
    assert first == second
    assert first["tensors"] != other["tensors"]


def test_unnamed_runs_get_a_free_name(tmp_path: Path) -> None:
    first, second = (start_run(config(name=None, rounds=1), tmp_path) for _ in range(2))
    assert (first.path.name, second.path.name) == ("digits-fedyogi-seed0", "digits-fedyogi-seed0-2")


def test_evaluation_on_some_clients_only(tmp_path: Path) -> None:
    run = start_run(
        config(rounds=1).model_copy(update={"evaluation": config(**{"evaluation.max_clients": 3}).evaluation}), tmp_path
    )
    assert run.rounds["eval_clients"].to_pylist() == [3, 3]


# --- what does not fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cohort": 21}, "cohort is 21, but the federation 'digits' has only"),
        ({"model": "char_mlp"}, "The model 'char_mlp' needs a federation of text, but this federation has images"),
        ({"evaluation.part": "validation"}, "has no validation samples to evaluate on"),
        ({"engine.threads": 0}, "engine.threads must be from 1 to 1024, not 0"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path, settings, sentence: str) -> None:
    with pytest.raises(BadInputError) as caught:
        start_run(config(**settings), tmp_path / "runs")
    assert sentence in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_clients_without_samples_are_never_invited(tmp_path: Path, make_federation) -> None:
    generator = np.random.default_rng(0)
    sizes = [0, 1, 5, 0, 2]
    clients = {
        f"c{n}": (generator.normal(size=(k, 4)).astype(np.float32), np.arange(k) % 3) for n, k in enumerate(sizes)
    }
    federation = make_federation(clients, 3)
    heard: list[str] = []

    class Listener(Observer):
        def warned(self, message: str) -> None:
            heard.append(message)

    settings = {"name": "tiny", "federation": {"name": "store", "path": str(federation.path)}, "rounds": 5, "cohort": 3}
    run = start_run(resolve(settings), tmp_path, Listener())
    assert heard == ["2 of 5 clients have no training sample and are never invited"]
    assert run.status == "finished"
    assert run.rounds["samples"].to_pylist()[1:] == [8] * 5
    assert set(run.clients["client"].to_pylist()) == {"c1", "c2", "c4"}


def test_a_federation_without_any_sample_is_refused(tmp_path: Path, make_federation) -> None:
    empty = (np.zeros((0, 4), dtype=np.float32), np.zeros(0, dtype=np.int64))
    federation = make_federation({"nobody": empty}, 3)
    with pytest.raises(BadInputError, match="No client of the federation 'made' has a training sample"):
        start_run(resolve({"federation": {"name": "store", "path": str(federation.path)}, "cohort": 1}), tmp_path)


def test_padding_and_unknown_tokens_are_never_right(tmp_path: Path) -> None:
    columns = {"tokens": ColumnSpec(dtype="uint8", shape=(4,))}
    task = TaskSpec(kind="next_token", classes=5, padding=0, unknown=1)
    with FederationWriter(tmp_path / "store", name="text", task=task, columns=columns) as writer:
        mostly_unknown = np.array([[2, 1, 1, 3]] * 6, dtype=np.uint8)
        for client, tokens in {"speaks": mostly_unknown, "silent": np.array([[2, 0, 0, 0]], dtype=np.uint8)}.items():
            writer.add_client(client, train={"tokens": tokens}, test={"tokens": tokens})
    settings = {
        "federation": {"name": "store", "path": str(tmp_path / "store")},
        "cohort": 2,
        "rounds": 2,
        "evaluation": {"every": 1},
    }
    run = start_run(resolve(settings), tmp_path)
    assert run.summary["baseline"]["accuracy"] == pytest.approx(1 / 3)
    assert run.clients["client"].to_pylist() == ["speaks"] * 3
    assert np.isfinite(run.rounds["accuracy_by_client"].to_numpy()).all()


# --- comparing ------------------------------------------------------------------------------------------------------


def test_labels_name_what_differs(tmp_path: Path) -> None:
    variants = [("fedavg", 0.1, 0), ("fedavg", 0.1, 1), ("fedavg", 0.5, 0), ("fedprox", 0.1, 0)]
    for number, (algorithm, lr, seed) in enumerate(variants):
        start_run(config(name=f"run{number}", algorithm=algorithm, seed=seed, rounds=1, **{"local.lr": lr}), tmp_path)
    labels = [run.label for run in load_runs([tmp_path])]
    assert labels == ["fedavg lr=0.1", "fedavg lr=0.1", "fedavg lr=0.5", "fedprox"]
    assert [run.label for run in load_runs([tmp_path / "run2"])] == ["fedavg"]


def test_a_folder_of_suites_stands_for_all_runs_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    class StopAtStart(Observer):
        def started(self, run, folder, rounds_done) -> None:
            raise KeyboardInterrupt

    start_run(config(name="alone", rounds=1), tmp_path)
    start_run(config(name="member", rounds=1), tmp_path / "suite")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(name="stillborn", rounds=1), tmp_path, StopAtStart())
    left_out: list[str] = []
    assert sorted(run.name for run in load_runs([tmp_path], left_out.append)) == ["alone", "member"]
    assert left_out == [f"The run {tmp_path / 'stillborn'} has no finished round yet"]


def test_folders_that_are_not_runs(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is not a run folder and holds none"):
        load_runs([tmp_path])
    with pytest.raises(BadInputError, match="There is no run folder"):
        load_runs([tmp_path / "nothing"])
    with pytest.raises(BadInputError, match="is not a run folder"):
        resume_run(tmp_path)
