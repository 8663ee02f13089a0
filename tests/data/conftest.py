from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from own_drawings import CHARACTERS, DRAWERS, drawing, save
from store_oracle import PlainClient, PlainFederation

from fedarena.data import ColumnSpec, TaskSpec
from fedarena.data.registry import CACHE_VARIABLE


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache(built_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Federations are built in a folder of the test session, never in the user's cache."""
    monkeypatch.setenv(CACHE_VARIABLE, str(built_once))


@pytest.fixture
def plain() -> PlainFederation:
    """Five clients with 0, 3, 6, 9 and 12 samples; their rows straddle the batches."""
    random = np.random.default_rng(0)
    columns = {"x": ColumnSpec(dtype="float32", shape=(2, 3)), "y": ColumnSpec(dtype="int64")}
    clients = [
        PlainClient(
            id=f"client-{number}",
            group="train",
            parts={
                part: {
                    "x": random.standard_normal((number, 2, 3)).astype(np.float32),
                    "y": random.integers(0, 4, size=number),
                }
                for part in ("train", "validation", "test")
            },
            attributes={"city": f"city {number % 2}"},
        )
        for number in range(5)
    ]
    task = TaskSpec(kind="classification", classes=4)
    return PlainFederation(task, columns, {"city": "string"}, clients, {"rows_per_batch": 4, "clients_per_batch": 2})


@pytest.fixture
def store(plain: PlainFederation, tmp_path: Path) -> Path:
    path = tmp_path / "store"
    plain.write(path)
    return path


@pytest.fixture
def drawings(tmp_path: Path) -> Path:
    """Two drawings of each character by each drawer, as folders of the form client/label."""
    folder = tmp_path / "drawings"
    for number, (drawer, character, copy) in enumerate((d, c, n) for d in DRAWERS for c in CHARACTERS for n in "12"):
        save(folder / drawer / character / f"{copy}.png", drawing(number))
    (folder / "readme.txt").write_text("not a picture")
    return folder
