"""Data that changed between runs: what was made from one version is never mixed with what was made from another."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.data import Federation
from fedarena.display.report.cautions import cautions
from fedarena.display.report.methods import conditions
from fedarena.runs.observer import Observer
from fedarena.runs.suite import make_suite
from fedarena.runs.suite_plan import plan_suite
from fedarena.storage.run_data import label_runs, load_runs
from fedarena.storage.run_files import CONTENT_FINGERPRINT
from suite_runs import run_suite

ROWS = 60


def import_table(folder: Path, flipped: int, clients: int = 5) -> Path:
    """A federation in ``folder/store`` of a table in which so many labels are wrong."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 2))
    y = (x.sum(1) > 0).astype(int)
    y[:flipped] = 1 - y[:flipped]
    lines = [f"u{row % clients},{a:.6f},{b:.6f},{label}" for row, ((a, b), label) in enumerate(zip(x, y, strict=True))]
    (folder / "table.csv").write_text("\n".join(["who,a,b,y", *lines]) + "\n")
    options = ["--client", "who", "--label", "y", "--output", str(folder / "store"), "--overwrite"]
    done = CliRunner().invoke(main, ["data", "import", str(folder / "table.csv"), *options])
    assert done.exit_code == 0, done.output
    return folder / "store"


def import_texts(folder: Path, moved: str) -> None:
    """A federation in ``folder/store`` of the same texts in a file that lies in another folder."""
    table = folder / moved / "texts.csv"
    table.parent.mkdir()
    table.write_text("\n".join(["who,t,y", *(f"u{row % 5},word {row % 7},{row % 2}" for row in range(ROWS))]) + "\n")
    options = ["--client", "who", "--text", "t", "--label", "y", "--output", str(folder / "store"), "overwrite=true"]
    done = CliRunner().invoke(main, ["data", "import-text", str(table), *options])
    assert done.exit_code == 0, done.output


def settings(store: Path, **more: Any) -> dict[str, Any]:
    return {"federation": str(store), "rounds": 1, "cohort": 3, "engine.workers": 1, **more}


def test_a_suite_says_which_runs_are_of_other_data(tmp_path: Path) -> None:
    def suite(*options: str, seeds: tuple[int, ...] = (0,)) -> Any:
        base = {"federation": str(tmp_path / "store"), "rounds": 1, "cohort": 3}
        content = {"name": "few", "base": base, "matrix": {"method": {"mine": {"algorithm": "fedavg"}}}}
        (tmp_path / "few.yaml").write_text(yaml.safe_dump({**content, "seeds": list(seeds)}))
        arguments = ["suite", str(tmp_path / "few.yaml"), "--runs", str(tmp_path / "runs"), *options]
        return CliRunner().invoke(main, arguments)

    import_table(tmp_path, 0)
    assert suite().exit_code == 0
    assert suite(seeds=(0, 1)).exit_code == 0  # nothing has changed
    import_table(tmp_path, 20)
    refused = suite(seeds=(0, 1, 2))
    assert refused.exit_code == 2
    told = " ".join(refused.output.split())
    assert "2 of 3 runs are stale (mine-seed0, mine-seed1): the federation 'table' changed since" in told
    assert suite("--rerun-stale", seeds=(0, 1, 2)).exit_code == 0
    runs = load_runs([tmp_path / "runs" / "few"])
    assert len({run.data_fingerprint("federation") for run in runs}) == 1
    for path in (tmp_path / "store").iterdir():
        path.unlink()
    (tmp_path / "store").rmdir()
    assert suite(seeds=(0, 1, 2)).exit_code == 0  # what is finished can be looked at without its data


def test_a_report_does_not_average_or_test_over_versions_of_data(tmp_path: Path) -> None:
    runs = []
    for flipped, seed in ((0, 0), (0, 1), (20, 2)):
        store = import_table(tmp_path, flipped)
        runs.append(
            fedarena.run(
                settings(store, name=f"run-seed{seed}", seed=seed), runs_folder=tmp_path / "runs", progress=False
            ).path
        )
    store = import_table(tmp_path, 20)
    runs.append(
        fedarena.run(
            settings(store, name="other", algorithm="fedprox"), runs_folder=tmp_path / "runs", progress=False
        ).path
    )
    found = load_runs(runs)
    assert len({run.label for run in found[:2]}) == 1
    assert len({run.label for run in found}) == 3
    assert conditions(found[0]) != conditions(found[3])
    assert conditions(found[2]) == conditions(found[3])
    (told,) = (sentence for sentence in cautions(found) if "changed between runs" in sentence)
    assert told.startswith("The federation changed between runs")
    assert "run-seed0 (1 more) and run-seed2 (1 more)" in told
    assert not any("changed between runs" in sentence for sentence in cautions(found[:2]))


