"""The catalogue, and problems whose answers come from training."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_problem import CONFIGURATION, SETTINGS
from typer.testing import CliRunner

import fedarena
import warm_processes
from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.sealed_json import CHECKSUM_KEY, checksum_of
from fedarena.hpo import Fidelity, Space
from fedarena.hpo.problems import declared_names, find_declared
from fedarena.hpo.problems.making import declare
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.problems.raw import RawProblem
from fedarena.hpo.scores import best_so_far, info_of
from fedarena.runs import run as run_module
from fedarena.runs.config import read_settings, resolve
from fedarena.runs.merging import merge

OPENML = Path(__file__).parents[3] / "shared" / "data" / "tabular" / "openml"


def raw(folder: Path, **options: Any) -> RawProblem:
    made = fedarena.hpo.problem(SETTINGS, "raw", runs_folder=folder, **options)
    assert isinstance(made, RawProblem)
    return made


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds that are played, one after the other."""
    rounds: list[int] = []
    record = run_module.Run._record

    def noting(self: Any, outcome: Any) -> None:
        rounds.append(outcome.snapshot.round)
        record(self, outcome)

    monkeypatch.setattr(run_module.Run, "_record", noting)
    return rounds


def test_table_1_is_complete() -> None:
    """Model, data, algorithms, and the number of configurations that Table 8's bins make."""
    sizes = {name: math.prod(len(one.grid()) for one in find_declared(name).space) for name in declared_names()}
    cnn, bert, gnn, lr, mlp = (
        3 * 4 * 2 * 4 * 10,
        5 * 4 * 2 * 4 * 10,
        4 * 2 * 8 * 10,
        7 * 4 * 4 * 6,
        7 * 4 * 4 * 6 * 3 * 7,
    )
    tables = ("31", "53", "3917", "10101", "146818", "146821", "146822")
    expected = {f"cnn@{data}": cnn for data in ("femnist", "cifar10", "mnist")}
    expected |= {f"bert@{data}": bert for data in ("sst2", "cola")}
    expected |= {f"gnn@{data}": gnn for data in ("cora", "citeseer", "pubmed")}
    expected |= {f"lr@{data}": lr for data in tables} | {f"mlp@{data}": mlp for data in tables}
    expected |= {"lr@twitter": 4 * 4 * 6, "mf@netflix": 7 * 4 * 6, "mf@movielens": 7 * 4 * 6}
    expected |= {f"{name}-fedopt": 6 * size for name, size in expected.items()}
    expected |= {f"gnn@{data}-fedprox": 3 * gnn for data in ("cora", "citeseer", "pubmed")}
    expected |= {"hetero": 2 * 2, "hetero@stand_in": 2 * 2}
    assert sizes == expected
    budgets = {
        name: find_declared(name).budget_s for name in ("cnn@femnist", "gnn@cora", "lr@31", "mlp@31", "lr@twitter")
    }
    assert list(budgets.values()) == [20 * 86_400, 86_400, 21_600, 43_200, 86_400]
    assert all("seed" not in find_declared(name).space.names for name in declared_names())


@pytest.mark.parametrize("name", declared_names())
def test_what_is_declared_is_a_configuration_of_a_run(name: str) -> None:
    declared = find_declared(name)
    settings = declare(name).settings
    for configuration in (
        declared.space.at([0.0] * len(declared.space)),
        declared.space.at([1.0] * len(declared.space)),
    ):
        config = resolve(merge(settings, configuration))
        assert config.local.lr == configuration["local.lr"]


def test_more_rounds_go_on_where_training_was(tmp_path: Path, played: list[int]) -> None:
    asked = raw(tmp_path)
    first = asked.query(CONFIGURATION, Fidelity(2, 0.6), seed=1)
    again = asked.query(CONFIGURATION, Fidelity(2, 0.6), seed=1)
    longer = asked.query(CONFIGURATION, Fidelity(5, 0.6), seed=1)
    assert played == [0, 1, 2, 3, 4, 5]
    assert again.metrics == first.metrics
    asked.pause()
    other = raw(tmp_path)  # as another process would
    assert (
        other.query(CONFIGURATION, Fidelity(4, 0.6), seed=1).metrics
        == asked.query(CONFIGURATION, Fidelity(4, 0.6), seed=1).metrics
    )
    other.query(CONFIGURATION, Fidelity(9, 0.6), seed=1)
    assert played == list(range(10))
    at_once = raw(tmp_path / "once")
    assert at_once.query(CONFIGURATION, Fidelity(5, 0.6), seed=1).metrics == longer.metrics
    assert (
        at_once.query(CONFIGURATION, Fidelity(9, 0.6), seed=1).curve.metrics["test_loss"].tolist()
        == other.query(CONFIGURATION, Fidelity(9, 0.6), seed=1).curve.metrics["test_loss"].tolist()
    )


