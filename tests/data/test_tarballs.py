"""FedScale's tarballs are read as they are: what is in them is what their folders hold, and nothing stays behind."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from generated_files import SOURCES

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation, load_federation
from fedarena.data.raw.files import raw_files_of
from fedarena.data.registry import CACHE_VARIABLE, cache_folder

# Those whose tarball has all that is needed.
NAMES = [name for name in SOURCES if (files := raw_files_of(name)) is not None and files.tarballs]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is left behind is what these tests have left."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def pack(folder: Path, tarball: Path, inside: str) -> None:
    tarball.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(folder, inside)


def everything(federation: Federation) -> dict[str, bytes]:
    samples = [federation.samples(federation.clients(), part) for part in ("train", "validation", "test")]
    return {name: b"".join(np.asarray(s.columns[name]).tobytes() for s in samples) for name in samples[0].columns}


@pytest.mark.parametrize("name", NAMES)
def test_a_tarball_is_read_as_its_folder_is(name: str, tmp_path: Path) -> None:
    write, _ = SOURCES[name]
    options = write(tmp_path / "raw")
    tarball = tmp_path / "packed" / raw_files_of(name).tarballs[0]
    pack(tmp_path / "raw", tarball, tarball.name.split(".")[0])
    of_folder = load_federation(name, {**options, "folder": str(tmp_path / "raw")})
    of_tarball = load_federation(name, {**options, "folder": str(tarball.parent)})
    ids = [federation.client_ids(federation.clients()) for federation in (of_folder, of_tarball)]
    assert ids[0] == ids[1]
    assert everything(of_tarball) == everything(of_folder)
    assert not list(cache_folder().glob(".*"))


def test_a_tarball_that_is_damaged_or_dangerous_leaves_nothing_behind(tmp_path: Path) -> None:
    write, _ = SOURCES["fedscale_femnist"]
    write(tmp_path / "raw")
    tarball = tmp_path / "packed" / "femnist.tar.gz"
    pack(tmp_path / "raw", tarball, "femnist")
    tarball.write_bytes(tarball.read_bytes()[:-200])
    with pytest.raises(DamagedFileError, match=r"femnist\.tar\.gz is damaged: it cannot be unpacked"):
        load_federation("fedscale_femnist", {"folder": str(tarball.parent)})
    with tarfile.open(tarball, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside.txt"), io.BytesIO())
    with pytest.raises(BadInputError, match=r"femnist\.tar\.gz has a file '\.\./outside\.txt', which is not inside"):
        load_federation("fedscale_femnist", {"folder": str(tarball.parent)})
    (tmp_path / "raw" / "client_data_mapping" / "train.csv").write_text("client_id,sample_path\n1,none.png\n")
    pack(tmp_path / "raw", tarball, "femnist")
    with pytest.raises(BadInputError, match=r"train\.csv, line 2"):
        load_federation("fedscale_femnist", {"folder": str(tarball.parent)})
    assert not list(cache_folder().glob(".*"))
    assert not (cache_folder().parent / "outside.txt").exists()


def test_a_build_that_was_interrupted_finds_what_is_unpacked(tmp_path: Path) -> None:
    write, _ = SOURCES["fedscale_femnist"]
    options = {**write(tmp_path / "raw"), "folder": str(tmp_path / "packed")}
    pack(tmp_path / "raw", tmp_path / "packed" / "femnist.tar.gz", "femnist")

    def stop(fraction: float, text: str) -> None:
        if text == "Writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_federation("fedscale_femnist", options, stop)
    told: list[str] = []
    federation = load_federation("fedscale_femnist", options, lambda _, text: told.append(text))
    assert federation.num_samples > 0
    assert not any(text.startswith("Unpacking") for text in told)
    assert not list(cache_folder().glob(".*"))
