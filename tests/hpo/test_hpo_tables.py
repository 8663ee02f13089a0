"""Tables: what is in them, how they are made and read, and what is said of those that are not right."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_problem import SETTINGS
from typer.testing import CliRunner

import fedarena
import warm_processes
from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import load_federation
from fedarena.hpo import Fidelity
from fedarena.hpo.cost import SystemModel
from fedarena.hpo.problems.declared import find_declared
from fedarena.hpo.tables import making
from fedarena.hpo.tables.finding import shipped_tables
from fedarena.hpo.tables.making import make_table
from fedarena.hpo.tables.recipe import Recipe, make_recipe, noted_rounds
from fedarena.hpo.tables.rounding import rounded
from fedarena.hpo.tables.samples import samples_fingerprint
from fedarena.hpo.tables.table import Table, read_table, write_table
from fedarena.hpo.tables.trainers import OneByOne

ROUNDS, NOTED, RATES, SEEDS = 4, (1, 2, 4), (0.4, 1.0), (0, 7)


def small_recipe(**options: Any) -> Recipe:
    usual: dict[str, Any] = {
        "rounds": ROUNDS,
        "noted": NOTED,
        "rates": RATES,
        "seeds": SEEDS,
        "grid": {"local.weight_decay": [0.001], "local.lr": [0.01, 0.1], "local.batch_size": [16]},
        "bits": 22,
    }
    return make_recipe(find_declared(SETTINGS), **usual | options)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 2 configurations, 2 rates and 2 seeds."""
    path = tmp_path_factory.mktemp("table") / "own.parquet"
    make_table(small_recipe(), path, training="one_by_one")
    return path


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "copy.parquet"))


def tabular(path: Path, **options: Any) -> Any:
    return fedarena.hpo.problem(SETTINGS, table=path, **options)


def test_answers_are_the_means_of_what_training_gives(made: Path, tmp_path: Path) -> None:
    asked = tabular(made)
    trained = fedarena.hpo.problem(SETTINGS, "raw", runs_folder=tmp_path, rounds=ROUNDS)
    for configuration, rate in zip(asked.space.grid(), RATES, strict=True):
        for rounds, noted in ((1, 1), (3, 2), (4, 4)):
            answer = asked.query(configuration, Fidelity(rounds, rate), seed=123)
            single = [trained.query(configuration, Fidelity(noted, rate), seed) for seed in SEEDS]
            expected = {name: np.mean([one.metrics[name] for one in single]) for name in answer.metrics}
            assert answer.metrics == pytest.approx(expected, rel=1e-6)
            assert answer.value == answer.metrics["validation_loss"]
            assert answer.cost_s == pytest.approx(single[0].cost_s * rounds / noted, rel=1e-12)
            assert answer.curve.rounds.tolist() == [round for round in NOTED if round <= rounds]
            assert answer.curve.metrics["test_loss"][-1] == np.float32(answer.metrics["test_loss"])


def test_a_cell_is_found_by_names_whatever_the_order_of_rows_and_columns(made: Path, tmp_path: Path) -> None:
    content = pq.read_table(made)
    shuffled = content.take(np.random.default_rng(0).permutation(len(content)))
    shuffled = shuffled.select(sorted(shuffled.column_names, reverse=True))
    pq.write_table(shuffled.replace_schema_metadata(content.schema.metadata), tmp_path / "shuffled.parquet")
    ours, theirs = read_table(made), read_table(tmp_path / "shuffled.parquet")
    assert (ours.values == theirs.values).all()
    row = content.slice(10, 1).to_pylist()[0]
    configuration = {name: row[name] for name in ours.grid}
    found = tabular(made).query(configuration, Fidelity(row["round"], row["client_sample_rate"]))
    assert found.metrics["test_macro_f1"] == row["test_macro_f1"]


