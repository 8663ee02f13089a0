"""Samples for evaluation that stay where the model computes: the same ones, and never more than fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedarena.train import resident
from fedarena.train.kept_samples import KeptSamples
from fedarena.train.resident import HostSamples, ResidentSamples, rows_of

CPU = torch.device("cpu")


@dataclass
class Read:
    """Samples as a federation gives them."""

    columns: dict[str, np.ndarray]
    offsets: np.ndarray


class Counting:
    """A federation of clients with two samples each, which notes what is read."""

    def __init__(self) -> None:
        self.reads: list[tuple[list[int], str]] = []

    def counts(self, clients, part):
        return np.full(len(clients), 2)

    def samples(self, clients, part):
        self.reads.append((clients.tolist(), part))
        x = np.repeat(clients, 2) + (100 if part == "test" else 0)
        return Read({"x": x}, np.arange(0, 2 * len(clients) + 1, 2))


def test_samples_are_read_once_for_every_part_and_block_of_clients() -> None:
    data = Counting()
    kept = KeptSamples(data, CPU, 1000)
    first, second = np.array([1, 2]), np.array([3])
    for _ in range(2):
        assert kept.samples(data, first, "test").columns["x"].tolist() == [101, 101, 102, 102]
        assert kept.samples(data, second, "test").columns["x"].tolist() == [103, 103]
        assert kept.samples(data, first, "train").columns["x"].tolist() == [1, 1, 2, 2]
    assert data.reads == [([1, 2], "test"), ([3], "test"), ([1, 2], "train")]


def test_what_does_not_fit_is_read_again() -> None:
    data = Counting()
    kept = KeptSamples(data, CPU, 2 * 2 * 8)  # two clients' samples
    for _ in range(2):
        kept.samples(data, np.array([1, 2]), "test")
        assert kept.samples(data, np.array([3]), "test").columns["x"].tolist() == [103, 103]
    assert data.reads == [([1, 2], "test"), ([3], "test"), ([3], "test")]


def test_samples_of_another_federation_are_its_own() -> None:
    data, other = Counting(), Counting()
    kept = KeptSamples(data, CPU, 1000)
    kept.samples(data, np.array([1]), "test")
    for _ in range(2):
        kept.samples(other, np.array([1]), "test")
    assert len(data.reads) == 1
    assert len(other.reads) == 2


class KnownSize(Counting):
    """The same, and it is known how large all of it is."""

    num_clients, memory_bytes = 5, 5 * 2 * 8


@pytest.mark.parametrize(("limit", "reads"), [(80, 1), (79, 2)], ids=["small", "too large"])
def test_training_samples_of_a_small_federation_are_read_once(limit: int, reads: int, monkeypatch) -> None:
    monkeypatch.setattr(resident, "_KEPT_BYTES", limit)
    data = KnownSize()
    source = HostSamples(data)
    for clients in ([4, 1], [2, 4]):
        columns, begins = rows_of(source, np.array(clients))
        assert [columns["x"][begin : begin + 2].tolist() for begin in begins] == [[c, c] for c in clients]
    assert len(data.reads) == reads


def test_samples_that_are_decoded_are_read_every_time() -> None:
    data = KnownSize()
    data.memory_bytes = None
    source = HostSamples(data)
    for _ in range(2):
        rows_of(source, np.array([1]))
    assert data.reads == [([1], "train")] * 2


def test_a_device_gets_samples_of_its_clients_though_all_could_be_kept() -> None:
    on_device = ResidentSamples(KnownSize(), CPU, 1000)
    for clients in ([4, 1], [2, 4]):
        columns, begins = rows_of(on_device, np.array(clients))
        assert [columns["x"][begin : begin + 2].tolist() for begin in begins] == [[c, c] for c in clients]