def test_another_seed_rate_or_configuration_is_another_course(tmp_path: Path, played: list[int]) -> None:
    asked = raw(tmp_path)
    results = [
        asked.query(CONFIGURATION, Fidelity(1, 0.6), seed=0),
        asked.query(CONFIGURATION, Fidelity(1, 0.6), seed=1),
        asked.query(CONFIGURATION, Fidelity(1, 1.0), seed=0),
        asked.query(CONFIGURATION | {"local.lr": 0.5}, Fidelity(1, 0.6), seed=0),
    ]
    assert len({result.value for result in results}) == 4
    assert played == [0, 1] * 4
    assert results[0].cost_s < results[2].cost_s  # of more clients, the slowest is slower


@pytest.mark.slow
def test_more_courses_than_stay_open(tmp_path: Path, played: list[int]) -> None:
    asked = raw(tmp_path)
    for rounds in (1, 2):
        for lr in (0.01, 0.02, 0.03, 0.04, 0.05):
            asked.query(CONFIGURATION | {"local.lr": lr}, Fidelity(rounds))
    assert played == [0, 1] * 5 + [2] * 5


def test_a_longer_problem_goes_on_with_the_courses_of_a_shorter_one(tmp_path: Path, played: list[int]) -> None:
    raw(tmp_path, rounds=2).query(CONFIGURATION)
    raw(tmp_path, rounds=4).query(CONFIGURATION)
    raw(tmp_path, rounds=3).query(CONFIGURATION)
    assert played == [0, 1, 2, 3, 4]


def test_scores_are_those_of_a_plain_run(tmp_path: Path) -> None:
    """Validation, test and training scores by runs that evaluate one part each; the best round by validation loss."""
    restless = CONFIGURATION | {"local.lr": 1.0, "local.batch_size": 4}
    result = raw(tmp_path).query(restless, Fidelity(9, 0.6), seed=3)
    settings = {key: value for key, value in SETTINGS.items() if key != "search"} | restless
    settings |= {"cohort": 3, "seed": 3, "evaluation.every": 1}
    scores: dict[str, np.ndarray] = {}
    for part in ("train", "validation", "test"):
        run = fedarena.open(
            settings | {"evaluation.part": part, "name": part}, runs_folder=tmp_path / "plain"
        ).advance()
        rounds = run.rounds.to_pandas()[1:]
        scores |= {f"{part}_{metric}": rounds[metric].to_numpy() for metric in ("loss", "accuracy", "macro_f1")}
        if part == "validation":
            scores["validation_accuracy_worst_decile"] = rounds["accuracy_worst_decile"].to_numpy()
            clients = run.result().clients.to_pandas()
            scores["validation_accuracy_variance"] = clients.groupby("round")["accuracy"].var(ddof=0).to_numpy()[1:]
    best = np.argmin(scores["validation_loss"])
    assert (np.diff(scores["validation_loss"]) > 0).any()  # else the best round would be the last one always
    assert {name: result.metrics[name] for name in scores} == pytest.approx(
        {name: values[best] for name, values in scores.items()}, rel=1e-12
    )
    assert result.curve is not None
    running = [scores["test_loss"][np.argmin(scores["validation_loss"][: round + 1])] for round in range(9)]
    assert result.curve.metrics["test_loss"] == pytest.approx(running, rel=1e-12)
    assert result.curve.cost_s == pytest.approx(result.cost_s / 9 * np.arange(1, 10))


def query_slowly(folder: Path) -> None:
    raw(folder).query(CONFIGURATION, Fidelity(9, 1.0), seed=0)


