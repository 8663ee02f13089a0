from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.metrics import summarize_clients, summary_names

CLIENTS = st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=60)


def test_golden() -> None:
    # ten clients with accuracies 0.0, 0.1, … 0.9 on 1, 2, … 10 samples
    counts = np.arange(1, 11)
    sums = counts * np.arange(10) / 10
    row = summarize_clients("accuracy", sums, counts, higher_is_better=True)
    assert row["accuracy"] == pytest.approx(sum(n * (n - 1) / 10 for n in range(1, 11)) / 55)
    assert row["accuracy_by_client"] == pytest.approx(0.45)
    assert [row[f"accuracy_p{p}"] for p in (10, 25, 50, 75, 90)] == pytest.approx([0.09, 0.225, 0.45, 0.675, 0.81])
    assert row["accuracy_worst_decile"] == 0.0
    assert summarize_clients("loss", sums, counts, higher_is_better=False)["loss_worst_decile"] == pytest.approx(0.9)


@given(CLIENTS, st.booleans())
def test_against_a_plain_loop(clients: list[tuple[int, float]], higher_is_better: bool) -> None:
    counts = np.array([n for n, _ in clients])
    values = [v for _, v in clients]
    row = summarize_clients("m", counts * np.array(values), counts, higher_is_better)
    assert row["m"] == pytest.approx(sum(n * v for n, v in clients) / sum(n for n, _ in clients))
    assert row["m_by_client"] == pytest.approx(sum(values) / len(values))
    worst = sorted(values, reverse=not higher_is_better)[: max(1, round(len(values) / 10))]
    assert row["m_worst_decile"] == pytest.approx(sum(worst) / len(worst))
    assert row["m_p10"] <= row["m_p25"] <= row["m_p50"] <= row["m_p75"] <= row["m_p90"]
    assert list(row) == summary_names("m")
