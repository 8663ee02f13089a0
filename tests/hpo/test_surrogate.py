"""Surrogates: forests on a table whose curves are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from small_problem import SETTINGS
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.hpo import Fidelity
from fedarena.hpo.problems.declared import find_declared
from fedarena.hpo.space import Space
from fedarena.hpo.surrogate import (
    Surrogate,
    fit_surrogate,
    read_surrogate,
    split_by_curve,
    training_rows,
    write_surrogate,
)
from fedarena.hpo.tables.table import Table, write_table

RATES, ROUNDS = (0.4, 1.0), (1, 3, 9)
SCORES = ("validation_loss", "test_accuracy")
CONFIGURATION = {"local.lr": 0.2, "local.batch_size": 16, "local.weight_decay": 0.0005}


def known_table() -> Table:
    """Losses that fall with rounds, faster with larger learning rates and sample rates."""
    declared = find_declared(SETTINGS)
    grid = {one.name: tuple(one.grid()) for one in declared.space}
    configurations = list(declared.space.grid())
    lr = np.array([np.log10(one["local.lr"]) for one in configurations])[:, None, None]
    batch = np.array([one["local.batch_size"] for one in configurations])[:, None, None]
    progress = np.log2(np.array(ROUNDS) + 1.0) * (3 + lr) * np.array(RATES)[None, :, None]
    loss = 3.0 / (1 + progress) + 0.01 * batch
    values = np.stack([loss, 1 / (1 + loss)], axis=2).astype(np.float32)
    cells = values.shape[:2]
    work = {"clients": np.tile([2, 5], (cells[0], 1)), "steps": np.full(cells, 2)}
    work |= {"download_bytes": np.full(cells, 750_000), "upload_bytes": np.full(cells, 250_000)}
    return Table(
        problem="own",
        space=declared.space,
        grid=grid,
        rates=RATES,
        rounds=ROUNDS,
        scores=SCORES,
        values=values,
        present=np.ones(cells, dtype=np.bool_),
        work=work,
        seeds=(0,),
        about={"problem_fingerprint": declared.fingerprint},
    )


@pytest.fixture(scope="module")
def fitted() -> Surrogate:
    return fit_surrogate(known_table())


@pytest.fixture(scope="module")
def stored(fitted: Surrogate, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("surrogate") / "own.npz"
    write_surrogate(fitted, path)
    return path


def ask(path: Path, **options: Any) -> Any:
    return fedarena.hpo.problem(SETTINGS, "surrogate", surrogate=path, **options)


def test_what_the_table_does_not_reach_is_not_answered(tmp_path: Path) -> None:
    """A forest would answer for all learning rates beyond the table's as for the last one that it knows."""
    whole = known_table()
    rows = [one["local.lr"] < 1.0 for one in whole.configurations()]
    part = replace(
        whole,
        grid={**whole.grid, "local.lr": (0.01, 0.1)},
        values=whole.values[rows],
        present=whole.present[rows],
        work={name: values[rows] for name, values in whole.work.items()},
    )
    write_table(part, tmp_path / "part.parquet")
    write_surrogate(fit_surrogate(part), tmp_path / "part.npz")
    told = "local.lr must be from 0.01 to 0.1, not 0.5: the surrogate .*part.npz knows no more; have it trained"
    asked = fedarena.hpo.problem(SETTINGS, "surrogate", surrogate=tmp_path / "part.npz")
    assert np.isfinite(asked.query({**CONFIGURATION, "local.lr": 0.05}).value)
    with pytest.raises(BadInputError, match=told):
        asked.query({**CONFIGURATION, "local.lr": 0.5})
    with pytest.raises(BadInputError, match=r"local.lr must be from 0.01 to 0.1, not 5.0$"):  # which nobody knows
        asked.query({**CONFIGURATION, "local.lr": 5.0})
    generator = np.random.default_rng(0)
    assert all(asked.space.sample(generator)["local.lr"] <= 0.1 for _ in range(50))
    asked = fedarena.hpo.problem(SETTINGS, table=tmp_path / "part.parquet")
    on_grid = {"local.lr": 0.1, "local.batch_size": 16, "local.weight_decay": 0.001}
    assert np.isfinite(asked.query(on_grid).value)
    with pytest.raises(BadInputError, match=r"one of 0.01, 0.1, not 1.0: the table .*part.parquet knows no more"):
        asked.query({**on_grid, "local.lr": 1.0})


