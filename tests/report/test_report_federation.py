from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedarena.data.statistics.describe import describe
from fedarena.display import comparison_figure, federation_figure
from fedarena.display.federations.labels import MAX_LABELS
from fedarena.display.federations.picture import MOST_NAMED


@pytest.fixture
def statistics(make_federation):
    """Builds statistics from the labels of each client, whose samples are numbers or pictures."""

    def build(labels_of_clients: list[list[int]], classes: int, shape: tuple[int, ...] = (1,), name: str = "made"):
        clients = {
            f"<{index}>": (np.full((len(labels), *shape), index, np.float32), np.array(labels, dtype=np.int64))
            for index, labels in enumerate(labels_of_clients)
        }
        return describe(make_federation(clients, classes, name))

    return build


def drawn(figure, axis: str) -> list:
    """What is on the axes of a panel: 1 client sizes, 2 quantity skew, 3 and 4 labels, 5 pairs, 6 pictures."""
    return [trace for trace in figure.data if (trace.yaxis or "y") == f"y{axis}"]


def panels(figure) -> list[tuple[float, float]]:
    """Where the plots are, from top to bottom."""
    axes = [axis for axis in figure.layout.to_plotly_json() if axis.startswith("yaxis")]
    return sorted((figure.layout[axis].domain for axis in axes), reverse=True)


def test_bars_count_the_clients_of_each_size(statistics):
    labels = [[0] * size for size in (1, 1, 2, 5, 40, *[41] * MOST_NAMED)]
    found = statistics(labels, 2)
    (bars,) = drawn(federation_figure(found), "")
    assert sum(bars.y) == 5 + MOST_NAMED
    assert bars.y[0] > 0, "empty bins at the ends are left out"
    assert bars.y[-1] > 0, "empty bins at the ends are left out"
    for height, name in zip(bars.y, bars.customdata, strict=True):
        low, _, high = name.partition("–")
        inside = range(int(low), int(high or low) + 1)
        # make_federation gives every client its samples twice: for training and for testing.
        assert height == sum(2 * len(client) in inside for client in labels)


def test_bars_are_named_by_sizes_that_clients_have(statistics):
    sizes = [61, 100, 147, 148, 152, 303, 997, *range(400, 400 + MOST_NAMED)]
    figure = federation_figure(statistics([[0] * size for size in sizes], 2))
    (bars,) = drawn(figure, "")
    named = {int(text.replace(",", "")) for text in figure.layout.xaxis.ticktext}
    assert named <= {2 * size for size in sizes}
    assert min(named) == 2 * 61
    assert len(named) >= 4
    heights = dict(zip(bars.x, bars.y, strict=True))
    assert all(heights[place] for place in figure.layout.xaxis.tickvals), "no name where there is no bar"
    for height, name in zip(bars.y, bars.customdata, strict=True):
        if height:
            assert {int(end.replace(",", "")) for end in name.split("–")} <= {2 * size for size in sizes}


def test_few_clients_are_bars_with_their_names(statistics):
    figure = federation_figure(statistics([[0] * size for size in (7, 3, 5)], 2))
    (bars,) = drawn(figure, "")
    assert list(bars.x) == [6, 10, 14]
    assert list(bars.text) == ["&lt;1&gt;", "&lt;2&gt;", "&lt;0&gt;"]


def test_the_curve_of_skew_begins_with_the_largest_client(statistics):
    equal, curve = drawn(federation_figure(statistics([[0] * size for size in (1, 1, 2, 6)], 2)), "2")
    assert list(equal.x) == list(equal.y) == [0, 1]
    assert list(curve.x) == [0, 0.25, 0.5, 0.75, 1]
    assert list(curve.y) == pytest.approx([0, 0.6, 0.8, 0.9, 1])


def test_rows_are_shares_of_labels_all_clients_first(statistics):
    figure = federation_figure(statistics([[0, 0, 1], [2, 2, 2, 2]], 3))
    (bars,), (heat,) = drawn(figure, "3"), drawn(figure, "4")
    assert list(bars.y) == [4, 2, 8]
    assert np.array(heat.z[0]) == pytest.approx([2 / 7, 1 / 7, 4 / 7])
    assert np.isnan(heat.z[1]).all()
    assert np.array(heat.z[2]) == pytest.approx([2 / 3, 1 / 3, 0])
    assert np.array(heat.z[3]) == pytest.approx([0, 0, 1])
    assert [row[0][0] for row in heat.customdata] == ["all clients", "", "client &lt;0&gt;", "client &lt;1&gt;"]
    assert list(figure.layout.yaxis4.ticktext) == ["all", "&lt;0&gt;", "&lt;1&gt;"]
    many = federation_figure(statistics([[0]] * MOST_NAMED + [[1, 1]], 2, name="many"))
    assert list(many.layout.yaxis4.ticktext) == ["all", *["2"] * 5, "4"]


