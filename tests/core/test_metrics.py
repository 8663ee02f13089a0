from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.metrics import summarize_values, summary_names

CLIENTS = st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=60)


def test_golden() -> None:
    # ten clients with accuracies 0.0, 0.1, … 0.9
    values = np.arange(10) / 10
    row = summarize_values("accuracy", values, 0.6, higher_is_better=True)
    assert row["accuracy"] == 0.6
    assert row["accuracy_by_client"] == pytest.approx(0.45)
    assert [row[f"accuracy_p{p}"] for p in (10, 25, 50, 75, 90)] == pytest.approx([0.09, 0.225, 0.45, 0.675, 0.81])
    assert row["accuracy_worst_decile"] == 0.0
    assert summarize_values("loss", values, None, higher_is_better=False)["loss_worst_decile"] == pytest.approx(0.9)


def test_clients_without_a_value_do_not_count() -> None:
    row = summarize_values("m", np.array([np.nan, 0.25, 0.75, np.nan]), float("nan"), higher_is_better=True)
    assert (row["m"], row["m_by_client"], row["m_p50"], row["m_worst_decile"]) == (None, 0.5, 0.5, 0.25)
    assert set(summarize_values("m", np.full(3, np.nan), None, higher_is_better=True).values()) == {None}


@given(CLIENTS, st.booleans())
def test_against_a_plain_loop(clients: list[tuple[int, float]], higher_is_better: bool) -> None:
    values = [v for _, v in clients]
    row = summarize_values("m", np.array(values), 0.5, higher_is_better)
    assert row["m"] == 0.5
    assert row["m_by_client"] == pytest.approx(sum(values) / len(values))
    worst = sorted(values, reverse=not higher_is_better)[: max(1, round(len(values) / 10))]
    assert row["m_worst_decile"] == pytest.approx(sum(worst) / len(worst))
    assert row["m_p10"] <= row["m_p25"] <= row["m_p50"] <= row["m_p75"] <= row["m_p90"]
    assert list(row) == summary_names("m")
