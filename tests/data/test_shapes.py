"""Shapes: pictures that show what their label says, drawn again whenever they are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from fedarena.core.errors import BadInputError
from fedarena.data import load_federation
from fedarena.data.sources.shapes import SHAPES, _distances, draw


def pictures(**options) -> tuple[np.ndarray, np.ndarray]:
    federation = load_federation("shapes", {"clients": 4, "samples_per_client": 50, **options})
    found = federation.samples(federation.clients("all"))
    return found.columns["x"], found.columns["y"]


@pytest.mark.parametrize("size", [8, 28])
def test_size_classes_and_parts_are_as_asked(size: int) -> None:
    federation = load_federation("shapes", {"clients": 4, "samples_per_client": 50, "size": size, "classes": 5})
    assert federation.columns["x"].shape == (1, size, size)
    assert federation.task.label_names == ("stroke", "circle", "cross", "arc", "corner")
    everybody = federation.clients("all")
    assert federation.counts(everybody, "train").tolist() == [40] * 4
    assert federation.counts(everybody, "test").tolist() == [10] * 4
    assert set(federation.samples(everybody).columns["y"]) == set(range(5))


def test_the_seed_decides_and_clients_differ() -> None:
    x, y = pictures()
    other_x, _ = pictures(seed=1)
    assert (x != other_x).mean() > 0.5
    assert (x[:50] != x[50:100]).mean() > 0.5
    # a client's pictures do not depend on how many clients there are
    federation = load_federation("shapes", {"clients": 2, "samples_per_client": 50})
    assert np.array_equal(federation.samples([1]).columns["x"], x[50:100])
    assert np.array_equal(federation.samples([1]).columns["y"], y[50:100])


def test_distances_are_those_to_the_nearest_point_of_a_line() -> None:
    random = np.random.default_rng(0)
    segments, points = random.uniform(-1, 1, (3, 4, 2, 2)), random.uniform(-1, 1, (10, 2))
    steps = np.linspace(0, 1, 2001)[:, None]
    along = segments[:, :, None, 0] * (1 - steps) + segments[:, :, None, 1] * steps  # samples, segments, steps, 2
    apart = np.linalg.norm(along.reshape(3, -1, 1, 2) - points, axis=-1)
    np.testing.assert_allclose(_distances(segments, points), apart.min(1), atol=1e-3)


def test_what_is_drawn_looks_like_its_shape() -> None:
    """Without turning: a stroke is high and narrow, a circle has a hole around its middle, a tee hangs at its top."""
    random = np.random.default_rng(3)
    names = list(SHAPES)
    for _ in range(20):
        stroke, circle, tee = draw(np.array([names.index(n) for n in ("stroke", "circle", "tee")]), 64, 0, random)
        rows, columns = np.nonzero(stroke > 0.5)
        assert np.ptp(rows) > np.ptp(columns)
        rows, columns = np.nonzero(circle > 0.5)
        assert circle[round(rows.mean()), round(columns.mean())] < 0.5
        rows, _ = np.nonzero(tee > 0.5)
        assert rows.mean() < (rows.min() + rows.max()) / 2


def test_noise_is_as_large_as_asked() -> None:
    (clean, _), (noisy, _) = pictures(noise=0.0), pictures(noise=0.2)
    # of pixels in the middle between black and white, where nothing is cut off
    grey = (clean > 110) & (clean < 145)
    assert grey.sum() > 50
    assert np.std(noisy[grey].astype(float) - clean[grey]) == pytest.approx(0.2 * 255, rel=0.25)
    assert clean.min() == 0
    assert clean.max() == 255


def test_more_classes_than_shapes_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"federation\.classes"):
        load_federation("shapes", {"classes": len(SHAPES) + 1})


def test_the_data_does_not_change_by_accident() -> None:
    """Runs are compared over time by what they trained on."""
    x, y = pictures()
    assert y[:10].tolist() == [5, 11, 2, 3, 15, 4, 0, 9, 1, 6]
    assert int(x[0].sum()) == pytest.approx(8069, abs=10)  # sines may differ in the last bit
