"""Pictures of what samplers do: every client is drawn where it belongs."""

from __future__ import annotations

import numpy as np

from fedarena.display.fleets.samplers import few_devices_figure, few_states_figure, grid_figure
from fedarena.fleet import Availability


def test_a_box_and_dots_for_every_cell_of_the_grid() -> None:
    grid = {"K = 1": {"0.1": np.arange(11.0), "0.4": np.arange(21.0)}, "K = 2": {"0.1": np.full(5, 3.0)}}
    figure = grid_figure("Speeds", "sigma", "MB/s", grid)
    boxes = [trace for trace in figure.data if trace.type == "box"]
    assert [(box.xaxis, box.median[0], box.q1[0]) for box in boxes] == [("x", 5, 2.5), ("x", 10, 5), ("x2", 3, 3)]
    dots = [trace for trace in figure.data if trace.type == "scatter"]
    assert [len(trace.y) for trace in dots] == [11, 21, 5]
    assert all(abs(trace.x - round(float(np.mean(trace.x)))).max() < 0.3 for trace in dots)
    assert [note.text for note in figure.layout.annotations] == ["K = 1", "K = 2"]


def test_clients_with_the_same_device_have_the_same_colour() -> None:
    speeds = np.array([2.0, 5.0, 2.0, 3.0])
    figure = few_devices_figure("Devices", np.arange(1.0, 9.0), {"K": {"a": speeds, "b": speeds + 1}}, "MB/s")
    dots = [trace for trace in figure.data if len(trace.x) == 4]
    assert [trace.x.tolist() for trace in dots] == [[2, 5, 2, 3], [3, 6, 3, 4]]
    colours = dots[0].marker.color
    assert colours[0] == colours[2]
    assert len(set(colours)) == 3
    assert figure.layout.xaxis.range[0] < 1 < 8 < figure.layout.xaxis.range[1]


def test_bars_repeat_with_the_period_and_end_with_the_days_shown() -> None:
    day = 86_400
    states = Availability.from_intervals([0, 1], [0, day], [day // 2, 4 * day], [2 * day, 10 * day])
    figure = few_states_figure("States", {"rank": {"alpha": states.take([0, 1, 0])}})
    first, second, third = figure.data
    assert first.base.tolist() == [0, 2, 4]
    assert first.x.tolist() == [0.5, 0.5, 0.5]
    assert (second.base.tolist(), second.x.tolist()) == ([1], [3])
    assert first.marker.color == third.marker.color != second.marker.color
    late = Availability.from_intervals([0], [4 * day], [9 * day], [10 * day])
    only = few_states_figure("States", {"rank": {"alpha": late}}).data[0]
    assert (only.base.tolist(), only.x.tolist()) == ([4], [1])