def test_steps_between_those_of_the_table_cost_what_lies_between(fitted: Surrogate) -> None:
    """A method may take steps, or what costs as much, beside those that are searched."""
    lr, steps = (0.1, 1.0), (1, 4)
    work = {name: np.full((4, 2), 2.0) for name in ("clients", "download_bytes", "upload_bytes")}
    besides = np.array([[10.5], [10.5], [20.5], [20.5]])
    work["steps"] = np.tile([1.0, 4.0], 2)[:, None] + besides + np.zeros((4, 2))
    space = Space.parse({"local.lr": {"from": 0.1, "to": 1.0, "log": True}, "local.steps": {"from": 1, "to": 4}})
    made = replace(fitted, space=space, grid={"local.lr": lr, "local.steps": steps}, work=work)
    for asked, expected in (((0.1, 1), 11.5), ((0.12, 3), 13.5), ((1.0, 4), 24.5), ((0.9, 2), 22.5)):
        configuration = dict(zip(("local.lr", "local.steps"), asked, strict=True))
        assert made.round_work(configuration, RATES[0]).steps == pytest.approx(expected)


def test_rows_of_one_curve_never_straddle_folds() -> None:
    _, rows, _, curves = training_rows(known_table())
    splits = split_by_curve(curves, 10, seed=0)
    assert len(splits) == 10
    for seen, unseen in splits:
        assert not set(curves[seen]) & set(curves[unseen])
        assert sorted([*seen, *unseen]) == list(range(len(rows)))
    assert sorted(np.concatenate([unseen for _, unseen in splits])) == list(range(len(rows)))
    for curve in np.unique(curves):  # a curve is a configuration and a sample rate: all but the last feature
        assert len(np.unique(rows[curves == curve][:, :-1], axis=0)) == 1
        assert len(rows[curves == curve]) == len(ROUNDS)


def test_arrays_answer_as_scikit_learn_does(fitted: Surrogate) -> None:
    _, rows, targets, _ = training_rows(known_table())
    best = fitted.errors[0]
    forest = RandomForestRegressor(n_estimators=best.trees, max_depth=best.depth, random_state=0).fit(rows, targets)
    elsewhere = np.random.default_rng(0).random((200, rows.shape[1])) * rows.max(0)
    elsewhere = elsewhere.astype(np.float32).astype(np.float64)
    expected = forest.predict(elsewhere)
    assert fitted.forest.predict_rows(elsewhere) == pytest.approx(expected, rel=1e-6)
    assert fitted.forest.predict(elsewhere[7]) == pytest.approx(expected[7], rel=1e-6)


def test_the_best_of_six_forests_by_errors_on_curves_that_it_has_not_seen(fitted: Surrogate) -> None:
    assert {(one.trees, one.depth) for one in fitted.errors} == {(t, d) for t in (10, 20) for d in (10, 15, 20)}
    assert fitted.errors[0].test == min(one.test for one in fitted.errors)
    _, rows, targets, curves = training_rows(known_table())
    best, errors = fitted.errors[0], []
    for seen, unseen in split_by_curve(curves, 10, seed=0):
        forest = RandomForestRegressor(n_estimators=best.trees, max_depth=best.depth, random_state=0)
        forest.fit(rows[seen], targets[seen])
        pairs = ((forest.predict(rows[one])[:, 0], targets[one][:, 0]) for one in (seen, unseen))
        errors.append([np.abs(found - right).mean() for found, right in pairs])
    assert (best.train, best.test) == pytest.approx(tuple(np.mean(errors, axis=0)), rel=1e-5)


def test_features_are_found_by_name(fitted: Surrogate) -> None:
    columns = fitted.columns
    assert columns == (*SETTINGS["search"], "client_sample_rate", "round")
    turned = replace(fitted, columns=columns[::-1])
    row = fitted.features(CONFIGURATION, 0.4, 8)
    assert turned.features(CONFIGURATION, 0.4, 8).tolist() == row[::-1].tolist()
    assert row[columns.index("round")] == 3.0
    assert row[columns.index("client_sample_rate")] == np.float32(0.4)
    assert row[columns.index("local.lr")] == pytest.approx(np.log(0.2 / 0.01) / np.log(100))


