"""Everything is reachable from Python by tab completion, documented, and takes settings in the same forms."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.data import Federation

FAST = {
    "federation": "digits",
    "rounds": 2,
    "cohort": 5,
    "model": "logistic_regression",
    "evaluation": {"every": 1},
    "engine": "reference",
}


class Halved(FedAvg):
    """Moves half as far as FedAvg."""

    def __init__(self):
        super().__init__(server_lr=0.5)


class Broken(FedAvg):
    def server_step(self, state, mean_update, round):
        raise ZeroDivisionError("a bug")


def test_all_is_found_by_completion_and_documented() -> None:
    offered = dir(fedarena)
    for name in ("run", "suite", "compare", "load", "resume", "open", "federations", "fleets", "load_fleet", "Run"):
        assert name in offered
    assert not any(name.startswith("_") for name in offered if name != "__version__")
    for name in offered:
        found = getattr(fedarena, name)
        assert found is not None
        assert inspect.getdoc(found), name
    for name in ("advance", "fork", "close", "model", "rounds"):
        assert inspect.getdoc(getattr(fedarena.Run, name)), name


def test_the_same_settings_from_a_file_a_mapping_or_keywords(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(FAST))
    where = {"runs_folder": tmp_path, "progress": False}
    runs = [
        fedarena.run(str(path), **where, name="a"),
        fedarena.run(path, **where, name="b"),
        fedarena.run(FAST, **where, name="c"),
        fedarena.run(**FAST, **where, name="d"),
    ]
    with fedarena.open(path, runs_folder=tmp_path, name="e") as opened:
        runs.append(opened.advance().result())
    assert all(run.rounds.equals(runs[0].rounds) for run in runs)
    assert fedarena.run(str(path), **where, seed=1).config["seed"] == 1
    with pytest.raises(BadInputError, match=r"There is no file nowhere\.yaml"):
        fedarena.run("nowhere.yaml")


@contextmanager
def sixteen_bits_allowed() -> Iterator[None]:
    """On some processors torch would round what is multiplied, on others it takes another library."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@contextmanager
def in_double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    assert torch.get_default_dtype() == torch.float64
    torch.set_default_dtype(torch.float32)


SWITCHES = [sixteen_bits_allowed, in_double_precision, partial(torch.autocast, "cpu", torch.bfloat16)]


@pytest.mark.parametrize("switched", SWITCHES)
@pytest.mark.parametrize("engine", ["reference", "cohort"])
def test_what_a_script_switches_for_models_of_its_own_is_not_for_runs(engine, switched, tmp_path: Path) -> None:
    settings = FAST | {"model": "mlp", "engine": engine, "local": {"batch_size": 100}}
    runs = []
    for number, context in enumerate([nullcontext, switched]):
        with context():
            run = fedarena.run(settings, runs_folder=tmp_path / str(number), progress=False)
            model = fedarena.load(run.path).model()
        runs.append((run.rounds, [p.dtype for p in model.parameters()], model(torch.ones(3, 64)).dtype))
    assert runs[0][0].equals(runs[1][0])
    assert runs[0][1:] == runs[1][1:]


def test_a_suite_and_what_it_comes_to(tmp_path: Path) -> None:
    settings = {"name": "both", "base": FAST, "matrix": {"algorithm": ["fedavg", Halved]}, "seeds": [0, 1]}
    found = fedarena.suite(**settings, runs_folder=tmp_path, progress=False)
    assert len(found) == 4
    assert found.failures == []
    table = found.table().to_pandas()
    assert list(table["seeds"]) == [2, 2]
    assert len(found.methods) == 2
    scores = [run.summary["final"]["accuracy"] for run in found if run.label == found.methods[0]]
    assert table["accuracy"][0] == pytest.approx(sum(scores) / 2)
    assert list(found.table("loss").column_names[4:6]) == ["loss", "loss_std"]
    assert "<Comparison of 4 runs" in repr(found)
    assert "accuracy" in found._repr_html_()
    assert found["fedavg-seed1"].config["seed"] == 1
    with pytest.raises(BadInputError, match="did you mean 'fedavg-seed1'"):
        found["fedavg-seed3"]
    assert (tmp_path / "both" / "report.html").exists()
    again = fedarena.suite({**settings, "seeds": [1]}, runs_folder=tmp_path, progress=False)  # which is finished
    assert again[0].environment["run_id"] == found["fedavg-seed1"].environment["run_id"]
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump({"base": FAST, "matrix": {"local.lr": [0.1, 0.2]}}))
    third = fedarena.suite(path, rounds=1, seeds=[3], name="third", runs_folder=tmp_path, progress=False)
    assert [run.path.parent.name for run in third] == ["third"] * 2
    assert {(run.config["seed"], run.config["rounds"]) for run in third} == {(3, 1)}