def test_data_that_was_built_again_is_the_same(tmp_path: Path) -> None:
    base = {"federation": str(tmp_path / "store"), "rounds": 1, "cohort": 3, "model": "bag_of_words"}

    def suite(*seeds: int) -> Any:
        return run_suite(
            make_suite({"name": "few", "base": base, "seeds": list(seeds)}, {}), tmp_path / "runs", Observer()
        )

    import_texts(tmp_path, "here")
    before = Federation.open(tmp_path / "store")
    suite(0)
    import_texts(tmp_path, "there")
    after = Federation.open(tmp_path / "store")
    assert before.fingerprint != after.fingerprint
    assert before.content_fingerprint == after.content_fingerprint
    suite(0, 1)
    runs = load_runs([tmp_path / "runs" / "few"])
    fedarena.resume(runs[0].path, rounds=2, progress=False)
    assert len({run.label for run in runs}) == 1
    assert not any("changed between runs" in sentence for sentence in cautions(runs))
    assert conditions(runs[0]) == conditions(runs[1])
    # A run of an earlier version tells of the store alone.
    former = replace(runs[1], environment={**runs[1].environment, "seed": 2})
    del former.environment[CONTENT_FINGERPRINT]
    assert len({run.label for run in label_runs([*runs, former])}) == 1
    del runs[0].environment[CONTENT_FINGERPRINT]
    assert len({run.label for run in label_runs([runs[0], former])}) == 2  # nobody knows what changed


def test_data_that_settings_no_longer_fit_has_changed(tmp_path: Path) -> None:
    """Of fewer clients than a round needs nothing can be built, which must not hide that they are others."""
    base = {"federation": str(import_table(tmp_path, 0)), "rounds": 1, "cohort": 5}
    suite = make_suite({"name": "few", "base": base, "seeds": [0]}, {})
    run_suite(suite, tmp_path / "runs", Observer())
    import_table(tmp_path, 0, clients=3)
    with pytest.raises(BadInputError, match=r"1 of 1 run is stale .*: the federation 'table' changed since"):
        run_suite(suite, tmp_path / "runs", Observer())


def test_nothing_is_drawn_again_for_suites_that_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDARENA_CACHE", str(tmp_path / "cache"))
    base = {"federation": {"name": "synthetic", "clients": 5}, "rounds": 1, "cohort": 2}
    suite, more = (make_suite({"name": "few", "base": base, "seeds": seeds}, {}) for seeds in ([0], [0, 1]))
    run_suite(suite, tmp_path / "runs", Observer())
    shutil.rmtree(tmp_path / "cache")
    assert [run.state for run in plan_suite(suite, tmp_path / "runs")] == ["finished"]
    assert not (tmp_path / "cache").exists()
    assert [run.state for run in plan_suite(more, tmp_path / "runs")] == ["finished", "new"]
    assert (tmp_path / "cache").exists()


@pytest.mark.parametrize("part", ["fleet", "weights"])
def test_fleets_and_weights_that_changed_are_told(part: str, tmp_path: Path) -> None:
    run = fedarena.run(settings(import_table(tmp_path, 0), name="one"), runs_folder=tmp_path / "runs", progress=False)
    (one,) = load_runs([run.path])
    first, second = (
        replace(one, name=version, environment={**one.environment, f"{part}_fingerprint": version})
        for version in ("old", "new")
    )
    (told,) = (sentence for sentence in cautions([first, second]) if "changed between runs" in sentence)
    assert ("fleet" if part == "fleet" else "file of weights") in told
    other_model = replace(second, config={**second.config, "model": {"name": "another"}})
    assert any("changed between" in sentence for sentence in cautions([first, other_model])) == (part == "fleet")


def test_a_study_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    def tune(trials: int) -> Any:
        options = {"search": {"local.lr": [0.1, 1.0, 10.0]}, "trials": trials, "tune": {"part": "test"}}
        return fedarena.tune(settings(store), **options, runs_folder=tmp_path / "runs", progress=False)

    store = import_table(tmp_path, 0)
    tune(1)
    tune(2)
    import_table(tmp_path, 20)
    with pytest.raises(BadInputError, match="a study of other data: the federation changed since, so trials would not"):
        tune(3)
