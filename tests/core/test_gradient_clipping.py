"""`local.clip_norm`: gradients of local steps that are too long are shortened, as torch does it, in both engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import config, losses
from test_cohort import LOCALS, SIZES, assert_same, lanes_are_used_again, make_engine, train  # noqa: F401

from fedarena.algorithms import FedAvg, LocalHead, LocalOnly, TimelyFL
from fedarena.core.errors import BadInputError
from fedarena.hpo.lanes import train_trials
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine
from fedarena.train.optimizers import optimizer_init, optimizer_step

CLIP = 0.05


@pytest.mark.parametrize("scale", [0.001, 10.0], ids=["short", "long"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_is_that_of_torch_with_a_clipped_gradient(optimizer: str, scale: float) -> None:
    local = LocalTraining(lr=0.1, weight_decay=0.01, clip_norm=CLIP, optimizer=optimizer)
    shapes, generator = {"weight": (4, 3), "bias": (4,)}, torch.Generator().manual_seed(0)
    drawn = [{n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()} for _ in range(3)]
    start, *gradients = drawn
    leaves = {name: p.clone().requires_grad_() for name, p in start.items()}
    options = {"lr": 0.1, "weight_decay": 0.01}
    theirs = (torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam)(leaves.values(), **options)
    params, state = start, optimizer_init(local, start)
    for number, gradient in enumerate(gradients, 1):
        scaled = {name: scale * g for name, g in gradient.items()}
        params, state = optimizer_step(local, params, scaled, state, number)
        for name, leaf in leaves.items():
            leaf.grad = scaled[name].clone()
        torch.nn.utils.clip_grad_norm_(leaves.values(), CLIP)
        theirs.step()
    for name, leaf in leaves.items():
        torch.testing.assert_close(params[name], leaf.detach(), rtol=0, atol=1e-6)  # torch adds 1e-6 to the norm


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_clients_train_as_one_at_a_time(model: str) -> None:
    local = replace(LOCALS["momentum, decay"], clip_norm=CLIP)
    reference = make_engine(ReferenceEngine, model, FedAvg(), local)
    broadcast, clients = {"params": reference.initial_params()}, list(range(len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    assert_same(expected, train(make_engine(CohortEngine, model, FedAvg(), local, lanes=4), clients, broadcast, {}))
    plain = train(make_engine(ReferenceEngine, model, FedAvg(), replace(local, clip_norm=None)), clients, broadcast, {})
    with pytest.raises(AssertionError):
        assert_same(expected, plain)


@pytest.mark.slow
def test_trials_that_differ_in_it_are_not_one_computation() -> None:
    base = {"federation": {"name": "digits", "partition": {"name": "iid", "clients": 10}}, "cohort": 2}
    trials = [{"local.clip_norm": norm} for norm in (None, 0.01)]
    together = train_trials(base, trials, rounds=2, note_rounds=[2], workers=1).metrics["test_loss"]
    alone = [train_trials(base, [one], rounds=2, note_rounds=[2], workers=1).metrics["test_loss"][0] for one in trials]
    assert together[:, 0].tolist() == pytest.approx([float(one[0]) for one in alone], rel=1e-5)
    assert alone[0] != pytest.approx(alone[1])


def test_a_norm_must_be_above_zero() -> None:
    with pytest.raises(BadInputError, match=r"local\.clip_norm: input should be greater than 0, not 0"):
        config(**{"local.clip_norm": 0})


@pytest.mark.parametrize("lr_scale", [0.5, torch.tensor(0.5, dtype=torch.float64)], ids=["number", "tensor"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_in_place_are_the_same_steps(momentum: float, lr_scale: float | torch.Tensor) -> None:
    random = torch.Generator().manual_seed(0)
    params, grad = ({name: torch.randn(3, 2, generator=random).double() for name in "ab"} for _ in range(2))
    local = LocalTraining(lr=0.3, momentum=momentum, weight_decay=0.1, clip_norm=0.5)
    found = []
    for at_once, in_place in ((False, False), (True, False), (True, True)):
        own = {name: p.clone() for name, p in params.items()}
        new, state = optimizer_step(local, own, grad, optimizer_init(local, own), 1, lr_scale, None, at_once, in_place)
        assert all(own[name] is new[name] for name in new) == in_place
        found.append((new, state))
    for others in found[1:]:
        torch.testing.assert_close(others, found[0], rtol=0, atol=1e-15)


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_models_that_train_side_by_side_are_clipped_each_by_itself(tmp_path: Path, engine: str) -> None:
    settings = {"rounds": 3, "local.clip_norm": CLIP}
    ditto = losses(tmp_path, engine, "ditto", algorithm={"name": "ditto", "lam": 0.5}, **settings)
    assert ditto == pytest.approx(losses(tmp_path, engine, algorithm="fedavg", **settings), rel=1e-9)


def test_steps_of_several_learning_rates_are_not_clipped() -> None:
    with pytest.raises(BadInputError, match=r"steps of several learning rates, of which local\.clip_norm"):
        LocalOnly().prepare(10, LocalTraining(clip_norm=CLIP))


@pytest.mark.parametrize("algorithm", [TimelyFL(), LocalHead(head_steps=2)])
def test_layers_that_rest_in_some_steps_cannot_have_both_decay_and_clipping(algorithm) -> None:
    for local in (LocalTraining(clip_norm=CLIP), LocalTraining(weight_decay=0.1)):
        algorithm.prepare(3, local)
    with pytest.raises(BadInputError, match=r"both local\.weight_decay and local\.clip_norm"):
        algorithm.prepare(3, LocalTraining(clip_norm=CLIP, weight_decay=0.1))
