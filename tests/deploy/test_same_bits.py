"""Devices give the simulator's bits: every algorithm, every transform, parts of somebody's own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from devices_without_network import DevicesWithoutNetwork, check_same_as_simulation, played, small_experiment

import fedarena
from fedarena.algorithms import ALGORITHMS
from fedarena.client import codec, messages
from fedarena.core.secret_noise import SecretSource
from fedarena.train import Job, JobArrays
from fedarena.transforms import TRANSFORMS


@pytest.mark.sampled(5)
@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_every_algorithm(algorithm):
    check_same_as_simulation(algorithm=algorithm)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("transform", TRANSFORMS.names())
def test_every_transform(transform):
    check_same_as_simulation(transforms=[transform])


def test_transforms_after_each_other():
    devices = check_same_as_simulation(transforms=[{"name": "top_k", "error_feedback": True}, "qsgd", "clip"])
    assert [one["name"] for one in devices.settings["transforms"]] == ["top_k", "qsgd"]  # clipping is the server's
    assert devices.kept  # what the first one did not send


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": {"name": "gaussian", "noise_multiplier": 0.2, "clipping": "adaptive"}, "selector": "poisson"},
        {"privacy": {"name": "local_gaussian", "job_epsilon": 1.0}},
        {"privacy": {"name": "local_laplace", "job_epsilon": 1.0}},
        {"aggregator": "median", "transforms": ["clip"]},
        {"client_lr_schedule": {"name": "step", "rounds": 1}},
        {"engine": {"name": "reference", "dtype": "float64"}, "local": {"epochs": 1, "optimizer": "adam"}},
        {"engine": {"name": "reference", "precision": "bf16"}},
        {"download": "qsgd"},
        {"model": "cnn", "augmentation": "flip"},
        {"federation": "diabetes", "model": "auto"},
        {"algorithm": "timelyfl", "fleet": "uniform", "protocol": "synchronous"},
    ],
    ids=lambda settings: str(next(iter(settings.values())))[:40],
)
def test_other_settings(settings):
    check_same_as_simulation(**settings)


def test_what_is_not_trained_comes_from_the_server(tmp_path):
    torch.save(dict(small_experiment(seed=7).simulation.task.module.state_dict()), tmp_path / "weights.pt")
    devices = check_same_as_simulation(weights=str(tmp_path / "weights.pt"), adaptation="head_only")
    update = codec.decode(devices.fixed)
    assert update  # the frozen layer


OWN = """
import torch
from torch import nn
from fedarena.algorithms import FedAvg
from fedarena.models.tasks.classification import Classification
from fedarena.transforms import Transform

class Net(nn.Module):
    def __init__(self, width: int = 6):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Dropout(0.3), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)

class Smooth(Classification):
    def losses(self, outputs, batch):
        return super().losses(outputs, batch) + 0.1 * outputs.square().mean(-1)

class Damped(FedAvg):
    def __init__(self, *, damping: float = 0.5):
        super().__init__()
        self.damping = damping

    def client_init(self, broadcast):
        return {"seen": {"times": torch.zeros(())}}

    def client_update(self, params, client, work):
        update, _ = super().client_update(params, client, work)
        times = client.state["seen"]["times"] + 1
        noise = {name: client.job.normal(name, t) / 100 for name, t in update["params"].items()}
        moved = {name: t * self.damping**times + noise[name] for name, t in update["params"].items()}
        return {"params": moved}, {"seen": {"times": times}}

class Doubled(Transform):
    def at_client(self, rows, kept, server):
        return {"params": {name: 2 * t for name, t in rows.update["params"].items()}}, kept
