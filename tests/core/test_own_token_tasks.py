"""Tasks of one's own that predict tokens: what is changed about them counts, and is the same on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_texts import write_texts
from torch import nn
from torch.nn import functional as F

import fedarena
from fedarena.core.errors import BadInputError
from fedarena.models.tasks.masked_token import MaskedToken
from fedarena.models.tasks.next_token import NextToken

TINY = {
    "rounds": 2,
    "cohort": 3,
    "local": {"steps": 2, "batch_size": 4},
    "evaluation.every": 2,
}


class Looking(nn.Module):
    """Convolutions over the embeddings of a text, as over a picture."""

    def __init__(self, spec):
        super().__init__()
        self.embed = nn.Embedding(spec.tokens or spec.classes, 6)
        self.look = nn.Conv2d(1, 3, 3, padding=1)
        self.output = nn.Linear(18, spec.classes)

    def forward(self, tokens):
        seen = F.relu(self.look(self.embed(tokens).unsqueeze(1)))
        return self.output(seen.permute(0, 2, 1, 3).flatten(2))


class Heavier(NextToken):
    def loss(self, params, batch):
        return 1.5 * super().loss(params, batch)


class HeavierHidden(MaskedToken):
    def loss(self, params, batch):
        return 1.5 * super().loss(params, batch)


class Drawing(NextToken):
    def batch(self, columns):
        return super().batch({"tokens": torch.randint_like(columns["tokens"], 9)})


def losses(folder: Path, task: Any, engine: str) -> list[float]:
    settings = TINY | {
        "federation": write_texts(folder / "texts"),
        "task": task,
        "model": Looking,
        "engine": {"name": engine, "dtype": "float64"},
    }
    return fedarena.run(settings, runs_folder=folder, progress=False).rounds["loss"].to_pylist()[::2]


@pytest.mark.parametrize(("usual", "own"), [("next_token", Heavier), ("masked_token", HeavierHidden)])
def test_an_own_loss_counts_on_both_engines(tmp_path: Path, usual: str, own: type) -> None:
    found = [losses(tmp_path / engine, own, engine) for engine in ("reference", "cohort")]
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert found[0][-1] != pytest.approx(losses(tmp_path / "usual", usual, "reference")[-1], rel=1e-4)


def test_an_own_batch_that_draws_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="Drawing makes another batch of the same samples"):
        losses(tmp_path, Drawing, "cohort")
