"""Programs that were compiled before: whether helpers of the compiler are worth starting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.fx import symbolic_trace

from fedarena.train import captured


def marks(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Path | None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    added, subtracted = symbolic_trace(lambda a, b: a + b), symbolic_trace(lambda a, b: a - b)
    two, three = [torch.ones(2)] * 2, [torch.ones(3)] * 2
    wide = [torch.ones(2, dtype=torch.float64)] * 2
    given = ((added, two), (added, two), (subtracted, two), (added, three), (added, wide))
    return [captured._mark(graph, tensors) for graph, tensors in given]


def test_computations_and_forms_of_tensors_are_told_apart(tmp_path: Path, monkeypatch) -> None:
    first, again, *others = marks(monkeypatch, tmp_path)
    assert first == again
    assert len({first, *others}) == 4
    assert first is not None
    assert tmp_path in first.parents


def test_without_a_folder_nothing_is_known(monkeypatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert captured._mark(symbolic_trace(lambda a: a), [torch.ones(2)]) is None


@pytest.mark.parametrize("before", [None, "0", "1"])
@pytest.mark.parametrize("wanted", [True, False])
def test_helpers_are_started_if_they_are_wanted_and_settings_are_put_back(before, wanted: bool, monkeypatch) -> None:
    from torch._inductor import config

    monkeypatch.delenv(captured.HELPERS, raising=False)
    if before is not None:
        monkeypatch.setenv(captured.HELPERS, before)
    threads = config.compile_threads
    with captured._helpers(wanted):
        assert os.environ[captured.HELPERS] == ("1" if wanted else "0")
        assert wanted or config.compile_threads == 1
    assert os.environ.get(captured.HELPERS) == before
    assert config.compile_threads == threads
