"""`fedarena data list|prepare|verify|stats` as a user meets them: output, files, exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

from fedarena.cli import base, main
from fedarena.cli.data_stats import titles_of
from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.data import FEDERATIONS, ColumnSpec, TaskSpec
from fedarena.data.raw import download
from fedarena.data.raw.files import RawFile, RawFiles
from fedarena.data.registry import CACHE_VARIABLE, StoreBuild, cached_source
from fedarena.data.sources.sent140 import TABLES

NUMBERS = b"3 1 4 1 5 9"


@pytest.fixture(autouse=True)
def cache(_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, and an empty cache, because these tests are about what is in it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(base.screen, "_width", 300)  # so that lines stay lines
    return tmp_path / "cache"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> str:
    """A federation called like one of LEAF's that reads two files, of which one says how many samples clients have."""
    files = RawFiles(
        "femnist",
        "Counted",
        {
            "numbers": RawFile(
                "numbers.txt", f"sha256:{hashlib.sha256(NUMBERS).hexdigest()}", "http://nowhere.invalid/numbers.txt.gz"
            ),
            "names": RawFile("names.zip", unpacked="names"),
        },
        "ask their authors",
    )

    @cached_source(version=1, reads=files)
    def femnist(build: StoreBuild, *, folder: PathOption | None = None) -> None:
        """Clients with as many samples as a file says.

        More about it.
        """
        numbers = gzip.decompress(files.find(folder)["numbers"].read_bytes()).split()
        task = TaskSpec(kind="classification", classes=2)
        columns = {"x": ColumnSpec(dtype="float32"), "y": ColumnSpec(dtype="int64")}
        with build.writer(task=task, columns=columns) as writer:
            for client, number in enumerate(map(int, numbers)):
                build.progress(client / len(numbers), "Writing")
                samples = {"x": np.zeros(number, np.float32), "y": np.arange(number) % 2}
                writer.add_client(str(client), train=samples)

    monkeypatch.setitem(FEDERATIONS._parts, "femnist", femnist)
    return "femnist"


@pytest.fixture
def raw(cache: Path, published: str) -> Path:
    """Its files where they are looked for."""
    folder = cache / "raw" / "femnist"
    folder.mkdir(parents=True)
    (folder / "numbers.txt.gz").write_bytes(gzip.compress(NUMBERS))
    (folder / "names").mkdir()
    return folder


def call(*arguments: str, code: int = 0) -> str:
    """What a command prints; where it fails, a single sentence."""
    result = CliRunner().invoke(main, ["data", *arguments])
    assert result.exit_code == code, result.output
    if code == 2:
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr.strip().splitlines()) == 1
    return result.output


def section(text: str, name: str) -> list[str]:
    """The lines that `list` prints about a federation."""
    lines = text.splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.startswith(f"  {name} "))
    following = (n for n, line in enumerate(lines) if n > first and not line.startswith("   "))
    return [line.strip() for line in lines[first : next(following)]]


