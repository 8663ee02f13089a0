from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedarena.train import LocalTraining, drawing
from fedarena.train.batches import batch_indices, count_processed, count_steps
from fedarena.train.drawing import Batches, BatchPlan, DeviceBatches, _ranked, drawn, drawn_on, drawn_on_host

CPU = torch.device("cpu")


@given(
    samples=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    work=st.one_of(st.tuples(st.integers(1, 3), st.none()), st.tuples(st.none(), st.integers(1, 9))),
    batch_size=st.integers(1, 7),
    round=st.integers(1, 3),
    padding=st.sampled_from([None, 0, 2]),
)
def test_batches_are_those_of_one_client_at_a_time(samples, work, batch_size, round, padding) -> None:
    local = LocalTraining(epochs=work[0], steps=work[1], batch_size=batch_size)
    sizes = np.array(samples)
    clients = np.arange(len(samples)) * 7 + 3
    steps = count_steps(sizes, local)
    rounds = round + np.arange(len(clients)) % 2
    width = None if padding is None else batch_size + padding
    plan = BatchPlan(clients, sizes, steps, local.batch_size, 5, rounds, width)
    expected = [batch_indices(n, local, 5, int(r), int(c)) for n, c, r in zip(samples, clients, rounds, strict=True)]
    for batches in (drawn_on_host(plan), drawn_on(plan, CPU)):
        assert batches.places == (width or batch_size)
        assert len(batches.sizes) == sum(map(len, expected))
        assert batches.processed(steps).tolist() == [sum(map(len, each)) for each in expected]
        assert count_processed(sizes, steps, local.batch_size).tolist() == batches.processed(steps).tolist()
        for first, of_client in zip(batches.first, expected, strict=True):
            assert_rows(batches, np.arange(first, first + len(of_client)), of_client)


def assert_rows(batches: Batches, steps: np.ndarray, expected: list[np.ndarray]) -> None:
    """Steps have these rows, also where a client's samples begin elsewhere; the last one is of nobody."""
    if len(steps) == 0:
        return
    counts = np.concatenate([batches.sizes[steps], [0]])
    rows, mask = batches.on_device(CPU, np.append(steps, -1), counts, np.full(len(counts), 100))
    found = [row[some].tolist() for row, some in zip(rows, mask, strict=True)]
    assert found == [*((samples + 100).tolist() for samples in expected), []]
    assert not rows[~mask].any()
    assert mask.dtype == torch.bool


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9), st.integers(0, 80)), min_size=1, max_size=12),
    st.integers(0, 2**64 - 1),
)
def test_a_device_draws_what_the_host_draws(clients, seed) -> None:
    """Clients of very different sizes, each with batches and steps of its own, in any order of steps."""
    samples, batch_sizes, steps = (np.array(column) for column in zip(*clients, strict=True))
    steps = np.where(samples > 0, steps, 0)
    plan = BatchPlan(np.arange(len(samples)) * 10**12, samples, steps, batch_sizes, seed, np.arange(len(samples)), 9)
    host, device = drawn_on_host(plan), drawn_on(plan, CPU)
    assert (host.sizes == device.sizes).all()
    asked = np.random.default_rng(0).permutation(len(host.sizes))
    found, expected = (one.on_device(CPU, asked, host.sizes[asked], asked * 1000) for one in (device, host))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_few_and_very_many_samples_are_drawn_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_FEWEST_ON_GPU", 10)
    monkeypatch.setattr(drawing, "_MOST_ON_GPU", 20)
    monkeypatch.setattr(drawing, "drawn_on", lambda plan, device: None)
    for samples, by_host in ((9, True), (10, False), (20, False), (21, True)):
        one = np.array([samples])
        plan = BatchPlan(one, one, np.array([1]), 30, 0, one)
        assert (drawn(plan, torch.device("cuda")) is not None) == by_host
        assert drawn(plan, CPU) is not None


def test_equal_keys_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    most, samples = np.iinfo(np.uint64).max, np.array([40, 3])
    keys = np.full((2, 40), most, dtype=np.uint64)  # in the second row, the third sample has the key of what is none
    keys[0], keys[1, :2] = np.repeat([2**63, 7, 2**63 + 1, 7], 10), [9, 8]
    first, second = _ranked(keys, samples)
    assert first.tolist() == np.argsort(keys[0], kind="stable").tolist()
    assert second[:3].tolist() == [1, 0, 2]
    signed = torch.from_numpy(keys.view(np.int64))
    of_samples = torch.cat([signed[0], signed[1, :3]])
    monkeypatch.setattr(drawing, "continued", lambda key, number: of_samples.clone())
    order = drawn_on(BatchPlan(samples, samples, np.array([1, 1]), 40, 0, samples), CPU).order
    assert order.tolist() == [*first.tolist(), *second[:3].tolist()]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
def test_a_gpu_draws_what_the_host_draws() -> None:
    random = np.random.default_rng(3)
    samples = np.minimum(random.lognormal(3, 2, size=2000).astype(np.int64), 5000)
    steps = np.where(samples > 0, random.integers(0, 40, size=2000), 0)
    batch_sizes = random.integers(1, 20, size=2000)
    clients = random.integers(2**62, size=2000)
    plan = BatchPlan(clients, samples, steps, batch_sizes, 2**63 + 1, random.integers(10**6, size=2000))
    host, gpu = drawn_on_host(plan), drawn(plan, torch.device("cuda"))
    assert isinstance(gpu, DeviceBatches)
    asked = np.arange(len(host.sizes))
    expected = host.on_device(CPU, asked, host.sizes, asked % 77)
    for ours, theirs in zip(gpu.on_device(torch.device("cuda"), asked, host.sizes, asked % 77), expected, strict=True):
        assert torch.equal(ours.cpu(), theirs)