def test_a_run_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Broken-seed0: ZeroDivisionError: a bug"):
        found = fedarena.suite(
            base=FAST, matrix={"algorithm": ["fedavg", Broken]}, runs_folder=tmp_path, progress=False
        )  # fmt: skip
    assert found.failures == ["Broken-seed0: ZeroDivisionError: a bug"]
    assert [run.status for run in found] == ["finished", "failed"]


def test_comparing_runs_however_they_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a = fedarena.run(FAST, progress=False, name="a")
    b = fedarena.run(FAST, progress=False, name="b", local={"lr": 0.5})
    one = fedarena.compare([a, b])
    assert one.methods == ["fedavg lr=0.1", "fedavg lr=0.5"]
    assert fedarena.compare("runs").methods == one.methods == fedarena.compare(["runs/a", b.path]).methods
    assert one.write_report("cmp.html").stat().st_size > 100_000
    assert fedarena.write_report([a, b], "too.html") == Path("too.html")
    assert len(one.plot("loss").data) >= 2
    for wrong, sentence in (
        ([], "no runs to compare"),
        (["nowhere"], "There is no run folder nowhere"),
        ([{"rounds": 1}], "not by a dict"),
    ):
        with pytest.raises(BadInputError, match=sentence):
            fedarena.compare(wrong)


def test_a_method_that_does_not_measure_the_leading_metric_has_a_row_without_it(tmp_path: Path) -> None:
    where = {"runs_folder": tmp_path, "progress": False}
    f1 = fedarena.run(FAST, **where, name="f1", task={"metrics": ["macro_f1"]}, label="by f1")
    runs = [fedarena.run(FAST, **where, name=f"a{seed}", seed=seed, label="usual") for seed in (0, 1)]
    comparison = fedarena.compare([f1, *runs])
    first, second = comparison.table().to_pylist()
    assert [first["method"], second["method"]] == comparison.methods == ["by f1", "usual"]
    assert first["macro_f1"] == f1.summary["final"]["macro_f1"]
    assert first["accuracy"] is first["accuracy_by_client"] is first["accuracy_worst_decile"] is None
    assert [first["loss"], first["round"], first["seeds"]] == [f1.summary["final"]["loss"], 2, 1]
    assert second["macro_f1"] is None
    assert second == {"macro_f1": None, **fedarena.compare(runs).table().to_pylist()[0]}
    assert comparison.table("macro_f1").to_pylist()[1]["macro_f1"] is None
    assert list(comparison.to_pandas()["method"]) == comparison.methods


def test_federations_and_fleets_are_found_by_name(tmp_path: Path) -> None:
    assert "digits" in dir(fedarena.federations)
    assert "digits" in list(fedarena.federations)
    assert "uniform" in repr(fedarena.fleets)
    digits = fedarena.federations.digits
    assert "partition" in inspect.signature(digits).parameters
    assert inspect.getdoc(digits)
    federation = digits(partition={"name": "iid", "clients": 10})
    assert federation.num_clients == 10
    assert len(fedarena.fleets.uniform(phones=3, seconds_per_sample=0.1).devices) == 3
    with pytest.raises(AttributeError, match="no federation called 'digit'"):
        fedarena.federations.digit  # noqa: B018
    with pytest.raises(BadInputError, match="did you mean 'digits'"):
        fedarena.federations["digit"]


