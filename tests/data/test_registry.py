"""Sources are found by name, checked, built once, and shared between processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field

from fedarena.data import FEDERATIONS, ColumnSpec, Federation, TaskSpec, cached_source, load_federation
from fedarena.data.registry import CACHE_VARIABLE, StoreBuild, cache_folder
from fedarena.errors import BadInputError, DamagedFileError

builds: list[dict[str, Any]] = []


@cached_source(version=1)
def counted(build: StoreBuild, *, samples: Annotated[int, Field(ge=1)] = 2, person: str = "ann") -> None:
    builds.append({"samples": samples, "person": person})
    build.progress(0.5, "half done")
    columns = {"x": ColumnSpec(dtype="float32"), "y": ColumnSpec(dtype="int64")}
    with build.writer(task=TaskSpec(kind="classification", classes=2), columns=columns) as writer:
        writer.add_client(person, train={"x": np.zeros(samples, np.float32), "y": np.zeros(samples, np.int64)})


COUNTED = f"{__name__}:counted"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    builds.clear()


def test_a_store_is_built_once_for_each_set_of_options() -> None:
    first = load_federation(COUNTED)
    assert load_federation(COUNTED, {"samples": 2}).path == first.path  # the default, said aloud
    assert load_federation(COUNTED, {"samples": 3}).path != first.path
    assert builds == [{"samples": 2, "person": "ann"}, {"samples": 3, "person": "ann"}]
    assert first.source.model_dump() == {
        "name": "counted",
        "version": 1,
        "options": {"samples": 2, "person": "ann"},
    }
    assert first.name == "counted"
    assert first.path.name.startswith("counted-")


def test_another_version_is_built_anew() -> None:
    first = load_federation(COUNTED)
    newer = cached_source(version=2)(counted.__wrapped__)  # type: ignore[attr-defined]
    second = newer(lambda fraction, text: None, samples=2, person="ann")
    assert second.path != first.path
    assert len(builds) == 2


def test_progress_is_reported_while_building_only() -> None:
    reports: list[tuple[float, str]] = []
    load_federation(COUNTED, {}, lambda fraction, text: reports.append((fraction, text)))
    assert reports == [(0.5, "half done")]
    load_federation(COUNTED, {}, lambda fraction, text: reports.append((fraction, text)))
    assert len(reports) == 1


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (COUNTED, {"samples": 0}, "samples"),
        (COUNTED, {"samples": "many"}, "samples"),
        (COUNTED, {"sampels": 3}, "did you mean 'samples'"),
        ("digts", {}, "did you mean 'digits'"),
        ("store", {}, "path"),
        ("store", {"path": "/no/such/folder"}, "/no/such/folder"),
        ("chitchat", {"sequence_length": 0}, "sequence_length"),
        ("chitchat", {"split": "by_people"}, "split"),
        ("chitchat", {"train_fraction": 0.9, "validation_fraction": 0.2}, "validation_fraction"),
        ("digits", {"partition": "dirichlett"}, "did you mean 'dirichlet'"),
        ("digits", {"partition": {"name": "iid", "clients": 0}}, "clients"),
        ("digits", {"partition": {"name": "iid", "clients": 5000}}, "1797 samples are not enough"),
        ("synthetic", {"cluster_probabilities": [0.5, 0.6]}, "add up to 1"),
        ("synthetic", {"cluster_probabilities": []}, "cluster_probabilities"),
        ("synthetic", {"cluster_probabilities": [1.5, -0.5]}, "above 0"),
        ("synthetic", {"variant": "mine"}, "variant"),
    ],
)
def test_bad_names_and_options_get_a_sentence(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        load_federation(name, options)
    assert not cache_folder().exists() or list(cache_folder().iterdir()) == []


def test_a_folder_that_is_already_a_store(store: Path) -> None:
    opened = load_federation("store", {"path": str(store)})
    assert opened.fingerprint == Federation.open(store).fingerprint
    assert not cache_folder().exists()


def test_somebody_else_builds_at_the_same_time() -> None:
    """The other one finishes between our look into the cache and our end."""

    @cached_source(version=1)
    def slow(build: StoreBuild, *, samples: int = 1) -> None:
        counted.__wrapped__(build, samples=samples, person="theirs")  # type: ignore[attr-defined]
        build.progress(1.0, "now ours")
        counted.__wrapped__(build, samples=samples, person="ours")  # type: ignore[attr-defined]

    federation = slow(lambda fraction, text: None, samples=1)
    assert federation.client_ids([0]) == ["theirs"]
    assert [path.name for path in cache_folder().iterdir()] == [federation.path.name]


def test_processes_that_build_together_agree(tmp_path: Path) -> None:
    code = (
        "from fedarena.data import load_federation;"
        "f = load_federation('synthetic', {'clients': 40}); f.verify(); print(f.path, f.fingerprint)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=120)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(answers) == 1
    assert len(list(cache_folder().iterdir())) == 1


def test_a_damaged_store_in_the_cache_says_how_to_repair_it() -> None:
    path = load_federation(COUNTED).path
    (path / "samples.arrow").write_bytes(b"")
    with pytest.raises(DamagedFileError, match=rf"samples\.arrow.*Remove the folder .*{path.name}"):
        load_federation(COUNTED)


def test_the_cache_is_in_the_users_cache_folder_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder().name == "fedarena"
    monkeypatch.setenv(CACHE_VARIABLE, "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else")


def test_all_sources_are_registered() -> None:
    assert {"chitchat", "digits", "synthetic", "store"} <= set(FEDERATIONS.names())
