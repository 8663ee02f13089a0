from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedarena.data.statistics import describe
from fedarena.report import federation_figure
from fedarena.report.federation import MAX_LABELS


@pytest.fixture
def statistics(make_federation):
    """Builds statistics from the labels of each client."""

    def build(labels_of_clients: list[list[int]], classes: int):
        clients = {
            f"<{index}>": (np.zeros((len(labels), 1), np.float32), np.array(labels, dtype=np.int64))
            for index, labels in enumerate(labels_of_clients)
        }
        return describe(make_federation(clients, classes))

    return build


def test_bars_count_the_clients_of_each_size(statistics):
    labels = [[0] * size for size in (1, 1, 2, 5, 40)]
    found = statistics(labels, 2)
    bars = federation_figure(found).data[0]
    assert sum(bars.y) == 5
    assert bars.y[0] > 0, "empty bins at the ends are left out"
    assert bars.y[-1] > 0, "empty bins at the ends are left out"
    for height, name in zip(bars.y, bars.customdata, strict=True):
        low, _, high = name.partition("–")
        inside = range(int(low), int(high or low) + 1)
        # make_federation gives every client its samples twice: for training and for testing.
        assert height == sum(2 * len(client) in inside for client in labels)


def test_rows_are_shares_of_labels_all_clients_first(statistics):
    figure = federation_figure(statistics([[0, 0, 1], [2, 2, 2, 2]], 3))
    heat = figure.data[1]
    assert np.array(heat.z[0]) == pytest.approx([2 / 7, 1 / 7, 4 / 7])
    assert np.isnan(heat.z[1]).all()
    assert np.array(heat.z[2]) == pytest.approx([2 / 3, 1 / 3, 0])
    assert np.array(heat.z[3]) == pytest.approx([0, 0, 1])
    assert [row[0][0] for row in heat.customdata] == ["all clients", "", "client &lt;0&gt;", "client &lt;1&gt;"]
    assert list(figure.layout.yaxis2.ticktext) == ["all", "6", "8"]


def test_rare_labels_are_put_together(statistics):
    classes = MAX_LABELS + 20
    labels = [label for label in range(classes) for _ in range(label + 1)]
    figure = federation_figure(statistics([labels], classes))
    names, shares = figure.layout.xaxis2.ticktext, figure.data[1].z[0]
    assert len(names) == MAX_LABELS
    assert (names[0], names[-1]) == (str(classes - 1), "…")
    assert sum(shares) == pytest.approx(1)
    assert shares[-1] == pytest.approx(sum(range(1, 22)) / len(labels))


def test_white_space_can_be_seen(statistics):
    found = statistics([[0, 1, 2]], 3)
    found = replace(found, labels=replace(found.labels, names=(" ", "\n", "<a>")))
    assert list(federation_figure(found).layout.xaxis2.ticktext) == ["␣", "↵", "&lt;a&gt;"]
