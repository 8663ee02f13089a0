"""Earth mover's distances equal SciPy's, and tell chance from pictures that differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec
from fedarena.data.statistics import pixels
from fedarena.data.statistics.pixels import describe_pixels, has_images

Make = Callable[..., Federation]


def described(federation: Federation, label: int) -> pixels.PixelStatistics | None:
    return describe_pixels(federation, federation.counts(federation.clients()), label)


def pictures(means: list[float], images: list[int], dtype: str = "uint8") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients whose pictures are of their own brightness; every other picture has label 1 and is inverted."""
    random = np.random.default_rng(0)
    clients = {}
    for number, (mean, count) in enumerate(zip(means, images, strict=True)):
        x = np.clip(random.normal(mean, 30, size=(count, 3, 4, 5)), 0, 255).round()
        y = np.arange(count) % 2
        x[y == 1] = 255 - x[y == 1]
        clients[f"client {number}"] = ((x if dtype == "uint8" else x / 255).astype(dtype), y)
    return clients


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("chunk", [1, 1 << 21])
def test_distances_equal_those_of_scipy(
    make_federation: Make, monkeypatch: pytest.MonkeyPatch, dtype: str, chunk: int
) -> None:
    monkeypatch.setattr(pixels, "CHUNK_PIXELS", chunk)
    clients = pictures([20, 120, 130, 250], [3, 8, 1, 11], dtype)
    found = described(make_federation(clients, 2), label=1)
    scale = 255 if dtype == "uint8" else 1
    of_client = [x[y == 1].ravel() / scale for x, y in clients.values()]
    everything = np.concatenate(of_client)
    expected = [wasserstein_distance(own, everything) for own in of_client if len(own)]
    assert found.distances.mean == pytest.approx(np.mean(expected), abs=1e-6)
    assert found.distances.quantiles[[0, 50, 100]] == pytest.approx(np.percentile(expected, [0, 50, 100]), abs=1e-6)
    # make_federation gives every client its samples twice: for training and for testing.
    assert (found.label, found.clients, found.images) == (1, 3, 2 * sum(np.sum(y) for _, y in clients.values()))


def test_chance_deals_out_the_same_pictures(make_federation: Make) -> None:
    alike = described(make_federation(pictures([100] * 30, [2, 40] * 15), 2, "alike"), label=0)
    assert alike.distances.mean == pytest.approx(alike.distances_by_chance.mean, rel=0.3)
    assert alike.distances_of_equal_sizes.mean < alike.distances_by_chance.mean  # small clients differ by chance
    apart = described(make_federation(pictures(list(range(0, 240, 8)), [2, 40] * 15), 2, "apart"), label=0)
    assert apart.distances.mean > 2 * apart.distances_by_chance.mean


def test_dealing_to_equal_sizes_gives_every_picture_to_somebody() -> None:
    """One picture each of five levels, to two clients: whoever has three of them is nearer to all."""
    histograms = np.eye(256, dtype=np.int32)[[0, 10, 20, 30, 40]]
    found = pixels.pixel_distances(histograms, np.array([3, 2]))
    everything = [0, 10, 20, 30, 40]
    expected = [wasserstein_distance(own, everything) / 255 for own in (everything[:3], everything[3:])]
    assert found == pytest.approx(expected)


def test_of_many_pictures_some_of_many_clients_are_looked_at(
    make_federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation(pictures([100] * 60, [20] * 60), 2)  # 20 of each label, half of them for testing
    monkeypatch.setattr(pixels, "MAX_IMAGES", 100)
    found = described(federation, label=0)
    assert (found.clients, found.images) == (20, 100)
    monkeypatch.setattr(pixels, "MAX_BYTES", 40 * 60)
    assert described(federation, label=0).images == 40
    monkeypatch.setattr(pixels, "MAX_CLIENTS", 7)
    assert described(federation, label=0).clients == 7


def test_a_picture_of_several_labels_counts_for_each(tmp_path: Path) -> None:
    columns = {"x": ColumnSpec(dtype="uint8", shape=(1, 2, 2)), "y": ColumnSpec(dtype="uint8", shape=(2,))}
    with FederationWriter(
        tmp_path / "a", name="a", task=TaskSpec(kind="multi_label", classes=2), columns=columns
    ) as writer:
        for client in range(2):
            x = np.full((3, 1, 2, 2), 50 * client, np.uint8)
            writer.add_client(str(client), train={"x": x, "y": np.array([[1, 1], [0, 1], [0, 0]], np.uint8)})
    federation = Federation.open(tmp_path / "a")
    assert [described(federation, label).images for label in (0, 1)] == [2, 4]
    assert described(federation, 0).distances.mean == pytest.approx(25 / 255)


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (np.zeros((2, 4), np.float32), "rows of numbers"),
        (np.zeros((2, 9, 4, 4), np.float32), "nine channels"),
        (np.array([[[[1e308]]], [[[-1e308]]]]), "too far apart"),
    ],
)
def test_where_there_are_no_distances(make_federation: Make, x: np.ndarray, why: str) -> None:
    assert described(make_federation({"a": (x, np.zeros(2))}, 2), label=0) is None, why


def test_labels_that_nobody_has_and_pictures_of_one_shade(make_federation: Make) -> None:
    federation = make_federation(
        {"a": (np.full((2, 1, 4, 4), 7.0), np.zeros(2)), "b": (np.ones((1, 1, 4, 4)), np.zeros(1))}, 2
    )
    assert has_images(federation)
    assert described(federation, label=1) is None
    found = described(federation, label=0)  # 7 is white and 1 is black
    assert found.distances.quantiles[[0, 100]] == pytest.approx([1 / 3, 2 / 3])
    flat = make_federation({"a": (np.full((2, 1, 4, 4), 7.0), np.zeros(2))}, 2, "flat")
    assert described(flat, label=0).distances.mean == 0