@pytest.mark.slow
def test_a_process_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    lines = lambda: [path.read_text().count("\n") for path in tmp_path.glob("killed/*.jsonl")]  # noqa: E731
    process = warm_processes.CONTEXT.Process(target=query_slowly, args=(tmp_path / "killed",))
    process.start()
    while process.is_alive() and not (lines() and lines()[0] >= 3):
        time.sleep(0.005)
    process.kill()
    process.join()
    found = raw(tmp_path / "killed").query(CONFIGURATION, Fidelity(9, 1.0), seed=0)
    expected = raw(tmp_path / "whole").query(CONFIGURATION, Fidelity(9, 1.0), seed=0)
    assert found.metrics == expected.metrics
    assert found.curve.metrics["train_loss"].tolist() == expected.curve.metrics["train_loss"].tolist()


def test_a_line_that_was_lost_with_a_process_is_written_again(tmp_path: Path) -> None:
    """The round of the last commit may have no scores; one that was half written does not count."""
    asked = raw(tmp_path)
    expected = asked.query(CONFIGURATION, Fidelity(3)).metrics
    asked.pause()
    (path,) = tmp_path.glob("*.scores.jsonl")
    whole = path.read_text()
    *lines, last = whole.splitlines()
    path.write_text("\n".join([*lines, last[:20]]))
    other = raw(tmp_path)
    other.course(CONFIGURATION, 1.0, 0)._open()
    assert json.loads(path.read_text().splitlines()[-1]) == json.loads(last)
    assert other.query(CONFIGURATION, Fidelity(3)).metrics == expected


def test_scores_that_are_damaged_or_gone_are_refused_by_name(tmp_path: Path) -> None:
    asked = raw(tmp_path)
    expected = asked.query(CONFIGURATION, Fidelity(4))
    asked.pause()
    (path,) = tmp_path.glob("*.scores.jsonl")
    whole = path.read_bytes()
    _, *lines = whole.splitlines()

    def ask(*changed: bytes) -> Any:
        path.write_bytes(b"\n" + b"\n".join(changed))
        asked.pause()
        return asked.query(CONFIGURATION, Fidelity(4))

    second = json.loads(lines[1])
    digit = lines[1].replace(b'"test_loss": ', b'"test_loss": 1', 1)
    assert json.loads(digit)["test_loss"] != second["test_loss"]
    renamed = lines[1].replace(b"checksum", b"checksun")
    for damaged in (digit, renamed, lines[1].replace(b"loss", b"l\xffss"), lines[1][:20], b"[]", lines[0]):
        with pytest.raises(DamagedFileError, match=rf"{path.name} lacks the scores of round 2, or is damaged"):
            ask(lines[0], damaged, *lines[2:])
    assert ask(*lines[:2], lines[2][:30], *lines[2:]).metrics == expected.metrics, "half a line, and the round again"
    assert ask(*lines[:3]).metrics == expected.metrics, "the last round is scored again"
    path.unlink()
    with pytest.raises(DamagedFileError, match=rf"{path.name} lacks the scores of round 1.* trained again"):
        asked.query(CONFIGURATION, Fidelity(4))
    assert not path.exists()
    earlier = [{name: value for name, value in json.loads(line).items() if name != "checksum"} for line in lines]
    found = ask(*(json.dumps(line).encode() for line in earlier))
    assert found.metrics == expected.metrics, "earlier versions wrote no checksums"
    assert found.curve.metrics.keys() == expected.curve.metrics.keys()
    alone = ({**line, CHECKSUM_KEY: checksum_of(json.dumps(line).encode())} for line in earlier)
    assert ask(*(json.dumps(line).encode() for line in alone)).metrics == expected.metrics, "or of the line alone"


def test_files_of_another_course_are_refused_by_name(tmp_path: Path) -> None:
    asked = raw(tmp_path)
    expected = [asked.query(CONFIGURATION, Fidelity(2), seed=seed).metrics for seed in (0, 1)]
    asked.pause()
    one, other = sorted(path for path in tmp_path.iterdir() if path.is_dir())

    def swap(ending: str) -> None:
        paths = [path.with_name(path.name + ending) for path in (one, other)]
        paths[0].rename(tmp_path / "aside")
        paths[1].rename(paths[0])
        (tmp_path / "aside").rename(paths[1])

    for ending, sentence in ((".scores.jsonl", "lacks the scores of round 1"), ("", "holds another course")):
        swap(ending)
        for seed in (0, 1):
            for rounds in (2, 3):  # all of it is on disk, or is gone on with
                with pytest.raises(DamagedFileError, match=sentence):
                    asked.query(CONFIGURATION, Fidelity(rounds), seed=seed)
        swap(ending)
    assert [asked.query(CONFIGURATION, Fidelity(2), seed=seed).metrics for seed in (0, 1)] == expected


