"""The files that the benchmark of building FLAIR makes are in the published form, with its numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from flair_files import load

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "flair_generator.py"


@pytest.fixture(scope="module")
def made_up() -> ModuleType:
    found = importlib.util.spec_from_file_location("flair_generator", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_sizes_are_about_the_published_ones(made_up: ModuleType) -> None:
    sizes = made_up.sizes_of_users(51_414, 429_078)
    assert sizes.sum() == 429_078
    assert sizes.min() == 1
    assert 2_000 < sizes.max() <= 4_151
    assert 1 <= np.median(sizes) <= 3
    assert 30 < sizes.std() < 60


@pytest.mark.parametrize("archives", [0, 3])
def test_a_federation_can_be_built(made_up: ModuleType, tmp_path: Path, archives: int) -> None:
    users = made_up.write_flair(tmp_path / "raw", 300, 8, archives)
    federation = load(tmp_path / "raw", max_samples=None)
    assert (federation.num_clients, federation.num_samples) == (users, 300)
    assert federation.columns["x"].shape == (3, 8, 8)
    assert len(federation.clients("train")) > len(federation.clients("test")) > 0
    counts = dict(zip(federation.task.label_names or (), federation.label_counts, strict=True))
    assert counts["structure"] > counts["food"] > counts["fire"]
