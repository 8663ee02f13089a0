"""Parameters with requires_grad=False, and buffers: they stay, they do not travel, and the run keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from small_runs import StopAfter, config, interrupt
from torch import nn

import fedarena
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.models import constant_tensors, trainable_parameters
from fedarena.runs.run import resume_run, start_run

HIDDEN, CLASSES = 6, 10
FILLING = {"scale": 0.0}  # what is added to the buffer, for tests that change it


class HalfFrozen(nn.Module):
    """The first layer's weights stay; a buffer scales the inputs."""

    def __init__(self, spec):
        super().__init__()
        self.first = nn.Linear(64, HIDDEN)
        self.last = nn.Linear(HIDDEN, CLASSES)
        self.first.weight.requires_grad_(False)
        self.register_buffer("scale", torch.rand(64) + FILLING["scale"])

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1) * self.scale)))


def all_frozen(spec):
    return nn.Linear(64, CLASSES).requires_grad_(False)


class Detached(HalfFrozen):
    """The same written the other way: what is not trained is no parameter at all."""

    def __init__(self, spec):
        super().__init__(spec)
        weight = self.first.weight.detach().clone()
        del self.first.weight
        self.first.register_buffer("weight", weight)


def quick(engine: str, model=HalfFrozen, **settings):
    always = {"model": {"name": model}, "engine": {"name": engine, "dtype": "float64"}, "rounds": 5}
    return config(**(always | {"algorithm": "fedavg"} | settings))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return fedarena.load(folder).model().state_dict()


def test_what_is_trained_and_what_is_not() -> None:
    model = HalfFrozen(None)
    assert list(trainable_parameters(model)) == ["first.bias", "last.weight", "last.bias"]
    assert sorted(constant_tensors(model)) == ["first.weight", "scale"]


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    """By engine, the model as runs begin with it."""
    engines = ("cohort", "reference")
    folder, settings = tmp_path_factory.mktemp("untrained"), {"local.lr": 1e-30, "rounds": 1}
    return {engine: tensors(start_run(quick(engine, name=engine, **settings), folder).path) for engine in engines}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ditto", "local_only"])
def test_frozen_parameters_stay_and_do_not_travel(tmp_path: Path, algorithm, untrained) -> None:
    found = {}
    for engine in ("cohort", "reference"):
        trained = start_run(quick(engine, name="trained", algorithm=algorithm), tmp_path / engine)
        before, after = untrained[engine], tensors(trained.path)
        for name in ("first.weight", "scale"):
            assert torch.equal(before[name], after[name])
        if algorithm != "local_only":
            assert not torch.equal(before["first.bias"], after["first.bias"])
        found[engine] = after, trained.rounds["bytes_down"].to_pylist()
    for name, t in found["cohort"][0].items():
        torch.testing.assert_close(t, found["reference"][0][name], rtol=0, atol=1e-10)
    sent = 8 * (HIDDEN + CLASSES * HIDDEN + CLASSES)
    if algorithm in ("fedavg", "ditto"):
        assert found["cohort"][1][1:] == [4 * sent] * 5


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_a_frozen_parameter_is_a_constant(tmp_path: Path, engine) -> None:
    one, other = (start_run(quick(engine, model, name=model.__name__), tmp_path) for model in (HalfFrozen, Detached))
    assert one.rounds.equals(other.rounds)


def test_a_model_without_anything_to_train_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no parameters but frozen ones"):
        start_run(quick("cohort", all_frozen), tmp_path)


def test_a_run_keeps_what_it_does_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_run(quick("cohort", name="kept"), tmp_path)
    monkeypatch.setitem(FILLING, "scale", 1.0)
    kept = tensors(run.path)  # though the model would be built otherwise now
    assert kept["scale"].max() < 1.0
    again = start_run(quick("cohort", name="again", weights=str(run.path), **{"local.lr": 1e-30}), tmp_path)
    for name in ("first.weight", "scale"):
        assert torch.equal(tensors(again.path)[name], kept[name])
    file = tmp_path / "kept" / "constants.safetensors"
    changed = safetensors.torch.load_file(file)
    safetensors.torch.save_file({**changed, "scale": changed["scale"] + 1}, file)
    with pytest.raises(DamagedFileError, match=r"constants\.safetensors is damaged"):
        fedarena.load(run.path).model()


def test_a_model_that_is_built_otherwise_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_run(quick("cohort", name="stopped"), tmp_path, StopAfter(2, interrupt))
    monkeypatch.setitem(FILLING, "scale", 1.0)
    with pytest.raises(BadInputError, match="'scale' of the model, which is not trained, is no longer what the run"):
        resume_run(tmp_path / "stopped")
    monkeypatch.setitem(FILLING, "scale", 0.0)
    assert resume_run(tmp_path / "stopped").status == "finished"
