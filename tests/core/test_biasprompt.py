"""BiasPrompt against its rule written as a plain loop, and what it leaves alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from logistic_clients import (
    CLASSES,
    FEATURES,
    LOCAL,
    by_samples,
    cohorts,
    flat,
    local_sgd,
    run_simulation,
)
from test_cohort import FAMILIES, ClientsInMemory, make_engine, train
from torch import nn

from fedarena.algorithms import BiasPrompt, FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import DataSpec, build_model, make_task
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve
from fedarena.runs.observer import Observer
from fedarena.simulate.simulation import transferred_bytes
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine, count_bytes, count_training_flops
from fedarena.train.batches import batch_indices
from fedarena.train.jobs import newcomer

ENGINES = [ReferenceEngine, CohortEngine]
MOMENTUM = LocalTraining(epochs=2, batch_size=8, lr=0.1, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("engine_kind", ENGINES)
def test_against_the_rule(make_federation, engine_kind) -> None:
    """Only biases move: local SGD along their part of the gradient, then the mean by samples."""
    algorithm = BiasPrompt(trained_layers=["*.bias"], server_lr=0.7)
    first, last = run_simulation(make_federation, algorithm, LOCAL, engine_kind)
    start, end = (flat(outcome.snapshot.state["params"]) for outcome in (first, last))
    weights = CLASSES * FEATURES
    trained = np.arange(len(start)) >= weights
    w = start
    for round, cohort in cohorts():
        ends = [local_sgd(w, client, round, lambda g, _: g * trained, LOCAL)[0] for client in cohort]
        w = w + 0.7 * by_samples(cohort) @ (np.array(ends) - w)
    np.testing.assert_allclose(end, w, rtol=0, atol=1e-10)
    assert np.array_equal(end[:weights], start[:weights])
    assert np.abs(end - start)[weights:].min() > 0.01


@pytest.mark.parametrize("engine_kind", ENGINES)
def test_a_client_of_a_frozen_vit_does_what_torchs_optimizer_does(engine_kind) -> None:
    engine = make_engine(engine_kind, "vit", BiasPrompt(), MOMENTUM)
    model = copy.deepcopy(engine.task.module).double()
    found = train(engine, [6, 7], {"params": engine.initial_params()}, {})
    data = ClientsInMemory(FAMILIES["vit"][0])
    for client, (update, _, _, _) in found.items():
        theirs = copy.deepcopy(model)
        fast = {n: p for n, p in theirs.named_parameters() if "bias" in n or n in ("prompts", "head.weight")}
        optimizer = torch.optim.SGD(fast.values(), lr=0.1, momentum=0.9, weight_decay=0.01)
        x, y = (torch.from_numpy(data.columns[client][name]) for name in ("x", "y"))
        for rows in batch_indices(len(x), MOMENTUM, 3, 1, client):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(theirs(x[rows]), y[rows]).backward()
            optimizer.step()
        assert set(update["params"]) == set(fast)
        for name, change in update["params"].items():
            torch.testing.assert_close(change, fast[name].detach() - model.get_parameter(name), rtol=0, atol=1e-10)
        assert all(t.abs().max() > 1e-6 for name, t in update["params"].items() if "keys.bias" not in name)


def test_the_server_leaves_what_is_frozen_bit_by_bit() -> None:
    engine = make_engine(ReferenceEngine, "vit", BiasPrompt(), MOMENTUM)
    state = BiasPrompt().server_init(engine.initial_params())
    (update, *_), *_ = train(engine, [5], state, {}).values()
    after = BiasPrompt(server_lr=0.5).server_step(state, update, 1)
    assert list(after["params"]) == list(state["params"])
    for name, p in after["params"].items():
        expected = state["params"][name]
        if name in update["params"]:
            expected = expected + 0.5 * update["params"][name]
        assert torch.equal(p, expected)


def test_what_is_frozen_is_not_sent() -> None:
    images = DataSpec("classification", 10, (1, 8, 8))
    model = build_model("vit", images, {"patch": 4, "width": 8, "layers": 3, "heads": 2, "prompts": 5}, 0)
    params = dict(model.named_parameters())
    # in a block: two norms, four projections, two layers of 32 and 8; then the patches, the last norm, the head
    biases = 3 * (2 * 8 + 4 * 8 + 32 + 8) + 8 + 8 + 10
    assert transferred_bytes(BiasPrompt(), params) == (4 * (biases + 3 * 5 * 8 + 8 * 10),) * 2
    whole = count_bytes({"params": params})
    assert transferred_bytes(FedAvg(), params) == (whole, whole)
    assert transferred_bytes(BiasPrompt(trained_layers=["head.*"]), params) == (4 * 90, 4 * 90)


def test_frozen_weights_have_no_gradients_to_compute() -> None:
    images = DataSpec("classification", 10, (1, 8, 8))
    task = make_task(build_model("mlp", images, {"hidden": (200,)}, 0), images)
    forward = 2 * (64 * 200 + 200 * 10)
    assert count_training_flops(task, FedAvg()) == 2 * forward + 2 * 200 * 10
    head_alone = BiasPrompt(trained_layers=["3.*"])
    assert count_training_flops(task, head_alone) == forward + 2 * 200 * 10


def test_by_default_biases_and_the_last_layer_where_there_are_no_prompts() -> None:
    params = dict(build_model("cnn", DataSpec("classification", 10, (1, 8, 8)), {}, 0).named_parameters())
    assert list(BiasPrompt().local_start(newcomer({"params": params}, {}))) == [
        "0.bias",
        "3.bias",
        "7.bias",
        "9.weight",
        "9.bias",
    ]
    (note,) = BiasPrompt().notes(params)
    assert note == (
        "biasprompt trains and sends 1,514 of the model's 53,002 numbers: "
        "biases, no prompts (the model has none), and the last layer (9.weight, 9.bias); the others are frozen"
    )
    (note,) = BiasPrompt(trained_layers=["3.*", "9.bias"]).notes(params)
    assert "18,506 of the model's 53,002 numbers: the layers 3.*, 9.bias;" in note


def test_layers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"no parameter of the model matches 'tail.*'; it has w, b"):
        BiasPrompt(trained_layers=["w", "tail.*"]).server_init({"w": torch.zeros(2), "b": torch.zeros(1)})
    with pytest.raises(BadInputError, match="trained_layers must name at least one layer"):
        BiasPrompt(trained_layers=[])


def test_biases_of_torchs_own_layers() -> None:
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2), "lstm": nn.LSTM(4, 4), "head": nn.Linear(4, 2)})
    params = {name: p.detach() for name, p in model.named_parameters()}
    trained = set(BiasPrompt().download({"params": params})["params"])
    assert {name for name in params if "bias" in name} | {"head.weight"} == trained


def test_says_that_a_model_from_scratch_is_not_meant() -> None:
    settings = {"federation": "digits", "model": "mlp", "algorithm": "biasprompt"}
    assert any("is for pretrained models" in line for line in prepare(resolve(settings), Observer()).warnings)
    plain = prepare(resolve(settings | {"algorithm": "fedavg"}), Observer()).warnings
    assert not any("pretrained" in line for line in plain)