def everything_in(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_list_says_what_is_there(cache: Path, raw: Path) -> None:
    (raw / "names").rmdir()
    text = call("list")
    counted = section(text, "femnist")
    assert counted[0].endswith("Clients with as many samples as a file says.")
    assert counted[1] == f"files: numbers.txt.gz in {raw}, missing: names.zip"
    assert counted[2] == "not prepared"
    assert section(text, "digits")[1:] == ["no files needed", "not prepared"]
    assert section(text, "store")[1:] == ["files: yours, given as path=…"]
    assert f"Cache: {cache}" in text

    (raw / "numbers.txt.gz").unlink()
    missing = "missing: numbers.txt and names.zip; prepare --download fetches numbers.txt"
    assert section(call("list"), "femnist")[1] == f"files: none in {raw}, {missing}"


def test_list_adds_up_the_stores_of_a_federation(cache: Path) -> None:
    for clients in ("7", "8"):
        call("prepare", "digits", "partition=iid", f"partition.clients={clients}")
    size = sum(path.stat().st_size for path in cache.glob("digits-*/*"))
    assert section(call("list"), "digits")[-1] == f"prepared: 2 stores, {size / 1e3:.0f} kB"
    next(cache.glob("digits-*/federation.json")).write_text("[]")
    assert section(call("list"), "digits")[-1].startswith("prepared: 1 store,")


def test_prepare_builds_once(cache: Path) -> None:
    first = call("prepare", "synthetic", "clients=20")
    (store,) = cache.iterdir()
    assert first.startswith(f"Prepared: {store} has synthetic with 20 clients and ")
    assert "test sample" not in first
    before = everything_in(cache)
    assert call("prepare", "synthetic", "clients=20").startswith(f"Nothing to do: {store} has synthetic with 20")
    assert everything_in(cache) == before
    assert call("prepare", "synthetic", "clients=21").startswith("Prepared: ")


def test_prepare_from_files(raw: Path, cache: Path) -> None:
    text = call("prepare", "femnist")
    assert " has femnist with 6 clients and 23 samples, " in text
    assert text.endswith("; 6 of the clients have no test samples\n")
    assert "6 (6 train), of whom 6 have no test samples" in call("stats", "femnist")
    assert call("prepare", "femnist").startswith("Nothing to do: ")
    (raw / "numbers.txt.gz").write_bytes(gzip.compress(b"1 2"))  # other files, another store
    assert " with 2 clients and 3 samples, " in call("prepare", "femnist")


def test_prepare_without_files_says_what_to_put_where(published: str, cache: Path) -> None:
    text = call("prepare", "femnist", code=2)
    assert f"There is no folder {cache / 'raw' / 'femnist'} with the files of Counted" in text
    assert "it must hold numbers.txt, names.zip (or the folder names); ask their authors" in text
    assert text.strip().endswith("--download fetches numbers.txt")
    assert not cache.exists()


def test_prepare_downloads_what_is_known(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (raw / "numbers.txt.gz").unlink()
    asked = []

    def fetch(file: RawFile, folder: Path, progress: Callable[[int, int | None, str], None]) -> Path:
        asked.append(file.url)
        progress(5, 10, "Fetching numbers.txt.gz")
        path = folder / "numbers.txt.gz"
        path.write_bytes(gzip.compress(NUMBERS))
        return path

    monkeypatch.setattr(download, "download", fetch)
    text = call("prepare", "femnist", "--download")
    assert text.splitlines()[0] == f"Fetched {raw / 'numbers.txt.gz'}"
    assert text.splitlines()[1].startswith("Prepared: ")
    assert asked == ["http://nowhere.invalid/numbers.txt.gz"]


def test_prepare_downloads_what_it_can_and_says_what_it_cannot(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (raw / "names").rmdir()
    monkeypatch.setattr(download, "download", lambda *what: pytest.fail("numbers.txt.gz is there"))
    text = call("prepare", "femnist", "--download", code=2)
    assert f"{raw} lacks names.zip; it must hold" in text
    assert "--download fetches" not in text


def test_what_is_already_a_store_needs_no_preparation(cache: Path) -> None:
    call("prepare", "digits")
    (store,) = cache.iterdir()
    assert "there is nothing to prepare" in call("prepare", str(store), code=2)


def test_verify_a_store_by_name_and_by_folder(cache: Path) -> None:
    assert "digits is not prepared with these options" in call("verify", "digits", code=2)
    call("prepare", "digits")
    (store,) = cache.iterdir()
    said = f"Store {store}: clients.arrow and samples.arrow are as they were written (30 clients, 1,797 samples)\n"
    assert call("verify", "digits") == call("verify", str(store)) == said
    samples = store / "samples.arrow"
    content = bytearray(samples.read_bytes())
    content[len(content) // 2] ^= 1
    samples.write_bytes(content)
    for name in ("digits", str(store)):
        assert f"{samples} is damaged: its checksum is not the one of what was written" in call("verify", name, code=2)
    assert "is not a federation: it has no federation.json" in call("verify", ".", code=2)


def test_verify_files_says_what_was_checked_and_what_not(raw: Path, cache: Path) -> None:
    call("prepare", "femnist")
    lines = call("verify", "femnist").splitlines()
    assert lines[0].startswith("Store ")
    assert lines[1:] == [
        f"File {raw / 'numbers.txt.gz'}: as published (sha256)",
        f"File {raw / 'names'}: not checked, no checksum is known",
    ]
    (raw / "names").rmdir()
    (raw / "numbers.txt.gz").write_bytes(gzip.compress(b"1 2"))
    text = call("verify", "femnist", code=2)
    assert f"File names.zip: not in {raw}" in text
    assert f"Error: {raw / 'numbers.txt.gz'} is not the published numbers.txt: its checksum differs" in text


def test_verify_files_in_parts_and_unpacked(tmp_path: Path) -> None:
    comments = tmp_path / "comments"
    names = ["train/1.json", "train/2.json", "val/1.json", "test/1.json", "test/2.json"]
    tables = [tmp_path / "tweets" / name for name in TABLES]
    for path in (*(comments / name for name in names), *tables):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    lines = call("verify", "reddit", f"folder={comments}").splitlines()
    assert lines == [f"File {comments / name}: not checked, no checksum is known" for name in names]
    lines = call("verify", "sent140", f"folder={tables[0].parent}").splitlines()
    assert lines[0].startswith(f"File {tables[0]}: not checked, unpacked; the known checksum is that of training")
    assert lines[1] == f"File {tables[1]}: not checked, no checksum is known"


def test_verify_names_everything_that_is_damaged(raw: Path, cache: Path) -> None:
    call("prepare", "femnist")
    time = (raw / "numbers.txt.gz").stat()
    (raw / "numbers.txt.gz").write_bytes(b"x" * time.st_size)
    os.utime(raw / "numbers.txt.gz", ns=(time.st_atime_ns, time.st_mtime_ns))
    (store,) = cache.glob("femnist-*")
    (store / "clients.arrow").unlink()
    text = call("verify", "femnist", code=2)
    assert "clients.arrow" in text
    assert "numbers.txt.gz is damaged: it cannot be uncompressed" in text


def test_stats_of_one_federation(tmp_path: Path) -> None:
    text = call("stats", "digits", "partition=iid", "partition.clients=10", "-o", "a.html", "--json", "b/a.json")
    assert "in 45 pairs of 10 clients" in text
    assert "mean earth mover's distance" in text
    assert "Table 1" not in text
    assert text.splitlines()[-2:] == ["Numbers: b/a.json", "Picture: a.html"]
    assert Path("a.html").stat().st_size > 0
    (found,) = json.loads(Path("b/a.json").read_text())
    assert (found["num_clients"], found["leaf_table_1"]) == (10, None)
    assert found["source"]["options"]["partition"] == {"name": "iid", "clients": 10, "seed": 0}


def test_stats_show_what_leaf_published(raw: Path) -> None:
    published = "3,550 clients, 805,263 pictures, mean 226.83 ± 88.94"
    assert any("in LEAF's Table 1" in line and published in line for line in call("stats", "femnist").splitlines())
    assert Path("femnist.html").exists()
    text = call("stats", "femnist", "digits", "--json", "a.json")
    rows = {" ".join(line.split()[:2]): line.split() for line in text.splitlines() if line.startswith("  ")}
    sizes = [int(number) for number in NUMBERS.split()]
    skew = f"{scipy.stats.skew(sizes):.2f}"
    assert rows["femnist 6"] == ["femnist", "6", "23", "3.83", f"{np.std(sizes):.2f}", skew, "33.3", "%"]
    theirs = rows["LEAF's paper,"]
    assert theirs == ["LEAF's", "paper,", "pictures", "3,550", "805,263", "226.83", "88.94", "–", "–"]
    assert json.loads(Path("a.json").read_text())[0]["leaf_table_1"]["std"] == 88.94


def test_stats_of_several_each_with_its_own_options() -> None:
    text = call("stats", "digits", "partition=iid", "digits", "partition=shards", "--json", "a.json")
    assert "digits partition=iid" in text
    assert "digits partition=shards" in text
    assert text.splitlines()[-1] == "Picture: federations.html"
    iid, shards = json.loads(Path("a.json").read_text())
    assert iid["labels"]["pairs"]["distances"]["mean"] < 0.5 < shards["labels"]["pairs"]["distances"]["mean"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["stats", "partition=iid", "digits"], "'partition=iid' must follow the federation that it belongs to"),
        (["stats", "digit", "synthetic"], "did you mean 'digits'?"),
        (["stats", "digits", "synthetic", "-o", "a.bmp"], "a.bmp"),
        (["stats", "digits", "--json", "."], "Numbers cannot be written to '.', which is a folder"),
        (["stats", "digits", "synthetic", "--json", "."], "Numbers cannot be written to '.', which is a folder"),
        (["prepare", "digits", "partition=dirichle"], "did you mean 'dirichlet'?"),
        (["verify", "digits", "clients"], "'clients' is not a setting"),
    ],
)
def test_bad_input(arguments: list[str], sentence: str, cache: Path) -> None:
    assert sentence in call(*arguments, code=2)
    assert not cache.exists()


def test_titles_name_folders_only_where_they_matter() -> None:
    asked = [("leaf", ["folder=a", "kind=images"]), ("leaf", ["folder=b", "kind=images"]), ("femnist", ["folder=c"])]
    assert titles_of(asked) == ["leaf folder=a kind=images", "leaf folder=b kind=images", "femnist"]
    with pytest.raises(BadInputError, match="femnist folder=c was asked for twice"):
        titles_of([*asked, asked[-1]])
