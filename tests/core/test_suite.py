"""What the settings of a suite's runs come to."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedarena.core.errors import BadInputError
from fedarena.core.files import replacing
from fedarena.runs.config import resolve
from fedarena.runs.observer import Observer
from fedarena.runs.run import start_run
from fedarena.runs.suite import check_unchanged, read_suite
from fedarena.storage.run_data import load_runs
from suite_runs import run_suite

SUITE = """
name: small
base: {federation: {name: digits, partition: {name: iid, clients: 20}}, local: {epochs: 2}}
matrix:
  local.epochs: [1, 5]
  method:
    plain: {local.lr: 0.1}
    large: {local.lr: 0.5, federation.train_fraction: 0.5}
"""


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return str(path)


def values(suite: str, part: str, option: str, **overrides: Any) -> dict[str, Any]:
    found = read_suite(suite, {key.replace("__", "."): value for key, value in overrides.items()}).runs
    return {name: _get(getattr(config, part), option) for name, config in found.items()}


def _get(part: Any, option: str) -> Any:
    return part[option] if isinstance(part, dict) else getattr(part, option)


def test_an_axis_can_be_given_other_values(suite: str) -> None:
    assert set(values(suite, "local", "epochs").values()) == {1, 5}
    one = values(suite, "local", "epochs", local__epochs=3)
    assert one == {"epochs3-plain-seed0": 3, "epochs3-large-seed0": 3}
    three = values(suite, "local", "epochs", local__epochs=[2, 3, 4])
    assert {name.partition("-")[0]: value for name, value in three.items()} == {
        "epochs2": 2,
        "epochs3": 3,
        "epochs4": 4,
    }


def test_settings_override_variants(suite: str) -> None:
    assert set(values(suite, "local", "lr", local__lr=0.7).values()) == {0.7}


def test_another_federation_keeps_what_variants_say_of_it(suite: str) -> None:
    fractions = values(suite, "federation", "train_fraction", federation="synthetic", federation__clients=30)
    assert fractions["epochs1-large-seed0"] == 0.5
    assert fractions["epochs1-plain-seed0"] != 0.5
    assert set(values(suite, "federation", "name", federation="synthetic").values()) == {"synthetic"}
    assert set(values(suite, "federation", "clients", federation="synthetic", federation__clients=30).values()) == {30}


@pytest.mark.parametrize("options_first", [True, False])
def test_an_axis_keeps_its_options_when_another_axis_names_the_part(tmp_path: Path, options_first: bool) -> None:
    axes = ["  algorithm.server_lr: [0.25, 0.5]\n", "  by: {avg: {algorithm: fedavg}, yogi: {algorithm: fedyogi}}\n"]
    path = tmp_path / "rates.yaml"
    path.write_text(
        "base: {federation: digits, algorithm: fedavg}\nmatrix:\n" + "".join(axes if options_first else axes[::-1])
    )
    found = {(c.algorithm["name"], c.algorithm["server_lr"]) for c in read_suite(str(path), {}).runs.values()}
    assert found == {("fedavg", 0.25), ("fedavg", 0.5), ("fedyogi", 0.25), ("fedyogi", 0.5)}


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("{local.lr: 0.3}", "local.lr is set twice, to 0.1 and to 0.3"),
        ("{local: {lr: 0.3}}", "local.lr is set twice, to 0.1 and to 0.3"),
        ("{algorithm: fedprox}", "algorithm is set twice, to 'fedavg' and to 'fedprox'"),
        ("{algorithm.name: fedprox}", "algorithm is set twice, to 'fedavg' and to 'fedprox'"),
    ],
)
def test_two_axes_cannot_set_the_same_to_different_values(tmp_path: Path, method: str, key: str) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(f"matrix:\n  local.lr: [0.1]\n  algorithm: [fedavg]\n  method: {{a: {method}}}")
    with pytest.raises(BadInputError) as caught:
        read_suite(str(path), {})
    assert "twice.yaml: matrix, for the run 'lr0.1-fedavg-a-seed0'" in str(caught.value)
    assert key in str(caught.value)


def test_two_axes_may_set_the_same_to_the_same_value(tmp_path: Path) -> None:
    path = tmp_path / "same.yaml"
    path.write_text("matrix:\n  algorithm: [fedprox]\n  method: {a: {algorithm: {name: fedprox, mu: 0.5}}}")
    (config,) = read_suite(str(path), {}).runs.values()
    assert config.algorithm["mu"] == 0.5


@pytest.mark.parametrize(
    ("matrix", "overrides", "sentence"),
    [
        ("{local.steps: [3, 4]}", {"local.epochs": 2}, "'steps3-seed0' is called by its local.steps, 3"),
        ("{local: [{lr: 0.1}, {lr: 0.2}]}", {"local.lr": 0.7}, "'lr0.1-seed0' is called by its local.lr, 0.1"),
        ("{local.lr: [0.1, 0.2]}", {"local": {"lr": 0.7}}, "'lr0.1-seed0' is called by its local.lr, 0.1"),
        (
            "{method: {a: {algorithm: fedavg}, b: {algorithm: fedprox, algorithm.mu: 1.0}}}",
            {"algorithm": "fedyogi"},
            "'a-seed0' and 'b-seed0' would be the same run",
        ),
    ],
)
def test_settings_do_not_replace_what_tells_runs_apart(
    tmp_path: Path, matrix: str, overrides: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "apart.yaml"
    path.write_text(f"base: {{federation: digits}}\nmatrix: {matrix}\n")
    with pytest.raises(BadInputError, match=sentence):
        read_suite(str(path), overrides)


def test_settings_that_are_nested_override_variants_that_are_dotted(tmp_path: Path) -> None:
    path = tmp_path / "nested.yaml"
    path.write_text("base: {federation: digits}\nmatrix: {m: {a: {local.lr: 0.3}, b: {local.steps: 3}}}\n")
    suite = read_suite(str(path), {"local": {"lr": 0.7}})
    assert [config.local.lr for config in suite.runs.values()] == [0.7, 0.7]


def test_a_full_disk_is_told_of_the_file_that_was_wanted(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"report\.html") as raised, replacing(tmp_path / "report.html"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.filename == str(tmp_path / "report.html")
    with (
        pytest.raises(FileNotFoundError, match=r"nowhere/report\.html'") as raised,
        replacing(tmp_path / "nowhere" / "report.html") as temporary,
    ):
        temporary.write_text("page")
    assert raised.value.filename == str(tmp_path / "nowhere" / "report.html")


BILLION = "matrix: {" + ", ".join(f"k{axis}: {list(range(10))}" for axis in range(9)) + "}"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (BILLION, "bad.yaml: the matrix and the seeds make 1,000,000,000 runs, more than 10,000"),
        (f"seeds: {list(range(10_001))}", "bad.yaml: the matrix and the seeds make 10,001 runs"),
        ("seeds: 3", "seeds must be a list of different numbers such as [0, 1, 2], not 3"),
        ("seeds: [0, true]", "seeds must be a list of different numbers"),
        ("seeds: [0, 0]", "seeds must be a list of different numbers"),
        ("matrix: [1]", "matrix must hold settings, not [1]"),
        ("matrix: {rounds: 3}", "matrix.rounds must be a list of values or labelled variants, not 3"),
        ("matrix: {rounds: []}", "matrix.rounds must be a list of values"),
        ("matrix: {method: {a: 3}}", "method.a must hold settings, not 3"),
        ("base: [1]", "base must hold settings, not [1]"),
        ("name: a/b", "name must be 1 to 100 printable characters"),
        ("bas: {}", "a suite has no key 'bas'; did you mean 'base'?"),
        ("matrix: {rounds: [1]}\nmatrix: {rounds: [2]}", "line 2: the key 'matrix' is there already, in line 1"),
    ],
    ids=lambda value: value[:24],
)
def test_bad_suites_get_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(BadInputError) as caught:
        read_suite(str(path), {})
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 250


def test_runs_are_labelled_as_their_author_calls_them(suite: str, tmp_path: Path) -> None:
    assert {name: config.label for name, config in read_suite(suite, {}).runs.items()} == {
        "epochs1-plain-seed0": "epochs=1 plain",
        "epochs1-large-seed0": "epochs=1 large",
        "epochs5-plain-seed0": "epochs=5 plain",
        "epochs5-large-seed0": "epochs=5 large",
    }
    path = tmp_path / "free.yaml"
    path.write_text(
        "base: {federation: digits}\nmatrix: {method: {'FedAvg (μ = 0)': {algorithm: fedavg}}}\nseeds: [0, 1]"
    )
    free = read_suite(str(path), {}).runs
    assert {name: config.label for name, config in free.items()} == {
        "FedAvg_μ_0_-seed0": "FedAvg (μ = 0)",
        "FedAvg_μ_0_-seed1": "FedAvg (μ = 0)",
    }


def test_bare_values_are_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("base: {federation: digits}\nmatrix: {local.lr: [0.1, 0.5]}")
    assert {config.label for config in read_suite(str(path), {}).runs.values()} == {None}


@pytest.mark.parametrize("label", ["", " ", "two\nlines", 3, "x" * 101])
def test_labels_are_printable_text(suite: str, label: Any) -> None:
    with pytest.raises(BadInputError, match="label must be 1 to 100 printable characters"):
        resolve({"label": label})
    with pytest.raises(BadInputError, match="label cannot be set for the runs of a suite"):
        read_suite(suite, {"label": "mine"})


def test_a_label_is_no_reason_to_refuse_runs_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        "name: s\nbase: {federation: digits, rounds: 1, cohort: 2}\nmatrix: {method: {a: {algorithm: fedavg}}}"
    )
    suite = read_suite(str(path), {})
    run_suite(suite, tmp_path, Observer())
    renamed = {name: config.model_copy(update={"label": "b"}) for name, config in suite.runs.items()}
    assert run_suite(replace(suite, runs=renamed), tmp_path, Observer()) == []
    (run,) = load_runs([tmp_path / "s"])
    assert run.label == "a"


def test_private_runs_are_kept_whose_noise_was_solved_for(tmp_path: Path) -> None:
    path = tmp_path / "private.yaml"
    path.write_text(
        "base: {federation: {name: digits, partition: {name: iid, clients: 20}}, rounds: 1, cohort: 4,\n"
        "  engine: reference, privacy: {name: gaussian, epsilon: 2.0}, selector: poisson}\nseeds: [0]\n"
    )
    (run,) = read_suite(str(path), {}).runs.items()
    made = start_run(run[1], tmp_path)
    assert made.config["privacy"]["noise_multiplier"] > 0
    check_unchanged(made.path, run[1])
    other = read_suite(str(path), {"privacy.epsilon": 3.0}).runs[run[0]]
    with pytest.raises(BadInputError, match=r"holds a run with privacy\.epsilon = 2\.0 instead of 3\.0"):
        check_unchanged(made.path, other)


SMALL = "federation: {name: digits, partition: {name: iid, clients: 6}}, rounds: 1, engine: reference"
PRIVATE = "selector: poisson, cohort: 2, privacy: {name: gaussian, noise_multiplier: 1.0}"
SECURE = "algorithm: fedavg, cohort: 3, secure_aggregation: bonawitz"


@pytest.mark.parametrize(
    ("base", "given", "told"),
    [
        ("algorithm: fedavg", {"cohort": 2}, "cohort = 2 instead of 6"),
        ("cohort: 2", {"model": "mlp"}, "model.name = 'mlp' instead of"),
        ("cohort: 2", {"task": "classification", "task.metrics": ["macro_f1"]}, "task.metrics"),
        (PRIVATE, {"privacy.delta": 0.001}, "privacy.delta = 0.001 instead of"),
        (SECURE, {"secure_aggregation.largest_weight": 2000}, "secure_aggregation.largest_weight = 2000"),
    ],
)
def test_a_finished_run_for_which_more_was_set_is_not_taken_for_one_of_the_suite(
    tmp_path: Path, base: str, given: dict[str, Any], told: str
) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(f"base: {{{SMALL}, {base}}}")
    run_suite(read_suite(str(path), given), tmp_path / "set", Observer())
    with pytest.raises(BadInputError) as caught:
        run_suite(read_suite(str(path), {}), tmp_path / "set", Observer())
    assert f"holds a run with {told}" in str(caught.value)
    run_suite(read_suite(str(path), {}), tmp_path / "open", Observer())
    assert run_suite(read_suite(str(path), {}), tmp_path / "open", Observer()) == []