def test_loaders_take_the_same_things(tmp_path: Path) -> None:
    partition = {"name": "iid", "clients": 10}
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({**FAST, "federation": {"name": "digits", "partition": partition}})
    )
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"name": "uniform", "seconds_per_sample": 0.1}))
    named = fedarena.load_federation("digits", partition=partition)
    for same in (
        fedarena.load_federation({"name": "digits", "partition": partition}),
        fedarena.load_federation("digits", {"partition": partition}),
        fedarena.load_federation(named.path),
        fedarena.load_federation(str(named.path)),
        fedarena.load_federation(tmp_path / "run.yaml"),
    ):
        assert same.fingerprint == named.fingerprint
    fleet = fedarena.load_fleet("uniform", phones=4, seconds_per_sample=0.1)
    fleet.save(tmp_path / "saved")
    for same in (
        fedarena.load_fleet({"name": "uniform", "seconds_per_sample": 0.1}, phones=4),
        fedarena.load_fleet("uniform", {"seconds_per_sample": 0.1}, phones=4),
        fedarena.load_fleet(tmp_path / "saved"),
        fedarena.load_fleet(tmp_path / "fleet.yaml", phones=4),
    ):
        assert same.fingerprint == fleet.fingerprint
    with pytest.raises(BadInputError, match="Which fleet"):
        fedarena.load_fleet({"seconds_per_sample": 0.1})


def test_classes_of_the_same_name_on_an_axis_are_runs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for module, factor in (("first_version", 0.5), ("second_version", 2.0)):
        (tmp_path / f"{module}.py").write_text(
            "from fedarena.algorithms import FedAvg\n\n\nclass Mine(FedAvg):\n"
            "    def local_gradient(self, grad, params, client):\n"
            f"        return {{name: {factor} * value for name, value in grad.items()}}\n"
        )
    first, second = (importlib.import_module(f"{name}_version").Mine for name in ("first", "second"))
    base = {"federation": "digits", "model": "logistic_regression", "rounds": 1, "cohort": 2}
    found = fedarena.suite(
        base=base, matrix={"algorithm": [first, second, "fedavg"]}, runs_folder=tmp_path / "runs", progress=False
    )
    assert {run.label for run in found} == {"first_version:Mine", "second_version:Mine", "fedavg"}
    with pytest.raises(BadInputError, match=r"matrix\.algorithm has 'first_version:Mine' twice"):
        fedarena.suite(base=base, matrix={"algorithm": [first, first]}, runs_folder=tmp_path / "runs", progress=False)


def test_suites_know_a_federation_that_was_handed_in(tmp_path: Path) -> None:
    federation = fedarena.load_federation("digits", partition={"name": "iid", "clients": 10})
    base = {key: value for key, value in FAST.items() if key != "federation"}
    found = fedarena.suite(base={**base, "federation": federation}, runs_folder=tmp_path, progress=False)
    assert found[0].config["federation"] == {"name": "store", "path": str(federation.path)}
    with pytest.raises(BadInputError, match="find a fleet by its folder"):
        fedarena.suite(base=base, fleet=fedarena.fleets.ideal(), runs_folder=tmp_path)


class ZeroLabels(Federation):
    """A store of which one method gives something else."""

    def samples(self, clients, part="all", columns=None):
        found = super().samples(clients, part, columns)
        return replace(found, columns={**found.columns, "y": 0 * found.columns["y"]})


def _with_another_method(path: Path) -> Federation:
    federation = Federation.open(path)
    federation.samples = ZeroLabels.open(path).samples  # type: ignore[method-assign]
    return federation


@pytest.mark.parametrize("made", [ZeroLabels.open, _with_another_method])
def test_a_federation_with_methods_of_its_own_is_refused_as_no_resumed_run_would_have_them(
    tmp_path: Path, made: Callable[[Path], Federation]
) -> None:
    federation = made(fedarena.federations.digits(partition={"name": "iid", "clients": 10}).path)
    with pytest.raises(BadInputError, match="has methods of its own, but resumed runs and suites find only its folder"):
        fedarena.run(federation=federation, rounds=1, runs_folder=tmp_path, progress=False)
    with pytest.raises(BadInputError, match="has methods of its own"):
        fedarena.suite(name="two", base={"federation": federation}, runs_folder=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_warnings_are_shown_where_the_user_called(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="fleet=ideal") as caught:
        fedarena.run(
            federation="digits",
            model="logistic_regression",
            protocol="synchronous",
            rounds=1,
            runs_folder=tmp_path,
            progress=False,
        )
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name] * len(caught)