def test_courses_that_diverge_keep_what_they_had_and_cost_as_much(tmp_path: Path, played: list[int]) -> None:
    exploding = {"algorithm": {"name": "fedavgm", "server_lr": 1e15}}
    asked = raw(tmp_path, settings=exploding)
    result = asked.query(CONFIGURATION, Fidelity(9))
    done = len(played)
    assert done < 10
    assert result.value == asked.query(CONFIGURATION, Fidelity(2)).value
    assert result.cost_s == pytest.approx(4.5 * asked.query(CONFIGURATION, Fidelity(2)).cost_s)
    asked.pause()
    other = raw(tmp_path, settings=exploding)
    assert other.query(CONFIGURATION, Fidelity(9)).metrics == result.metrics
    assert len(played) == done


def test_nothing_finite_is_infinitely_bad() -> None:
    scores = {"validation_loss": np.array([np.nan, np.inf]), "test_accuracy": np.array([0.3, 0.4])}
    best = best_so_far(scores)
    assert best["validation_loss"].tolist() == [np.inf, np.inf]
    assert np.isnan(best["test_accuracy"]).all()
    assert Objective("test_accuracy").value({"test_accuracy": math.nan}) == math.inf


def test_direction_comes_from_the_metric(tmp_path: Path) -> None:
    asked = raw(tmp_path, objective="validation_accuracy")
    result = asked.query(CONFIGURATION, Fidelity(2))
    assert asked.maximize
    assert result.value == -result.metrics["validation_accuracy"]
    fair = raw(tmp_path, penalties={"validation_accuracy_variance": 2.0, "validation_accuracy_worst_decile": 0.5})
    found = fair.query(CONFIGURATION, Fidelity(2))
    assert found.value == pytest.approx(
        found.metrics["validation_loss"]
        + 2.0 * found.metrics["validation_accuracy_variance"]
        - 0.5 * found.metrics["validation_accuracy_worst_decile"]
    )
    assert not info_of("test_loss").higher_is_better
    assert not info_of("validation_accuracy_variance").higher_is_better
    assert info_of("validation_accuracy_p10").higher_is_better


def test_the_virtual_clock_of_a_fleet_is_a_cost(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="ideal and take no time; name a fleet"):
        raw(tmp_path, system="fleet")
    asked = raw(tmp_path, system="fleet", settings={"fleet": "uniform", "protocol": "synchronous"})
    result = asked.query(CONFIGURATION, Fidelity(3, 0.4))
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    asked.pause()
    seconds = fedarena.load(folder).rounds["end_seconds"].to_pylist()
    assert result.cost_s == seconds[3] - seconds[0] > 0
    assert result.curve.cost_s.tolist() == [end - seconds[0] for end in seconds[1:]]


