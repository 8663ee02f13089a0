from __future__ import annotations

import pytest
from rich.console import Console

from fedarena.display.terminal import scores_tables

LONG = "fedavg federation=digits partitioner=dirichlet alpha=0.1 lr=0.05 batch_size=16 mu="


def shown(runs, width):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(*scores_tables(runs, width))
    return capture.get()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_long_labels_leave_room_for_the_accuracy(make_run, width):
    runs = [make_run(f"{LONG}{mu}", final_metrics={"accuracy": value}) for mu, value in ((1, 0.4321), (2, 0.5678))]
    text = shown(runs, width)
    assert [line.split()[0] for line in text.splitlines() if "0.432" in line or "0.568" in line] == ["fedavg", "fedavg"]
    assert "accuracy" in text
    assert "status" not in text
    if width < len(LONG):
        assert "…" in text
    assert "mu=1" in text
    assert "mu=2" in text


def test_an_unfinished_run_always_shows_its_status(make_run):
    runs = [make_run(LONG, 0, final_metrics={"accuracy": 0.4321}), make_run(LONG, 1, stop_after=9, status="diverged")]
    text = shown(runs, 60)
    assert "1 finished and 1 diverged" in text
    assert "0.432" in text


def test_short_labels_are_whole_and_columns_come_by_importance(comparison):
    narrow, wide = shown(comparison, 60), shown(comparison, 240)
    assert all(label in narrow for label in ("fedavg", "fedprox", "fedyogi"))
    assert "…" not in narrow
    assert "clients/s" not in narrow
    assert all(title in wide for title in ("seeds", "traffic", "clients/s"))