def test_answers_follow_the_table(stored: Path) -> None:
    asked, table = ask(stored), known_table()
    errors = [
        asked.query(configuration, Fidelity(rounds, rate)).value - table.score("validation_loss")[place, column, number]
        for place, configuration in enumerate(table.configurations())
        for column, rate in enumerate(RATES)
        for number, rounds in enumerate(ROUNDS)
    ]
    assert np.abs(errors).mean() < 0.1
    values = [asked.query(CONFIGURATION, Fidelity(rounds)).value for rounds in (1, 3, 9)]
    assert values[0] > values[1] > values[2]
    assert asked.space.names == tuple(SETTINGS["search"])
    assert asked.query(CONFIGURATION, Fidelity(4, 0.4)).cost_s == pytest.approx(4 * (1 + 1 + 1.5))
    curve = asked.curve(CONFIGURATION, Fidelity(5))
    assert curve.rounds.tolist() == [1, 3]
    assert curve.metrics["test_accuracy"][1] == pytest.approx(
        asked.query(CONFIGURATION, Fidelity(3)).metrics["test_accuracy"]
    )


def test_seeds_change_nothing(stored: Path) -> None:
    asked = ask(stored, objective="test_accuracy")
    first, second = (asked.query(CONFIGURATION, seed=seed) for seed in (0, 99))
    assert first == second
    assert first.value == -first.metrics["test_accuracy"]


def test_courses_that_diverged_do_not_drown_the_others() -> None:
    table = known_table()
    values = table.values.copy()
    values[0, 0], values[1, 0, 0, 1] = np.nan, 1e30
    values[0, 0, 0] = np.inf
    _, _, targets, _ = training_rows(replace(table, values=values))
    usual = np.median(table.score("validation_loss")[:, :, 0])
    assert targets[:, 0].max() == pytest.approx(10 * usual, rel=0.2)
    assert np.isfinite(targets).all()
    assert targets[0, 1] == targets[:, 1].min()


def test_it_is_fitted_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    write_table(known_table(), tmp_path / "own.parquet")
    first = fedarena.hpo.problem(SETTINGS, "surrogate", table=tmp_path / "own.parquet").query(CONFIGURATION)
    monkeypatch.setattr("fedarena.hpo.surrogate.fit_surrogate", None)
    again = fedarena.hpo.problem(SETTINGS, "surrogate", table=tmp_path / "own.parquet").query(CONFIGURATION)
    assert first == again
    assert list((cache / "surrogates").glob("own-*.npz"))


def test_files_that_are_not_right(stored: Path, tmp_path: Path) -> None:
    data = stored.read_bytes()
    for content in (data[:-200], data[:500] + b"\0" + data[501:], b"", b"PK\x03\x04"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(DamagedFileError, match=r"bad\.npz"):
            read_surrogate(tmp_path / "bad.npz")
    (tmp_path / "bad.npz").write_text("no numbers at all")
    with pytest.raises(DamagedFileError, match=r"bad\.npz is no surrogate, or damaged: it is no archive of arrays"):
        read_surrogate(tmp_path / "bad.npz")
    np.savez(tmp_path / "foreign.npz", x=np.zeros(3))
    with pytest.raises(DamagedFileError, match=r"foreign\.npz is no surrogate, or damaged"):
        read_surrogate(tmp_path / "foreign.npz")
    with pytest.raises(BadInputError, match="There is no surrogate nowhere"):
        read_surrogate(Path("nowhere"))
    with pytest.raises(BadInputError, match="is the surrogate of own, not of lr@31"):
        fedarena.hpo.problem("lr@31", "surrogate", surrogate=stored)
    with pytest.raises(BadInputError, match=r"surrogate .* was made with other settings"):
        ask(stored, epsilon=1.0)
    with pytest.raises(BadInputError, match="has no score 'test_loss'"):
        ask(stored, objective="test_loss")
    with pytest.raises(BadInputError, match="knows 1 to 9 rounds, not 10"):
        ask(stored, rounds=10)


def test_a_table_with_too_few_curves() -> None:
    table = known_table()
    present = np.zeros_like(table.present)
    present[:4, 0] = True
    with pytest.raises(BadInputError, match="has 4 curves, and 10 folds need at least as many"):
        fit_surrogate(replace(table, present=present))


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(known_table(), tmp_path / "own.parquet")
    Path("own.yaml").write_text(json.dumps(SETTINGS))
    result = CliRunner().invoke(main, ["hpo", "surrogate", "own.yaml", "--table", "own.parquet", "-o", "own.npz"])
    assert result.exit_code == 0, result.output
    assert "test" in result.output
    asked = ["hpo", "query", "own.yaml", "--mode", "surrogate", "--surrogate", "own.npz"]
    result = CliRunner().invoke(main, [*asked, *(f"{name}={value}" for name, value in CONFIGURATION.items())])
    assert result.exit_code == 0, result.output
    assert "9 rounds at 1" in result.output