def test_costs_are_of_what_is_really_sent(tmp_path: Path) -> None:
    whole = raw(tmp_path).round_work(CONFIGURATION, 0.4)
    scaled = raw(tmp_path, settings={"clock": {"model_bytes": 10**6}}).round_work(CONFIGURATION, 0.4)
    assert (scaled.download_bytes, scaled.upload_bytes) == (10**6, 10**6)
    asked = raw(tmp_path, system={"client_s": 0.0}, settings={"transforms": ["sign"]})
    work = asked.round_work(CONFIGURATION, 0.4)
    assert work.download_bytes == whole.download_bytes
    assert work.upload_bytes < whole.upload_bytes / 20
    seconds = work.download_bytes / 750_000 + work.upload_bytes / 250_000
    assert asked.query(CONFIGURATION, Fidelity(1, 0.4)).cost_s == pytest.approx(seconds)
    batches = raw(tmp_path, settings={"algorithm": {"name": "minibatch_sgd", "fraction": 0.01}})
    plain = {**CONFIGURATION, "local.weight_decay": 0.0}
    assert (whole.steps, batches.round_work(plain, 0.4).steps) == (2, 1)
    fair = raw(tmp_path, settings={"algorithm": "qfedavg"})  # whose clients compute a loss on all samples before
    federation = fair.federation
    batch = np.ceil(federation.counts(federation.clients("train"), "train") / CONFIGURATION["local.batch_size"])
    assert fair.round_work(CONFIGURATION, 0.4).steps == pytest.approx(2 + batch.mean() / 3)
    ranks = {**SETTINGS, "model": "mlp", "adaptation": "lora", "search": {"adaptation.rank": [1, 4]}}
    adapted = fedarena.hpo.problem(ranks, "raw", runs_folder=tmp_path)
    assert isinstance(adapted, RawProblem)
    narrow, wide = (adapted.round_work({"adaptation.rank": rank}, 0.4) for rank in (1, 4))
    assert wide.upload_bytes - narrow.upload_bytes == 3 * 4 * (64 + 200)  # numbers beside the first layer, of 4 bytes
    with pytest.raises(BadInputError, match=r"a compressed download of .* depends on when a client was last there"):
        raw(tmp_path, settings={"download": "sign"})
    phones = {"fleet": "uniform", "protocol": "synchronous"}
    assert raw(tmp_path, system="fleet", settings={"download": "sign", **phones}).query(CONFIGURATION).cost_s > 0


def test_privacy_is_an_option(tmp_path: Path) -> None:
    noisy = raw(tmp_path, epsilon=1.0).query(CONFIGURATION, Fidelity(2))
    config = read_settings(next(tmp_path.glob("*/config.yaml")))
    assert noisy.value != raw(tmp_path).query(CONFIGURATION, Fidelity(2)).value
    assert config["privacy"]["name"] == "nbafl"
    assert config["privacy"]["epsilon"] == 1.0


def test_true_is_not_one() -> None:
    space = Space.parse({"local.steps": [1, 2], "local.nesterov": [False, True]})
    assert space.check({"local.steps": 1.0, "local.nesterov": True}) == {"local.steps": 1, "local.nesterov": True}
    with pytest.raises(BadInputError, match=r"local.steps must be one of 1, 2, not True"):
        space.check({"local.steps": True, "local.nesterov": True})
    with pytest.raises(BadInputError, match=r"local.nesterov must be one of False, True, not 1"):
        space.check({"local.steps": 1, "local.nesterov": 1})


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda asked: asked.query({"local.lr": 0.1}), "lacks local.batch_size, local.weight_decay"),
        (lambda asked: asked.query(CONFIGURATION | {"local.lr": 2.0}), "local.lr must be from 0.01 to 1, not 2.0"),
        (lambda asked: asked.query(CONFIGURATION | {"seed": 1}), "no hyperparameter 'seed'"),
        (lambda asked: asked.query(CONFIGURATION, Fidelity(0)), "can be asked for 1 to 9 rounds, not 0"),
        (lambda asked: asked.query(CONFIGURATION, Fidelity(10)), "can be asked for 1 to 9 rounds, not 10"),
        (lambda asked: asked.query(CONFIGURATION, Fidelity(1, 0.0)), "must be above 0 and at most 1"),
        (lambda asked: asked.query(None), "A configuration must be hyperparameters with their values, .* not None"),
        (lambda asked: asked.query(CONFIGURATION, 5), r"A fidelity must be Fidelity\(rounds=…, .* not 5"),
        (lambda asked: asked.query(CONFIGURATION, Fidelity("all")), "must be a whole number, not 'all'"),
        (lambda asked: asked.query(CONFIGURATION, Fidelity(1, "all")), "sample rate .* must be a number, not 'all'"),
    ],
)
def test_questions_that_cannot_be_asked(tmp_path: Path, ask: Callable[[RawProblem], object], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        ask(raw(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("lr@32", {}, "no problem called 'lr@32'; did you mean"),
        ("lr@31-fedprox", {}, "lr@31 is declared with fedavg, fedopt, not with fedprox"),
        ("lr@31-fedopt", {"algorithm": "fedavg"}, "lr@31-fedopt is with fedopt"),
        ("lr@31", {"mode": "table"}, "has the modes tabular, surrogate, raw, not 'table'"),
        ("lr@31", {"objective": "loss"}, "no score 'loss'; scores are called like validation_loss"),
        ("lr@31", {"objective": "test_f1"}, "no metric called 'f1'"),
        ("lr@31", {"mode": "raw", "settings": {"local.lr": 0.1}}, "local.lr is searched in lr@31"),
        ("lr@31", {"mode": "raw", "settings": {"seed": 1}}, "seed of a problem follows from a query's seed"),
        ("lr@31", {"mode": "raw", "system": "clock"}, "is 'fleet' in mode raw, not 'clock'"),
        ("lr@31", {"mode": "raw", "rounds": 0}, "rounds must be a whole number from 1 on"),
        ("lr@31", {"mode": "raw", "table": "x"}, "in mode raw needs no table"),
        ("mf@netflix", {}, "No table of mf@netflix comes with FedArena; make one"),
        ({"federation": "digits"}, {"mode": "raw"}, "says nothing to search; add what may be varied"),
        (SETTINGS | {"federation": "digits"}, {"mode": "raw"}, "no validation samples"),
    ],
)
def test_problems_that_there_are_not(name: Any, options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=sentence):
        fedarena.hpo.problem(name, **{"runs_folder": tmp_path, **options}).query(CONFIGURATION)


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"german.data.txt.*https://www.openml.org"):
        fedarena.hpo.problem("lr@31", "raw", folder=tmp_path / "nothing")


