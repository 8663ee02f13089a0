"""Own code that looks at how pictures lie in memory, as torch's tutorials do: right on both engines, in any plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedarena
from fedarena.algorithms import FedAvg


class Convolved(nn.Module):
    """`view`, and not `flatten`, as in torch's tutorial."""

    def __init__(self):
        super().__init__()
        self.convolution, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 64, 3)

    def forward(self, x):
        return self.last(F.relu(self.convolution(x)).view(x.size(0), -1))


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3 * 64, 3)

    def forward(self, x):
        return self.last(x.view(-1, 3 * 64))


class Strided(Dense):
    """What this shows is another picture where its channels are innermost."""

    def forward(self, x):
        return self.last(torch.as_strided(x, (len(x), 3 * 64), (3 * 64, 1)))


class Unpooled(Convolved):
    """Torch has no gradient of this for several clients where channels are innermost."""

    def forward(self, x):
        pooled, places = F.max_pool2d(self.convolution(x), 2, return_indices=True)
        return self.last(F.max_unpool2d(pooled, places, 2).flatten(1))


class FlatGradient(FedAvg):
    def local_gradient(self, grad, params, client):
        length = torch.cat([g.view(-1) for g in grad.values()]).norm()
        return {name: g / length.clamp(min=1) for name, g in grad.items()}


class FlatUpdate(FedAvg):
    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        length = torch.cat([p.view(-1) for p in params.values()]).norm()
        return {"params": {name: u / length.clamp(min=1) for name, u in update["params"].items()}}, state


class FlatLoss(FedAvg):
    def local_loss(self, task, params, batch, client):
        scores = task.predict(params, batch)
        return F.cross_entropy(scores, batch["y"]) + 0.01 * batch["x"].view(len(scores), -1).mean() * scores.mean()


CNN = {"name": "cnn", "channels": [3, 4], "hidden": 8}


@pytest.mark.filterwarnings("ignore:Torch computes max_unpool2d")
@pytest.mark.parametrize("plan", ["together", "apart"])
@pytest.mark.parametrize(
    ("model", "algorithm"),
    [
        *((model, "fedavg") for model in (Convolved, Dense, Strided, Unpooled)),
        *((CNN, algorithm) for algorithm in (FlatGradient, FlatUpdate, FlatLoss)),
    ],
)
def test_own_code_sees_pictures_and_weights_as_torch_lays_them(
    make_federation, tmp_path: Path, recwarn: pytest.WarningsRecorder, model: Any, algorithm: Any, plan: str
) -> None:
    random = np.random.default_rng(0)
    sizes = (2, 3, 9)  # at the end, one client trains alone
    federation = make_federation(
        {
            f"{size} samples": (random.random((size, 3, 8, 8)).astype(np.float32), random.integers(0, 3, size))
            for size in sizes
        },
        classes=3,
    )
    found = []
    for engine in ({"name": "reference"}, {"name": "cohort", "plan": plan}):
        settings = {"model": model, "algorithm": algorithm, "rounds": 2, "local.batch_size": 4, "evaluation.every": 1}
        engine |= {"dtype": "float64"}
        folder = tmp_path / engine["name"]
        run = fedarena.run(federation=federation, **settings, engine=engine, runs_folder=folder, progress=False)
        found.append(run.rounds["loss"].to_pylist())
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert not [warning for warning in recwarn if "one at a time" in str(warning.message)]
