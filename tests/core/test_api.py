from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError

FAST = {"federation": "digits", "rounds": 3, "cohort": 5, "model": "logistic_regression", "evaluation": {"every": 1}}


class Halved(FedAvg):
    """Moves half as far as FedAvg."""

    def __init__(self, *, share: float = 0.5):
        super().__init__(server_lr=share)


def test_run_returns_tables_and_plots(tmp_path: Path) -> None:
    result = fedarena.run(FAST, runs_folder=tmp_path, progress=False)
    frame = result.rounds.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["accuracy"].notna().all()
    assert list(frame["round"]) == [0, 1, 2, 3]
    figure = result.plot()
    assert any(list(trace.x) == [0, 1, 2, 3] for trace in figure.data)
    assert result.write_report(tmp_path / "mine.html").stat().st_size > 100_000
    assert "finished" in repr(result)


def test_nested_and_dotted_settings_mean_the_same(tmp_path: Path) -> None:
    nested = fedarena.run(FAST, local={"lr": 0.3}, name="a", runs_folder=tmp_path, progress=False)
    dotted = fedarena.run({**FAST, "local.lr": 0.3, "name": "b"}, runs_folder=tmp_path, progress=False)
    assert nested.config["local"] == dotted.config["local"]
    assert nested.rounds.equals(dotted.rounds)


def test_an_own_algorithm_is_a_class(tmp_path: Path) -> None:
    mine = fedarena.run(FAST, algorithm={"name": Halved, "share": 0.25}, name="a", runs_folder=tmp_path, progress=False)
    same = fedarena.run(
        FAST, algorithm={"name": "fedavg", "server_lr": 0.25}, name="b", runs_folder=tmp_path, progress=False
    )
    assert mine.rounds.equals(same.rounds)
    assert fedarena.load(tmp_path / "a").config["algorithm"] == {"name": f"{__name__}:Halved", "share": 0.25}
    assert fedarena.resume(tmp_path / "a", progress=False).rounds.equals(mine.rounds)


def test_errors_are_exceptions(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="did you mean 'rounds'"):
        fedarena.run(FAST, round=3, runs_folder=tmp_path)
    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        fedarena.runn  # noqa: B018


def test_data_are_no_federation_yet(tmp_path: Path) -> None:
    table = pd.DataFrame({"who": ["ann"], "y": [1]})
    for settings in ({"federation": table}, {"fleet": table}):
        (key,) = settings
        for given in ((settings,), ()):
            with pytest.raises(BadInputError, match=f"{key} must be a name, a mapping .* not a DataFrame; "):
                fedarena.run(*given, **({} if given else settings), runs_folder=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_warnings_are_told_without_bars_and_kept(tmp_path: Path) -> None:
    ignored = {"protocol": "synchronous", "runs_folder": tmp_path}  # which without phones has little to do
    for name, call in (
        ("a", lambda: fedarena.run(FAST, **ignored, name="a", progress=False)),
        ("b", lambda: fedarena.open(FAST, **ignored, name="b").advance().close()),
    ):
        with pytest.warns(UserWarning, match="With fleet=ideal devices take no time"):
            call()
        result = fedarena.load(tmp_path / name)
        assert ["fleet=ideal" in warning for warning in result.warnings] == [True]


def test_no_more_clients_are_invited_than_there_are(tmp_path: Path, make_federation) -> None:
    rng = np.random.default_rng(0)
    hospitals = {f"hospital {n}": (rng.normal(size=(12, 3)).astype(np.float32), rng.integers(0, 2, 12)) for n in "abcd"}
    federation = make_federation(hospitals, 2)
    result = fedarena.run(federation=federation, rounds=2, runs_folder=tmp_path, name="few", progress=False)
    assert result.config["cohort"] == 4
    assert result.rounds["clients"].to_pylist()[1:] == [4, 4]
    assert fedarena.run(FAST, cohort=None, rounds=1, runs_folder=tmp_path, progress=False).config["cohort"] == 20
    with pytest.raises(BadInputError, match="cohort is 5, but the federation 'made' has only 4 clients to train on"):
        fedarena.run(federation=federation, cohort=5, rounds=2, runs_folder=tmp_path, progress=False)