@pytest.mark.skipif(not OPENML.is_dir(), reason="the published tables are not here")
def test_a_problem_of_the_catalogue(tmp_path: Path) -> None:
    asked = fedarena.hpo.problem("lr@31-fedopt", "raw", folder=OPENML, runs_folder=tmp_path)
    configuration = asked.space.at([0.5] * len(asked.space)) | {"local.lr": 0.1, "algorithm.beta": 0.9}
    results = [asked.query(configuration, Fidelity(rounds)) for rounds in (1, 3)]
    assert results[1].value < results[0].value
    assert asked.full == Fidelity(500, 1.0)
    assert results[1].cost_s == pytest.approx(3 * (137 / 60 + 2 * 61 * 4 * (1 / 250_000 + 1 / 750_000)), rel=0.2)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["hpo", *words])
        assert result.exit_code == code, result.output
        return result.output

    listed = run("list")
    assert "lr@146822" in listed
    assert any(line.split()[-3:] == ["fedavg", "14,112", "1,152"] for line in listed.splitlines())
    shown = run("show", "gnn@cora-fedprox")
    assert "algorithm.mu" in shown
    assert "graph: cora" in shown
    assert "in its table" not in shown
    shown = " ".join(run("show", "mlp@31").split())  # whose table has a part of the grid
    assert (
        "1,152 configurations at client sample rates 0.4, 1, means over the seeds 0, 1, 2, and 36 noted rounds" in shown
    )
    assert "in its table" in shown
    assert "Made by: fedarena hpo table mlp@31 --folder openml --rates 0.4,1.0 --grid local.batch_size=[4," in shown
    Path("own.yaml").write_text(json.dumps(SETTINGS))
    asked = run("query", "own.yaml", "--mode", "raw", "--rounds", "2", *(f"{k}={v}" for k, v in CONFIGURATION.items()))
    assert "validation_loss: " in asked
    assert "2 rounds" in asked
    assert "lacks local.batch_size" in run("query", "own.yaml", "local.lr=0.1", "--mode", "raw", code=2)


def test_personal_parts_are_scored_where_they_are(tmp_path: Path) -> None:
    """Clients of `hetero` have encoders and classifiers of their own; scores are those of their own models."""
    asked = fedarena.hpo.problem("hetero@stand_in", "raw", runs_folder=tmp_path, settings={"engine": "reference"})
    result = asked.query({"local.lr": 0.01, "local.steps": 4}, Fidelity(2))
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    rounds = fedarena.load(folder).rounds.to_pandas()
    best = rounds["personal_loss"][1:].idxmin()
    assert result.metrics["validation_loss"] == rounds["personal_loss"][best]
    assert result.metrics["validation_accuracy_p10"] == rounds["personal_accuracy_p10"][best]
    assert {"test_loss", "train_accuracy", "test_macro_f1"} <= result.metrics.keys()
    everything = sum(p.numel() for p in fedarena.load(folder).model().parameters())
    assert asked.round_work({"local.lr": 0.01, "local.steps": 4}, 1.0).upload_bytes < 4 * everything