"""


@pytest.fixture
def own_parts(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield {
        "model": {"name": "own_parts:Net", "width": 5},
        "task": "own_parts:Smooth",
        "algorithm": "own_parts:Damped",
        "transforms": ["own_parts:Doubled"],
    }
    sys.modules.pop("own_parts", None)


def test_parts_of_ones_own(own_parts):
    devices = check_same_as_simulation(allow=("own_parts",), **own_parts)
    assert devices.kept


def test_a_device_with_another_source_is_refused(own_parts, tmp_path):
    devices = DevicesWithoutNetwork(small_experiment(**own_parts), ("own_parts",))
    (tmp_path / "own_parts.py").write_text(OWN.replace("2 * t", "3 * t"))
    with pytest.raises(fedarena.BadInputError, match=r"'own_parts' is not the same here as at the server, .*own_parts"):
        devices.device(0)


def test_parts_of_strangers_are_refused(own_parts):
    with pytest.raises(fedarena.BadInputError, match=r"uses 'own_parts:Net', which is not.*--allow own_parts$"):
        check_same_as_simulation(**own_parts)
    with pytest.raises(fedarena.BadInputError, match="own_parts:Net"):  # whose name merely begins like an allowed one
        check_same_as_simulation(allow=("own",), **own_parts)


@pytest.mark.parametrize("mechanism", ["local_gaussian", "local_laplace"])
def test_noise_that_protects_a_device_is_its_own_secret(mechanism):
    settings = {"privacy": {"name": mechanism, "job_epsilon": 1.0}, "rounds": 1}
    keys, bits = (bytes(32), b"1" * 32), []
    for noise in (None, SecretSource(keys[0]), SecretSource(keys[0]), SecretSource(keys[1]), *[SecretSource()] * 2):
        experiment = small_experiment(**settings)
        experiment.simulation.engine.crew = DevicesWithoutNetwork(experiment, noise=noise)
        bits.append(played(experiment)[0])
    assert bits[1] == bits[2]
    assert len({str(one) for one in bits}) == 5  # what comes from the system is another one every time


@pytest.mark.filterwarnings("ignore:Privacy")
def test_noise_in_a_secure_sum_is_secret_and_as_large_as_that_of_the_simulation():
    pytest.importorskip("dp_accounting")
    private = {"name": "distributed_gaussian", "noise_multiplier": 1.0}
    secure = {"name": "bonawitz", "largest_weight": 1}
    experiment = small_experiment(privacy=private, secure_aggregation=secure, selector="shuffled", cohort=6)
    simulation = experiment.simulation
    model = simulation.broadcast(simulation.first_snapshot())
    task = messages.task_of(JobArrays.of([Job(2, 1)]))
    words = []
    for noise in (None, None, SecretSource(), SecretSource()):
        device = DevicesWithoutNetwork(experiment, noise=noise).device(2)
        words.append(device.train(task, model, None).words.view(np.int32).astype(np.float64))
    np.testing.assert_array_equal(words[0], words[1])
    assert (words[2] != words[3]).any()
    assert np.std(words[2] - words[3]) == pytest.approx(np.std(words[0] - words[2]), rel=0.2)  # √2 deviations


BARE = """
import sys
class Nothing:
    hidden = {HIDDEN}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.hidden:
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Nothing())

import hashlib, json
from pathlib import Path
import numpy as np
from fedarena.client import codec
from fedarena.client.building import build, data_spec
from fedarena.client.device import Device
from fedarena.client.samples import OwnSamples, RawSamples
for folder in map(Path, sys.argv[1:]):
    settings = json.loads((folder / "settings").read_text())
    form = {name: (dtype, tuple(shape)) for name, (dtype, shape) in settings["data"]["columns"].items()}
    data = OwnSamples.given(RawSamples(dict(np.load(folder / "data.npz")), "load"), form, data_spec(settings))
    trained = Device(build(settings, data), 2).train(
        json.loads((folder / "task").read_text()), codec.load_groups(folder / "model"), None
    )
    print(hashlib.sha256(codec.encode_groups(trained.update)).hexdigest())
"""
HIDDEN = {
    *("pydantic", "pyarrow", "yaml", "scipy", "pandas", "rich", "typer", "safetensors", "plotly", "sklearn"),
    *("filelock", "platformdirs", "ijson", "networkx", "cryptography", "grpc"),
}


def test_torch_and_numpy_are_enough_to_train(tmp_path):
    wanted, folders = [], []
    for algorithm in ("scaffold", "fedkd", "fetchsgd"):
        experiment = small_experiment(algorithm=algorithm)
        devices = DevicesWithoutNetwork(experiment)
        simulation, folder = experiment.simulation, tmp_path / algorithm
        folder.mkdir()
        start = simulation.first_snapshot()
        model = messages.model_groups(simulation.broadcast(start), simulation.transforms, start.transform_states)
        task = messages.task_of(JobArrays.of([Job(2, 1)]))
        wanted.append(codec.encode_groups(devices.device(2).train(task, model, None).update))
        (folder / "settings").write_text(json.dumps(devices.settings))
        (folder / "task").write_text(json.dumps(task))
        codec.save_groups(folder / "model", model)
        np.savez(folder / "data.npz", **experiment.federation.samples(np.array([2]), "train").columns)
        folders.append(str(folder))
    script = BARE.replace("{HIDDEN}", repr(HIDDEN))
    environment = os.environ | {"PYTHONPATH": str(Path(fedarena.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script, *folders], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.split() == [hashlib.sha256(update).hexdigest() for update in wanted]
