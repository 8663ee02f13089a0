"""What is wrong with published files is said in one sentence, with exit code 2, and nothing half-built stays."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from generated_files import SOURCES
from picture_maps import put, write_table
from typer.testing import CliRunner
from wav_files import tone, wav

from fedarena.cli import main
from fedarena.data.by_client.packed import csv_rows
from fedarena.data.registry import CACHE_VARIABLE


def _spoil_map(folder: Path) -> None:
    (folder / "3.png").unlink()


def _two_groups(folder: Path) -> None:
    heading = ("client_id", "sample_path", "label_name", "label_id")
    for name in ("train", "test"):
        write_table(folder / "client_data_mapping" / f"{name}.csv", [heading, ("ann", "0.png", "", 0)])


def _beyond_classes(folder: Path) -> None:
    path = folder / "client_data_mapping" / "val.csv"
    path.write_text(path.read_text() + "0,0.png,a,62\n")


def _other_rate(folder: Path) -> None:
    put(folder / "speech_commands" / "bed" / "a0_nohash_0.wav", wav(tone(1, 100), 16_000))


def _broken_archive(folder: Path) -> None:
    for path in (folder / "blogs").iterdir():
        path.unlink()
    (folder / "blogs").rmdir()
    (folder / "blogs.zip").write_bytes(b"PK\3\4 and so on")


def _no_clients(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "stackoverflow_train.h5", "w") as file:
        file.create_group("examples")


def _code_in_vocabulary(folder: Path) -> None:
    put(folder / "vocab_tokens.txt", b"cos\nsystem\n(S'echo'\ntR.".replace(b"cos", b"\x80\x02cos"))


@pytest.mark.parametrize(
    ("name", "spoil", "complaint"),
    [
        ("fedscale_femnist", _spoil_map, "train.csv, line 5 names '3.png', but there is no file"),
        ("fedscale_femnist", _two_groups, "The client 'ann' is in two groups, in line 2 of"),
        ("fedscale_femnist", _beyond_classes, "val.csv, line 5 has the label 62; there are 62 classes"),
        ("google_speech", _other_rate, "a0_nohash_0.wav has 16,000 samples a second, not 8,000"),
        ("blog_corpus", _broken_archive, "blogs.zip is not a complete .zip"),
        ("stackoverflow", _no_clients, "stackoverflow_train.h5 has no clients"),
        ("stackoverflow", _code_in_vocabulary, "vocab_tokens.txt wants to run os.system, which was not done"),
    ],
)
def test_one_sentence_and_nothing_half_built(
    name: str, spoil: Callable[[Path], None], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    options = SOURCES[name][0](tmp_path / "raw")
    spoil(tmp_path / "raw")
    settings = [f"{option}={value}" for option, value in options.items()]
    result = CliRunner().invoke(main, ["data", "prepare", name, f"folder={tmp_path / 'raw'}", *settings])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert complaint in " ".join(result.stderr.split())
    assert len(result.stderr.strip().splitlines()) == 1
    assert not cache.exists() or not list(cache.iterdir())


def test_long_values_of_one_table_do_not_change_what_others_may_have(tmp_path: Path) -> None:
    usual = csv.field_size_limit()
    path = write_table(tmp_path / "long.csv", [["text"], ["a" * (usual + 1)]])
    rows = csv_rows(path)
    next(rows)
    assert csv.field_size_limit() == usual  # also while the rest is still to be read
    assert len(next(rows)[1][0]) == usual + 1
