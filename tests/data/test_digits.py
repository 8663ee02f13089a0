"""Digits: all 1,797 images of scikit-learn, each with its label, with the client the partitioner says."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedarena.data import load_federation
from fedarena.data.registry import assign_clients


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "shards", "lognormal", "natural"])
@pytest.mark.parametrize("split", ["within_client", "by_client"])
def test_every_image_is_there_once_with_its_label(partition: str, split: str) -> None:
    federation = load_federation("digits", {"partition": partition, "split": split})
    found = federation.samples(federation.clients("all"))
    data = load_digits()
    assert found.columns["x"].shape == (1797, 1, 8, 8)
    assert (found.columns["x"].min(), found.columns["x"].max()) == (0.0, 1.0)

    def pairs(x: np.ndarray, y: np.ndarray) -> list[tuple[int, bytes]]:
        return sorted((int(label), image.astype(np.uint8).tobytes()) for image, label in zip(x, y, strict=True))

    assert pairs(found.columns["x"] * 16, found.columns["y"]) == pairs(data.images, data.target)


def test_clients_are_those_of_the_partitioner() -> None:
    choice = {"name": "dirichlet", "clients": 12, "alpha": 0.3, "seed": 5}
    federation = load_federation("digits", {"partition": choice})
    labels = load_digits().target
    expected = assign_clients(choice, labels)
    assert federation.num_clients == 12
    for client in range(12):
        found = federation.samples([client]).columns["y"]
        assert sorted(found.tolist()) == sorted(labels[expected == client].tolist())


def test_the_split_is_within_clients_unless_told_otherwise() -> None:
    federation = load_federation("digits")
    everybody = federation.clients("all")
    assert federation.clients("train").tolist() == everybody.tolist()
    shares = federation.counts(everybody, "test") / federation.counts(everybody)
    assert (np.abs(shares - 0.2) < 0.1).all()
    assert federation.counts(everybody, "train").min() >= 1
    assert federation.task.label_names == tuple("0123456789")


def test_the_data_does_not_change_by_accident() -> None:
    """Runs are compared over time by what they trained on."""
    federation = load_federation("digits")
    first = federation.samples([0], "train").columns["y"]
    assert first[:10].tolist() == [7, 5, 5, 5, 5, 6, 0, 5, 3, 5]
