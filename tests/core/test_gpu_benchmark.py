"""The GPU benchmark, as far as it can be tested without a GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_report  # noqa: E402
import gpu_speed  # noqa: E402


def test_the_page_is_what_was_measured() -> None:
    results = json.loads(gpu_report.MEASURED.read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "speed_gpu.md").read_text(encoding="utf-8") == gpu_report.render_page(results)
    measured = {row["case"] for row in results["rows"]}
    assert set(gpu_speed.CASES) <= measured <= {*gpu_speed.CASES, *gpu_speed.RAGGED}


def test_ratios_of_a_row() -> None:
    row = {"case": "some", "cohort": 2000, "ours": 1000.0, "limit": 2000.0, "one_at_a_time": 10.0}
    assert gpu_report._table([row]).splitlines()[-1] == "| some | 2,000 | 1,000 | 10 | – | 2,000 | 50% | 100x | – |"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*gpu_speed.CASES, *gpu_speed.OTHER_CASES])
def test_clients_fit_the_model(name: str) -> None:
    case = replace({**gpu_speed.CASES, **gpu_speed.OTHER_CASES}[name], cohort=2)
    data = gpu_speed.RandomClients(case)
    block = data.samples(np.array([1, 0]), "train")
    assert block.offsets.tolist() == [0, case.samples, 2 * case.samples]
    first = {column: values[case.samples : case.samples + 2] for column, values in block.columns.items()}
    for column, values in first.items():
        assert np.array_equal(values, data.columns[column][:2])
        assert np.array_equal(block.columns[column][:2], data.columns[column][case.samples : case.samples + 2])
    for task in (case.task(), case.plain_task()):
        batch = task.batch({column: torch.from_numpy(values) for column, values in first.items()})
        assert torch.isfinite(task.loss(dict(task.module.named_parameters()), batch))


@pytest.mark.parametrize("name", gpu_speed.RAGGED)
def test_ragged_clients_have_as_much_to_do(name: str) -> None:
    case = gpu_speed.RAGGED[name]
    data = gpu_speed.RandomClients(replace(case, cohort=64))
    assert 0.9 < data.sizes.mean() / case.samples < 1.1
    assert data.sizes.max() > 10 * np.median(data.sizes)
    block = data.samples(np.array([5, 3]), "train")
    begin, size = data.begins[3], data.sizes[3]
    for column, values in block.columns.items():
        assert np.array_equal(values[block.offsets[1] :], data.columns[column][begin : begin + size])