def test_every_column_has_a_name_that_says_what_it_is(made: Path) -> None:
    names = pq.read_schema(made).names
    scores = [f"{part}_{m}" for part in ("train", "validation", "test") for m in ("loss", "accuracy", "macro_f1")]
    assert names == [
        *SETTINGS["search"],
        *("client_sample_rate", "round"),
        *scores,
        *("clients", "download_bytes", "upload_bytes", "steps"),
    ]
    about = read_table(made).about
    assert {"command", "versions", "federation_fingerprint", "samples_fingerprint", "settings"} <= about.keys()
    assert read_table(made).seeds == SEEDS


def test_lanes_and_one_by_one_make_the_same_table(made: Path, tmp_path: Path) -> None:
    table = make_table(small_recipe(), tmp_path / "lanes.parquet", training="lanes", device="cpu")
    one_by_one = read_table(made)
    assert table.about["trained"] == "lanes"
    assert table.values == pytest.approx(one_by_one.values, rel=1e-4)
    assert all((table.work[name] == one_by_one.work[name]).all() for name in table.work)


def test_what_lanes_refuse_is_trained_one_by_one(tmp_path: Path) -> None:
    declared = find_declared(SETTINGS).with_settings({"privacy": {"name": "nbafl", "epsilon": 50.0}})
    grid = {"local.weight_decay": [0.0], "local.batch_size": [16], "local.lr": [0.1]}
    recipe = make_recipe(declared, rounds=1, rates=[1.0], seeds=[0], grid=grid)
    with pytest.warns(UserWarning, match="one by one: Trials with privacy=nbafl cannot be lanes"):
        table = make_table(recipe, tmp_path / "private.parquet")
    assert table.about["trained"] == "one_by_one"


def test_best_so_far_never_gets_worse(made: Path) -> None:
    losses = read_table(made).score("validation_loss")
    assert (np.diff(losses, axis=-1) <= 0).all()


def slow_table(path: Path) -> None:
    train = OneByOne.train

    def slowly(self: Any, configurations: Any, told: Any) -> Any:
        time.sleep(0.2)
        return train(self, configurations, told)

    OneByOne.train = slowly  # type: ignore[method-assign]
    make_table(tiny_recipe(), path, training="one_by_one")


def tiny_recipe(**options: Any) -> Recipe:
    """Two configurations, which are two blocks."""
    grid = {"local.weight_decay": [0.001], "local.lr": [0.1], "local.batch_size": [4, 16]}
    return small_recipe(**{"grid": grid, "rates": [1.0], "seeds": [0], "rounds": 2, "noted": 2} | options)


def test_a_table_that_was_cut_short_goes_on_with_the_blocks_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, parts = tmp_path / "own.parquet", tmp_path / "own.parquet.parts"
    process = warm_processes.CONTEXT.Process(target=slow_table, args=(path,))
    process.start()
    while process.is_alive() and not list(parts.glob("block-*.npz")):
        time.sleep(0.005)
    process.kill()
    process.join()
    blocks = len(list(parts.glob("block-*.npz")))
    assert 1 <= blocks < len(list(tiny_recipe().blocks())) == 2
    with pytest.raises(BadInputError, match="has parts of another table than the one that is asked for"):
        make_table(tiny_recipe(seeds=[8]), path)
    trained: list[int] = []
    train = OneByOne.train
    monkeypatch.setattr(
        OneByOne, "train", lambda self, some, told: (trained.append(len(some)), train(self, some, told))[1]
    )
    told: list[tuple[int, int]] = []
    table = make_table(tiny_recipe(), path, training="one_by_one", progress=lambda *done: told.append(done))
    assert len(trained) == 2 - blocks
    assert (table.values == make_table(tiny_recipe(), tmp_path / "b.parquet", training="one_by_one").values).all()
    assert told[-1] == (2, 2)
    assert not parts.exists()
    trained.clear()
    assert (make_table(tiny_recipe(), path).values == table.values).all()  # which is there
    assert not trained
    with pytest.raises(BadInputError, match="is there already and holds another table"):
        make_table(tiny_recipe(bits=9), path)


