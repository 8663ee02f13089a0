"""Products that lanes compute for all trials at once are those of each trial alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedarena.hpo.lanes.products import SharedSamples
from fedarena.models import DataSpec, build_model, make_task
from fedarena.models.spec import InputSpec
from fedarena.train.layers import count_output_bytes

TRIALS, GRAPHS, NODES, WIDTH = 4, 2, 7, 3


def loss(weights: Tensor, graphs: Tensor, features: Tensor) -> Tensor:
    """Two rounds of mixing nodes with their neighbours, as in a graph convolutional network."""
    hidden = torch.relu(graphs @ (features @ weights))
    return torch.matmul(graphs, hidden @ weights.mT).square().sum()


@pytest.mark.parametrize("own_graphs", [False, True])
@pytest.mark.parametrize("by", ["weights", "graphs"])
def test_stacks_of_graphs_that_trials_share(own_graphs: bool, by: str) -> None:
    random = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)  # noqa: E731
    weights, features = draw(TRIALS, GRAPHS, WIDTH, 5), draw(GRAPHS, NODES, WIDTH)
    graphs = draw(TRIALS, GRAPHS, NODES, NODES) if own_graphs else draw(GRAPHS, NODES, NODES)
    gradient = grad(loss, argnums=0 if by == "weights" else 1)
    with SharedSamples():
        found = vmap(gradient, in_dims=(0, 0 if own_graphs else None, None))(weights, graphs, features)
    for trial in range(TRIALS):
        alone = gradient(weights[trial], graphs[trial] if own_graphs else graphs, features)
        torch.testing.assert_close(found[trial], alone, rtol=1e-12, atol=1e-12)


def test_slots_and_trials_at_once() -> None:
    """Lanes nest two levels: clients, each with a graph of its own, and trials, which share it."""
    random = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)  # noqa: E731
    slots = 3
    weights, features = draw(slots, TRIALS, GRAPHS, WIDTH, 5), draw(slots, GRAPHS, NODES, WIDTH)
    graphs = draw(slots, GRAPHS, NODES, NODES)
    of_slot = vmap(grad(loss), in_dims=(0, None, None))
    with SharedSamples():
        found = vmap(of_slot)(weights, graphs, features)
    for slot in range(slots):
        for trial in range(TRIALS):
            alone = grad(loss)(weights[slot, trial], graphs[slot], features[slot])
            torch.testing.assert_close(found[slot, trial], alone, rtol=1e-12, atol=1e-12)


def test_what_all_trials_share_is_not_counted_for_each() -> None:
    inputs = (InputSpec("x", (NODES, WIDTH)), InputSpec("edges", (5, 2), NODES + 1))
    spec = DataSpec("node_classification", 3, (), inputs=inputs)
    task = make_task(build_model("gcn", spec, {"hidden": 4}, seed=0), spec)
    batch = task.batch(task.example(1))
    everything, trained = (
        count_output_bytes(task.module, *task.model_inputs(batch), trained=trained) for trained in (False, True)
    )
    assert everything - trained == NODES * NODES * 4  # the adjacency matrix
    assert trained == NODES * (4 + 4 + 3) * 4