def test_pairs_of_clients_are_bars_and_chance_is_a_line(statistics):
    found = statistics([[0, 0], [0], [1] * 4], 2)
    bars, chance = drawn(federation_figure(found), "5")
    assert bars.y[0] == pytest.approx(1 / 3)  # the first two are alike
    assert bars.y[-1] == pytest.approx(2 / 3)  # neither has anything in common with the third
    assert sum(chance.y) == pytest.approx(1)
    assert list(chance.y) != list(bars.y)


def test_pictures_are_compared_with_the_same_dealt_at_random(statistics):
    found = statistics([[0, 0], [0, 0], [0, 0]], 2, shape=(1, 2, 2))
    equal, chance, real = drawn(federation_figure(found), "6")
    # One client is black, one grey, one white: the grey one is nearer to all.
    assert (real.x[0], real.x[-1]) == pytest.approx((1 / 3, 1 / 2), abs=0.01)
    assert np.mean(chance.x) < np.mean(real.x)
    assert (real.y[0], real.y[-1]) == (0, 1)
    assert list(equal.x) == list(chance.x)  # they do have equal sizes


def test_panels_follow_each_other_and_only_those_that_there_is_something_for(statistics):
    with_pictures = federation_figure(statistics([[0], [1]], 2, shape=(1, 2, 2), name="a"))
    numbers = federation_figure(statistics([[0], [1]], 2, name="b"))
    alone = federation_figure(statistics([[0]], 2, name="c"))
    for figure, number in ((with_pictures, 6), (numbers, 5), (alone, 4)):
        places = panels(figure)
        assert len(places) == number
        assert all(upper[0] > lower[1] for upper, lower in pairwise(places))
        assert (places[-1][0], places[0][1] < 1) == (pytest.approx(0, abs=1e-9), True)
    assert alone.layout.height < numbers.layout.height < with_pictures.layout.height


def test_federations_side_by_side(statistics):
    one, other = statistics([[0], [1, 1]], 2, name="a"), statistics([[0], [1]], 2, shape=(1, 2, 2), name="b")
    figure = comparison_figure({"a <b>": one, "other": other})
    first, second = drawn(figure, "")
    assert (first.name, second.name) == ("a &lt;b&gt;", "other")
    assert first.line.color != second.line.color
    assert list(second.y) == pytest.approx(list(second.x))  # equal sizes
    for pairs in drawn(figure, "2"):
        assert set(pairs.x) == {1}  # nothing in common
        assert (pairs.y[0], pairs.y[-1]) == (0, 1)
    assert len(drawn(figure, "3")) == 1
    assert len(panels(comparison_figure({"a": one}))) == 2


def test_rare_labels_are_put_together(statistics):
    classes = MAX_LABELS + 20
    labels = [label for label in range(classes) for _ in range(label + 1)]
    figure = federation_figure(statistics([labels], classes))
    names, shares = figure.layout.xaxis4.ticktext, drawn(figure, "4")[0].z[0]
    assert len(names) == MAX_LABELS
    assert (names[0], names[-1]) == (str(classes - 1), "…")
    assert sum(shares) == pytest.approx(1)
    assert shares[-1] == pytest.approx(sum(range(1, 22)) / len(labels))


def test_white_space_can_be_seen(statistics):
    found = statistics([[0, 1, 2]], 3)
    found = replace(found, labels=replace(found.labels, names=(" ", "\n", "<a>")))
    assert list(federation_figure(found).layout.xaxis4.ticktext) == ["␣", "↵", "&lt;a&gt;"]


def test_long_names_are_turned_and_have_room(statistics):
    found = statistics([[0, 1, 2], [1]], 12)
    short = federation_figure(replace(found, labels=replace(found.labels, names=tuple("abcdefghijkl"))))
    names = ("a name that is much longer than the others", *(f"label {index}" for index in range(11)))
    long = federation_figure(replace(found, labels=replace(found.labels, names=names)))
    assert (short.layout.xaxis4.tickangle, long.layout.xaxis4.tickangle) == (0, -90)
    assert long.layout.xaxis4.ticktext[0] == "a name that is much…"
    assert long.layout.height > short.layout.height
