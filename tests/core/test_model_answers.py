"""A model is known again by what it answers: another one with the same source and parameters is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import config, forge
from torch import nn

from fedarena.client.building import refuse_another_model
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.models import DataSpec, build_model, make_task
from fedarena.models.answers import answers_of, are_alike
from fedarena.runs.identity import ANSWERS, check_same_answers
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.runs.trained_model import trained_model

FEATURES = DataSpec("classification", 10, (8, 8))


class ByEnvironment(nn.Module):
    """Its source and parameters do not say what it computes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.activation = getattr(torch, os.environ.get("ACTIVATION", "tanh"))

    def forward(self, x):
        return self.last(self.activation(self.first(x.flatten(1))))


def answers(module: nn.Module, dtype: torch.dtype = torch.float32) -> list[float]:
    task = make_task(module, FEATURES)
    task.module.to(dtype)
    return answers_of(task)


def test_a_run_of_another_model_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(config(model=ByEnvironment, rounds=4), tmp_path)
    run.advance(2)
    run.close()
    monkeypatch.setenv("ACTIVATION", "sin")
    with pytest.raises(BadInputError, match=r"ByEnvironment .* computes something else .* cannot go on; .*\(sort it\)"):
        resume_run(tmp_path / "small")
    with pytest.raises(BadInputError, match="cannot be used"):
        trained_model(tmp_path / "small")
    monkeypatch.delenv("ACTIVATION")
    assert resume_run(tmp_path / "small").rounds["round"][-1].as_py() == 4
    assert isinstance(trained_model(tmp_path / "small"), ByEnvironment)


class WithFrozen(nn.Module):
    """What is frozen is drawn when it is built, and follows from the seed."""

    def __init__(self):
        super().__init__()
        self.fixed, self.last = nn.Linear(64, 32), nn.Linear(32, 10)
        self.fixed.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.fixed(x.flatten(1))))


@pytest.mark.parametrize("engine", ["reference", "cohort"])
@pytest.mark.parametrize("adaptation", ["all", "lora"])
def test_the_same_model_goes_on(tmp_path: Path, engine: str, adaptation: str) -> None:
    model = WithFrozen if adaptation == "all" else ByEnvironment
    chosen = {"model": model, "engine": engine, "adaptation": adaptation, "seed": 3, "rounds": 4}
    run = Run.create(config(**chosen), tmp_path)
    run.advance(2)
    run.close()
    assert resume_run(tmp_path / "small").rounds["round"][-1].as_py() == 4
    assert isinstance(trained_model(tmp_path / "small"), model)


def test_answers_that_are_none_are_damage(tmp_path: Path) -> None:
    start_run(config(model=ByEnvironment, rounds=1), tmp_path)
    task = make_task(ByEnvironment(), FEATURES)
    folder = tmp_path / "small"
    recorded = json.loads((folder / "environment.json").read_text())
    assert len(recorded[ANSWERS]) == 30
    check_same_answers(task, folder, "go on")
    for nonsense in (["a", "b"], 3, {"a": 1}):
        forge(folder, "environment.json", json.dumps(recorded | {ANSWERS: nonsense}).encode())
        with pytest.raises(DamagedFileError, match=r"environment.json cannot be read: TypeError"):
            check_same_answers(task, folder, "go on")
    forge(folder, "environment.json", json.dumps(recorded | {ANSWERS: [0.0] * 30}).encode())
    with pytest.raises(BadInputError, match="computes something else"):
        check_same_answers(task, folder, "go on")


def test_our_own_models_are_not_asked(tmp_path: Path) -> None:
    start_run(config(rounds=1), tmp_path)
    assert "model_answers" not in json.loads((tmp_path / "small" / "environment.json").read_text())


def test_devices_refuse_another_model_than_the_servers() -> None:
    there, here = make_task(ByEnvironment(), FEATURES), make_task(ByEnvironment(), FEATURES)
    settings = {"answers": answers_of(there)}
    refuse_another_model(here, settings)
    refuse_another_model(here, {})  # from a server with no parts of its own
    here.module.activation = torch.sin
    with pytest.raises(BadInputError, match="ByEnvironment computes something else here than at the server"):
        refuse_another_model(here, settings)
    for nonsense in ("abc", 3, [[1]]):
        with pytest.raises(BadInputError):
            refuse_another_model(here, {"answers": nonsense})


@pytest.mark.parametrize("model", ["logistic_regression", "mlp", "cnn", "leaf_cnn"])
def test_answers_are_of_the_model_and_of_nothing_else(model: str) -> None:
    spec = DataSpec("classification", 10, (1, 8, 8))
    one, other = (make_task(build_model(model, spec, {}, seed), spec) for seed in (0, 1))
    found = answers_of(one)
    assert any(found)
    assert are_alike(found, answers_of(other))  # whatever it was initialized with
    other.module.double()
    assert are_alike(found, answers_of(other))
    assert not are_alike(found, found[:-1])


def test_another_order_counts_if_it_computes_something_else() -> None:
    class Branches(nn.Module):
        def __init__(self, names, in_a_row):
            super().__init__()
            self.parts = nn.ModuleDict({name: nn.Linear(10, 10) for name in names})
            self.first, self.in_a_row = nn.Linear(64, 10), in_a_row

        def forward(self, x):
            x = self.first(x.flatten(1))
            if not self.in_a_row:
                return sum(torch.tanh(part(x)) for part in self.parts.values())
            for part in self.parts.values():
                x = torch.tanh(part(x))
            return x

    def found(names, in_a_row):
        return answers(Branches(names, in_a_row))

    assert are_alike(found("abc", False), found("cab", False))
    assert not are_alike(found("abc", True), found("cab", True))


OWN = """
import torch
from torch import nn

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)
        self.parts = nn.ModuleDict({name: nn.Linear(16, 16) for name in {"left", "right", "up", "down", "in", "out"}})

    def forward(self, x):
        x = self.first(x.flatten(1))
        for part in self.parts.values():
            x = torch.tanh(part(x))
        return self.last(x)
"""


@pytest.mark.slow
def test_a_set_of_texts_in_another_process_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(OWN)

    def fedarena(hash_seed: int, *words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
        command = [sys.executable, "-m", "fedarena", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)

    begun = fedarena(1, "run", "federation=digits", "model=mixed:Mixed", "rounds=2", "cohort=4", "name=run")
    assert begun.returncode == 0, begun.stderr
    another = fedarena(2, "resume", "runs/run", "rounds=4")
    assert another.returncode == 2
    assert "computes something else" in " ".join((another.stderr + another.stdout).split())
    same = fedarena(1, "resume", "runs/run", "rounds=4")
    assert same.returncode == 0, same.stderr
