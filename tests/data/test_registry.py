"""Sources are found by name, checked, built once, and shared between processes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import Field

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import FEDERATIONS, ColumnSpec, Federation, TaskSpec, cached_source, load_federation
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import CACHE_VARIABLE, StoreBuild, cache_folder
from fedarena.data.store.block_checksums import checksums_path
from warm_processes import WarmProcess

builds: list[dict[str, Any]] = []


@cached_source(version=1)
def counted(build: StoreBuild, *, samples: Annotated[int, Field(ge=1)] = 2, person: str = "ann") -> None:
    builds.append({"samples": samples, "person": person})
    build.progress(0.5, "half done")
    columns = {"x": ColumnSpec(dtype="float32"), "y": ColumnSpec(dtype="int64")}
    with build.writer(task=TaskSpec(kind="classification", classes=2), columns=columns) as writer:
        writer.add_client(person, train={"x": np.zeros(samples, np.float32), "y": np.zeros(samples, np.int64)})


FILES = RawFiles(
    "lengths", "Lengths", {"table": RawFile("table.txt"), "archive": RawFile("all.zip", unpacked="all")}, "ask around"
)


@cached_source(version=1, reads=FILES)
def lengths(build: StoreBuild, *, folder: str | None = None) -> None:
    counted.__wrapped__(build, samples=FILES.find(folder)["table"].stat().st_size)  # type: ignore[attr-defined]


COUNTED, LENGTHS = f"{__name__}:counted", f"{__name__}:lengths"


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


@pytest.mark.slow
def test_processes_that_build_together_agree(tmp_path: Path) -> None:
    code = (
        "from fedarena.data import load_federation;"
        "f = load_federation('synthetic', {'clients': 40}); f.verify(); print(f.path, f.fingerprint)"
    )
    processes = [WarmProcess([sys.executable, "-c", code]) for _ in range(3)]
    finished = [process.finish(timeout=120) for process in processes]
    assert [process.returncode for process in finished] == [0, 0, 0]
    assert len({process.stdout for process in finished}) == 1
    assert len(list(cache_folder().iterdir())) == 1


def test_a_damaged_store_in_the_cache_says_how_to_repair_it() -> None:
    path = load_federation(COUNTED).path
    (path / "samples.arrow").write_bytes(b"")
    with pytest.raises(DamagedFileError, match=rf"samples\.arrow.*Remove the folder .*{path.name}"):
        load_federation(COUNTED)


def test_a_store_in_the_place_of_another_is_refused() -> None:
    path, of_five = load_federation(COUNTED).path, load_federation(COUNTED, {"samples": 5}).path
    shutil.rmtree(path)
    shutil.copytree(of_five, path)
    with pytest.raises(DamagedFileError, match=rf"{path.name} is not .* other options \(samples\)\. Remove the folder"):
        load_federation(COUNTED)
    shutil.rmtree(path)
    shutil.copytree(load_federation("shapes", {"clients": 3}).path, path)
    with pytest.raises(DamagedFileError, match="of counted that it is called, but of another one"):
        load_federation(COUNTED)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A file, and an archive that was unpacked; everything is from the same second."""
    folder = tmp_path / "raw"
    (folder / "all" / "inside").mkdir(parents=True)
    for name in ("table.txt", "all/1.png", "all/inside/2.png", "all/inside/3.png"):
        (folder / name).write_text("some")
        set_time(folder / name, 1000)
    return folder


def set_time(path: Path, seconds: int) -> None:
    os.utime(path, (seconds, seconds))


def write_at(path: Path, text: str, seconds: int) -> None:
    path.write_text(text)
    set_time(path, seconds)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: write_at(raw / "table.txt", "more", 1001),
        lambda raw: write_at(raw / "table.txt", "longer", 1000),
        lambda raw: write_at(raw / "all/inside/2.png", "more", 1001),
        lambda raw: write_at(raw / "all/inside/2.png", "longer", 1000),
        lambda raw: write_at(raw / "all/inside/4.png", "some", 1000),
        lambda raw: (raw / "all/inside/2.png").unlink(),
        lambda raw: (raw / "all/inside/2.png").rename(raw / "all/inside/02.png"),
        lambda raw: (raw / "all/inside").rename(raw / "all/outside"),
        lambda raw: (raw / "all/1.png").rename(raw / "all/inside/1.png"),
    ],
    ids=["time", "size", "time-inside", "size-inside", "new", "gone", "renamed", "folder-renamed", "moved"],
)
def test_changed_files_are_built_again(raw: Path, change: Callable[[Path], object]) -> None:
    first = load_federation(LENGTHS, {"folder": str(raw)})
    assert load_federation(LENGTHS, {"folder": str(raw)}).path == first.path
    assert len(builds) == 1
    change(raw)
    assert load_federation(LENGTHS, {"folder": str(raw)}).path != first.path
    assert len(builds) == 2


def test_what_does_not_matter_is_not_built_again(raw: Path) -> None:
    first = load_federation(LENGTHS, {"folder": str(raw)})
    set_time(raw / "all", 1)
    (raw / "all" / ".DS_Store").write_text("left by a file manager")
    (raw / "all").rename(raw.with_name("elsewhere"))
    (raw / "all").symlink_to(raw.with_name("elsewhere"))
    assert load_federation(LENGTHS, {"folder": str(raw)}).path == first.path


@pytest.mark.parametrize("gone", ["table.txt", "all", "."])
def test_what_was_built_last_is_opened_when_files_are_gone(raw: Path, gone: str) -> None:
    first = load_federation(LENGTHS, {"folder": str(raw)})
    write_at(raw / "table.txt", "longer", 1000)
    second = load_federation(LENGTHS, {"folder": str(raw)})
    shutil.rmtree(raw / gone) if (raw / gone).is_dir() else (raw / gone).unlink()
    for newest, other in ((first, second), (second, first)):
        for store, seconds in ((newest, 2000), (other, 1000)):
            set_time(store.path / "federation.json", seconds)
            set_time(store.path, seconds)
        checksums_path(other.path / "clients.arrow").unlink()
        other.verify()  # which makes them anew, so that this folder is the one that changed last
        assert load_federation(LENGTHS, {"folder": str(raw)}).path == newest.path
    assert len(builds) == 2
    shutil.rmtree(first.path)
    shutil.rmtree(second.path)
    with pytest.raises(
        BadInputError, match="Lengths" if gone == "." else r"raw lacks (table\.txt|all\.zip); it must hold"
    ):
        load_federation(LENGTHS, {"folder": str(raw)})


def test_archives_are_not_looked_for_with_another_compression(raw: Path) -> None:
    shutil.rmtree(raw / "all")
    (raw / "all.zip.gz").write_bytes(b"")
    (raw / "table.txt").rename(raw / "table.txt.gz")
    assert FILES.found(str(raw)) == {"table": raw / "table.txt.gz"}


def test_the_cache_is_in_the_users_cache_folder_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder().name == "fedarena"
    monkeypatch.setenv(CACHE_VARIABLE, "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else")


def test_all_sources_are_registered() -> None:
    assert {"chitchat", "digits", "synthetic", "store"} <= set(FEDERATIONS.names())