def test_blocks_that_are_damaged_are_trained_again(tmp_path: Path) -> None:
    path, parts = tmp_path / "own.parquet", tmp_path / "own.parquet.parts"
    parts.mkdir()
    (parts / "block-00000.npz").write_bytes(b"PK\x03\x04 nothing")
    assert np.isfinite(make_table(tiny_recipe(), path, training="one_by_one").values).all()


def test_blocks_of_another_table_are_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing tells any more which table the parts are of."""
    path, parts = tmp_path / "own.parquet", tmp_path / "own.parquet.parts"
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    others = make_table(tiny_recipe(seeds=[8]), path, training="one_by_one")
    path.unlink()
    (parts / "plan.json").unlink()
    table = make_table(tiny_recipe(), path, training="one_by_one")
    assert (table.values == make_table(tiny_recipe(), tmp_path / "b.parquet", training="one_by_one").values).all()
    assert (table.values != others.values).any()


def test_how_many_trials_are_stored_at_a_time_makes_no_difference(tmp_path: Path) -> None:
    grid = {"local.weight_decay": [0.0, 0.001], "local.lr": [0.1, 1.0], "local.batch_size": [16]}
    recipe, few = (tiny_recipe(grid=grid, at_once=at_once) for at_once in (2_000, 2))
    assert recipe.fingerprint == few.fingerprint
    assert [len(list(one.blocks())) for one in (recipe, few)] == [1, 2]
    whole = make_table(recipe, tmp_path / "whole.parquet", training="one_by_one")
    path, parts = tmp_path / "few.parquet", tmp_path / "few.parquet.parts"
    parts.mkdir()
    # A block of other configurations than the one that is looked for, with as many numbers.
    wrong = np.full((2, 1, 1, *whole.values.shape[2:]), 7.0)
    np.savez(parts / "block-00000.npz", values=wrong, places=[1, 2])
    assert (make_table(few, path, training="one_by_one").values == whole.values).all()
    with pytest.raises(BadInputError, match="at_once must be whole numbers from 1 on, not 0"):
        tiny_recipe(at_once=0)


def test_a_table_of_other_samples_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parts = tmp_path / "own.parquet", tmp_path / "own.parquet.parts"
    monkeypatch.setattr(OneByOne, "train", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        make_table(tiny_recipe(), path, training="one_by_one")
    monkeypatch.undo()
    monkeypatch.setattr(making, "samples_fingerprint", lambda federation: "others")
    with pytest.raises(BadInputError, match="has parts that were trained on other samples than those of own are now"):
        make_table(tiny_recipe(), path, training="one_by_one")
    monkeypatch.undo()
    table = make_table(tiny_recipe(), path, training="one_by_one")
    assert not parts.exists()
    assert (make_table(tiny_recipe(), path).values == table.values).all()
    monkeypatch.setattr(making, "samples_fingerprint", lambda federation: "others")
    with pytest.raises(BadInputError, match="was made of other samples than those of own are now"):
        make_table(tiny_recipe(), path)


def test_samples_are_told_apart_by_what_they_are(tmp_path: Path) -> None:
    options = {"partition": {"name": "dirichlet", "clients": 3}, "train_fraction": 0.6, "validation_fraction": 0.2}
    federation = load_federation("digits", options)
    shutil.copytree(federation.path, tmp_path / "elsewhere")
    moved = load_federation("store", {"path": str(tmp_path / "elsewhere")})
    others = load_federation("digits", {**options, "train_fraction": 0.5})
    assert samples_fingerprint(federation) == samples_fingerprint(moved) != samples_fingerprint(others)


def test_a_table_with_a_gap_says_which(made: Path, tmp_path: Path) -> None:
    whole = read_table(made)
    present = whole.present.copy()
    present[1, 1] = False
    write_table(replace(whole, present=present), tmp_path / "gap.parquet")
    read = read_table(tmp_path / "gap.parquet")
    assert (read.present == present).all()
    asked = tabular(tmp_path / "gap.parquet")
    configuration = list(asked.space.grid())[1]
    assert (
        asked.query(configuration, Fidelity(4, 0.4)).value == tabular(made).query(configuration, Fidelity(4, 0.4)).value
    )
    with pytest.raises(BadInputError, match=r"lacks the cell local.lr=0.1, local.batch_size=16.* 1 such gap; make it"):
        asked.query(configuration, Fidelity(4, 1.0))


def test_damaged_and_foreign_files_are_refused_by_name(copy: Path, made: Path, tmp_path: Path) -> None:
    data = copy.read_bytes()
    whole, noticed = read_table(made), 0
    places = range(4, len(data), len(data) // 40)
    for start in places:
        copy.write_bytes(data[:start] + bytes([data[start] ^ 255]) + data[start + 1 :])
        try:
            read = read_table(copy)
        except BadInputError as error:
            noticed += "copy.parquet" in str(error)
        else:  # some bytes mean nothing to anybody
            assert (read.values == whole.values).all()
    assert noticed > len(places) / 2
    copy.write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedFileError, match=r"copy\.parquet is no table, or damaged"):
        tabular(copy)
    changed = pq.read_table(made)
    place = changed.column_names.index("test_loss")
    halved = changed.set_column(place, "test_loss", [changed["test_loss"].to_numpy() / 2])
    pq.write_table(halved, tmp_path / "forged.parquet")
    with pytest.raises(DamagedFileError, match="its numbers do not match its checksum"):
        tabular(tmp_path / "forged.parquet")
    pq.write_table(changed.drop_columns(["test_loss"]), tmp_path / "less.parquet")
    with pytest.raises(DamagedFileError, match="it has no column test_loss"):
        tabular(tmp_path / "less.parquet")
    pq.write_table(changed.slice(1), tmp_path / "fewer.parquet")
    with pytest.raises(DamagedFileError, match="a cell lacks rounds"):
        tabular(tmp_path / "fewer.parquet")
    pq.write_table(changed.replace_schema_metadata({}), tmp_path / "foreign.parquet")
    with pytest.raises(BadInputError, match=r"a Parquet file, but no table of a problem"):
        tabular(tmp_path / "foreign.parquet")
    with pytest.raises(BadInputError, match="There is no table nowhere"):
        tabular(Path("nowhere"))


def test_a_table_of_something_else_is_refused(made: Path) -> None:
    with pytest.raises(BadInputError, match=r"is the table of own, not of lr@31"):
        fedarena.hpo.problem("lr@31", table=made)
    with pytest.raises(BadInputError, match=r"other settings or another space of own \(privacy\)"):
        tabular(made, epsilon=1.0)
    other_space = SETTINGS | {"search": SETTINGS["search"] | {"local.batch_size": [4, 8]}}
    with pytest.raises(BadInputError, match="another space of own"):
        fedarena.hpo.problem(other_space, table=made)
    elsewhere = SETTINGS | {"engine": "cohort", "federation": SETTINGS["federation"] | {"folder": "x"}}
    fedarena.hpo.problem(elsewhere, table=made)  # where files are and what computes makes no difference


@pytest.mark.parametrize(
    ("changes", "fidelity", "sentence"),
    [
        ({"local.lr": 0.2}, Fidelity(1), "local.lr must be one of 0.01, 0.1, not 0.2"),
        ({}, Fidelity(6), "can be asked for 1 to 4 rounds, not 6"),
        ({}, Fidelity(1, 0.6), "knows the client sample rates 0.4, 1, not 0.6"),
        ({"seed": 3}, Fidelity(1), "no hyperparameter 'seed'"),
        ({"local.lr": np.array([0.01, 0.1])}, Fidelity(1), r"local.lr must be one of 0.01, 0.1, not array\("),
    ],
)
def test_questions_that_a_table_cannot_answer(
    made: Path, changes: dict[str, Any], fidelity: Fidelity, sentence: str
) -> None:
    asked = tabular(made)
    with pytest.raises(BadInputError, match=sentence):
        asked.query(next(asked.space.grid()) | changes, fidelity)


def test_options_of_a_table(made: Path) -> None:
    asked = tabular(made, objective="test_accuracy", rounds=2, system={"client_s": 0.0, "step_s": 10.0})
    configuration = next(asked.space.grid())
    result = asked.query(configuration)
    assert asked.full == Fidelity(2, 1.0)
    assert result.value == -result.metrics["test_accuracy"]
    plain = 2 * 137 / 60 * 20.0
    assert result.cost_s == pytest.approx(plain, rel=0.01)
    assert result.cost_s > plain
    with pytest.raises(BadInputError, match="has no score 'test_accuracy_variance'"):
        tabular(made, objective="test_accuracy_variance")
    with pytest.raises(BadInputError, match="has 1 to 4 rounds, so it cannot have 6"):
        tabular(made, rounds=6)


def test_diverged_courses_are_infinitely_bad(made: Path, tmp_path: Path) -> None:
    whole = read_table(made)
    values = whole.values.copy()
    values[1] = np.nan
    values[1, :, whole.scores.index("validation_loss")] = np.inf
    write_table(replace(whole, values=values), tmp_path / "diverged.parquet")
    asked = tabular(tmp_path / "diverged.parquet")
    assert asked.query(list(asked.space.grid())[1]).value == np.inf


def test_rounding_keeps_bits() -> None:
    numbers = np.random.default_rng(0).lognormal(size=1000)
    near = rounded(numbers, 12)
    assert near == pytest.approx(numbers, rel=2**-13)
    assert not (near.view(np.uint32) & 0x7FF).any()
    special = rounded([np.inf, -np.inf, np.nan, 0.0, 1.0])
    assert special[[0, 1, 3, 4]].tolist() == [np.inf, -np.inf, 0.0, 1.0]
    assert np.isnan(special[2])


@pytest.mark.parametrize(("last", "number"), [(250, 40), (500, 40), (40, 40), (9, 40), (500, 12), (1, 1)])
def test_noted_rounds_have_those_at_which_halving_stops(last: int, number: int) -> None:
    noted = noted_rounds(last, number)
    assert noted[0] == 1
    assert noted[-1] == last
    assert len(noted) <= max(number, 14)
    assert {3**power for power in range(10) if 3**power <= last} <= set(noted)
    assert {last // 3**power for power in range(10) if last // 3**power} <= set(noted)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seeds": [-1]}, "seeds must be whole numbers from 0 on, not -1"),
        ({"rates": [0.0]}, "must be above 0 and at most 1, not 0.0"),
        ({"rounds": 0}, "rounds must be whole numbers from 1 on"),
        ({"noted": [1, 9]}, "Noted rounds must be from 1 to 4"),
        ({"grid": {"lr": [1]}}, "has no hyperparameter 'lr'"),
        ({"grid": {"local.lr": [7.0]}}, "local.lr must be from 0.01 to 1"),
        ({"grid": {"local.lr": [0.1, 0.1]}}, "names a value twice"),
        ({"bits": 50}, "1 to 22 bits"),
    ],
)
def test_recipes_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        small_recipe(**options)


def test_blocks_are_of_one_batch_size_and_cover_the_grid() -> None:
    recipe = make_recipe(find_declared("lr@31"))
    configurations, blocks = recipe.configurations(), list(recipe.blocks())
    assert sorted(place for block in blocks for place in block) == list(range(672))
    assert all(len({configurations[place]["local.batch_size"] for place in block}) == 1 for block in blocks)
    assert recipe.trials() == 10_080


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(json.dumps(SETTINGS))
    few = [
        "--grid",
        "local.weight_decay=[0]",
        "--grid",
        "local.lr=[0.01,0.1]",
        "--grid",
        "local.batch_size=16",
        "--rounds",
        "2",
        "--seeds",
        "0,1",
    ]
    words = ["hpo", "table", "own.yaml", *few, "--rates", "1.0", "--training", "one_by_one"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "own.parquet (2 configurations, 4 trials" in result.output
    asked = ["hpo", "query", "own.yaml", "--table", "own.parquet", "local.lr=0.1", "local.batch_size=16"]
    result = CliRunner().invoke(main, [*asked, "local.weight_decay=0"])
    assert result.exit_code == 0, result.output
    assert "2 rounds at 1" in result.output
    result = CliRunner().invoke(main, [*words, "--seeds", "0,x"])
    assert result.exit_code == 2
    assert "--seeds must be numbers" in result.output


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", shipped_tables() or [None])
def test_tables_that_come_with_the_package_are_whole(name: str | None) -> None:
    if name is None:
        pytest.skip("there are none")
    asked = fedarena.hpo.problem(name)
    table: Table = asked.table
    assert table.present.all()
    assert asked.query(next(asked.space.grid())).cost_s > 0
    assert np.isfinite(asked._values).mean() > 0.5
    assert table.about["problem_fingerprint"] == find_declared(name).fingerprint


def test_what_comes_with_the_package_is_small() -> None:
    assert sum(path.stat().st_size for path in shipped_tables().values()) <= 15e6


def test_costs_are_as_those_of_the_system(made: Path) -> None:
    table = read_table(made)
    parameters = 64 * 10 + 10
    assert (table.work["download_bytes"] == 4 * parameters).all()
    assert table.work["clients"].tolist() == [[2, 5]] * 2
    asked = tabular(made)
    assert asked.query(next(asked.space.grid()), Fidelity(4, 0.4)).cost_s == pytest.approx(
        4 * SystemModel().round_s(asked.table.round_work)[0, 0]
    )


def test_steps_that_are_a_mean_over_clients_cost_as_much_as_in_training(tmp_path: Path) -> None:
    partition = {"name": "dirichlet", "clients": 50, "alpha": 0.3}
    settings = {name: value for name, value in SETTINGS.items() if name != "local.steps"} | {
        "federation": SETTINGS["federation"] | {"partition": partition}
    }
    grid = {"local.weight_decay": [0.001], "local.lr": [0.1], "local.batch_size": [16]}
    recipe = make_recipe(find_declared(settings), rounds=1, rates=(0.1,), seeds=(0,), grid=grid)
    path, system = tmp_path / "table.parquet", {"step_s": 10.0}
    asked = recipe.configurations()[0]
    steps = make_table(recipe, path, training="one_by_one").work["steps"].item()
    assert steps % 1 > 0
    found = [
        fedarena.hpo.problem(settings, system=system, **options).query(asked, Fidelity(1, 0.1)).cost_s
        for options in ({"table": path}, {"mode": "raw", "runs_folder": tmp_path / "runs"})
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_problem_of_ones_own_has_the_sample_rate_of_its_cohort() -> None:
    assert make_recipe(find_declared(SETTINGS | {"cohort": 2}), rounds=1).rates == (0.4,)
    assert fedarena.hpo.problem(SETTINGS | {"cohort": 2}, "raw").full == Fidelity(9, 0.4)


@pytest.mark.slow
def test_lanes_score_nodes_of_graphs(tmp_path: Path) -> None:
    """What counts there is a node with a label, not a sample."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=60)
    edges = [(node, int(other)) for node in range(60) for other in random.choice(60, 3)]
    federation = fedarena.from_graph(np.eye(3)[labels] + random.normal(size=(60, 3)), edges, labels, clients=3)
    settings = {
        "federation": {"name": "store", "path": str(federation.path)},
        "model": {"name": "gcn", "hidden": 4},
        "task.metrics": ["accuracy", "macro_f1"],
        "engine": "reference",
        "search": {"local.lr": [0.1, 1.0], "model.dropout": [0.5], "local.steps": [1, 2]},
    }
    recipe = make_recipe(find_declared(settings), rounds=2, rates=[0.34, 1.0], seeds=[0], bits=22)
    lanes = make_table(recipe, tmp_path / "lanes.parquet", training="lanes", device="cpu")
    one_by_one = make_table(recipe, tmp_path / "plain.parquet", training="one_by_one")
    assert lanes.values == pytest.approx(one_by_one.values, rel=1e-4)
