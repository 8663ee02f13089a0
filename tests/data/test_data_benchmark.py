"""The files that the benchmark of reading makes are in the published forms. How fast they are read is not for tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from fedarena.data import load_federation

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "data_files.py"


@pytest.fixture
def data_files() -> ModuleType:
    found = importlib.util.spec_from_file_location("data_files", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.KNOWN_WORDS = 500
    return module


def test_sizes_are_those_of_table_1(data_files: ModuleType) -> None:
    sizes = data_files.sizes_of_users(*data_files.SENT140, least=1)
    assert sizes.min() == 1
    assert sizes.mean() == pytest.approx(2.42, rel=0.02)
    assert sizes.std() == pytest.approx(4.71, rel=0.02)


def test_tweets(data_files: ModuleType, tmp_path: Path) -> None:
    tweets = data_files.write_tweets(tmp_path / "raw", 300, 2.42, 4.71)
    federation = load_federation("sent140", {"folder": str(tmp_path / "raw")})
    assert (federation.num_clients, federation.num_samples) == (300, tweets)


def test_comments(data_files: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "USERS_PER_FILE", 40)
    comments = data_files.write_comments(tmp_path / "raw", 100, 4, 5)
    assert len(list((tmp_path / "raw" / "val").iterdir())) == 3
    federation = load_federation("reddit", {"folder": str(tmp_path / "raw"), "sequence_length": 100})
    assert (federation.num_clients, federation.num_samples) == (100, comments)  # every comment is one long sequence
