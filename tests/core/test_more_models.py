"""Models for speech, clicks, ways, games and translations: both engines agree, and each computes what it is named after."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_cohort import assert_same, train
from torch import nn

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import DataSpec, InputSpec, Task, build_model
from fedarena.models.tasks import task_class
from fedarena.models.tasks.translation import inputs_of_translation
from fedarena.train import CohortEngine, Engine, LocalTraining, ReferenceEngine

SIZES = [0, 1, 3, 7, 9, 12]
RATE = 400  # samples of a second: windows of 10, four apart
CODES = (InputSpec("x", (5,)), InputSpec("shop", (), 7), InputSpec("seen", (3,), 9))
TEXT = DataSpec("next_token", 12, (9,), padding=0, unknown=1)
TWEETS = DataSpec("classification", 3, (7,), padding=0, unknown=1, tokens=15)
SMALL_ALBERT = {"layers": 3, "heads": 2, "width": 6, "embedding": 4, "hidden": 8, "positions": 12, "dropout": 0.2}
# By model and what is special: the form of the data, options, and the task.
CASES: dict[str, tuple[DataSpec, dict[str, Any], str]] = {
    "vgg11": (DataSpec("classification", 4, (3, 32, 32)), {"hidden": 6, "small_images": True}, "auto"),
    "albert": (TWEETS, SMALL_ALBERT, "auto"),
    "albert, masked": (TEXT, SMALL_ALBERT, "masked_token"),
    "gru": (TEXT, {"embedding": 3, "hidden": 4}, "auto"),
    "gru, one label": (TWEETS, {"embedding": 3, "hidden": 4}, "auto"),
    "gru, ways": (DataSpec("regression", 2, (6, 3)), {"hidden": 4}, "auto"),
    "dlrm": (DataSpec("classification", 2, (), inputs=CODES), {"factors": 3, "bottom": (4,), "top": (5,)}, "click"),
    "dlrm, rating": (
        DataSpec("rating", 1, (), inputs=CODES[1:], value_range=(1.0, 5.0)),
        {"factors": 3, "top": (5,)},
        "auto",
    ),
    "go_policy": (DataSpec("classification", 26, (3, 5, 5)), {"width": 4, "layers": 1}, "auto"),
    "seq2seq": (
        DataSpec("translation", 11, (6,), padding=0, tokens=9, inputs=inputs_of_translation(6, 5, 9, 11)),
        {"embedding": 3, "hidden": 4},
        "auto",
    ),
    "speech_cnn": (
        DataSpec("classification", 3, (100,), sample_rate=RATE),
        {"bands": 4, "channels": (2, 3), "hidden": 4},
        "auto",
    ),
    "deepspeech_small": (
        DataSpec("transcription", 5, (100,), sample_rate=RATE, longest_transcript=4),
        {"bands": 4, "hidden": 3, "layers": 1},
        "auto",
    ),
}


def make(case: str, **more: Any) -> Task:
    spec, options, task = CASES[case]
    kind = task_class(task, spec)
    seen = kind.model_spec(spec)
    return kind(build_model(case.partition(",")[0], seen, options | more, 0, lambda module: kind(module, seen)), seen)


class SomeClients:
    """Clients with random samples of the form that a model is for."""

    def __init__(self, spec: DataSpec):
        self.spec, self._random = spec, np.random.default_rng(0)
        self.columns = [self._samples(size) for size in SIZES]

    def _tokens(self, size: int, length: int, number: int) -> np.ndarray:
        return self._random.integers(1, number, size=(size, length))

    def _samples(self, size: int) -> dict[str, np.ndarray]:
        spec = self.spec
        if spec.kind == "next_token":
            tokens = self._tokens(size, spec.input_shape[0] + 1, spec.classes)
            tokens[:, 6:] *= self._random.integers(0, 2, size=(size, 1))  # some end early
            return {"tokens": tokens.astype(np.uint8)}
        if spec.kind == "translation":
            y = self._tokens(size, spec.inputs[1].shape[0] + 1, spec.classes)
            y[:, 3:] *= self._random.integers(0, 2, size=(size, 1))
            x = self._tokens(size, spec.input_shape[0], spec.tokens or 0)
            x[:, :2] *= self._random.integers(0, 2, size=(size, 1))
            return {"x": x, "y": y}
        y = self._random.integers(spec.classes, size=size)
        if spec.kind in ("regression", "rating"):
            y = self._random.normal(size=(size, spec.classes) if spec.classes > 1 else size) + 3
        if spec.kind == "transcription":
            lengths = self._random.integers(1, (spec.longest_transcript or 1) + 1, size=(size, 1))
            said = self._tokens(size, spec.longest_transcript or 1, spec.classes)
            y = np.where(np.arange(said.shape[1]) < lengths, said, 0)
        if spec.inputs:
            x = {
                part.name: self._random.normal(size=(size, *part.shape))
                if part.values is None
                else self._random.integers(part.values, size=(size, *part.shape))
                for part in spec.inputs
            }
            return {**x, "y": y}
        if spec.is_text:
            return {"x": self._tokens(size, spec.input_shape[0], spec.vocabulary), "y": y}
        x = self._random.normal(size=(size, *spec.input_shape))
        return {"x": (x * 5000).astype(np.int16) if spec.is_audio else x, "y": y}

    def counts(self, clients: Any, part: str) -> np.ndarray:
        return np.array([SIZES[c] for c in clients])

    def samples(self, clients: Any, part: str) -> Any:
        chosen = [self.columns[c] for c in clients]
        joined = {name: np.concatenate([c[name] for c in chosen]) for name in chosen[0]}
        return SimpleNamespace(columns=joined, offsets=np.cumsum([0, *(SIZES[c] for c in clients)]))


def engine(kind: Any, case: str, **options: Any) -> Engine:
    local, algorithm = LocalTraining(epochs=1, batch_size=4, lr=0.05), FedAvg()
    algorithm.prepare(4, local)
    made: Engine = kind(make(case), algorithm, local, SomeClients(CASES[case][0]), seed=3, dtype="float64", **options)
    return made


@pytest.mark.parametrize("case", CASES)
def test_many_clients_train_as_one_at_a_time(case: str) -> None:
    found, scored = [], []
    for kind in (ReferenceEngine, CohortEngine):
        made = engine(kind, case)
        params = made.initial_params()
        found.append(train(made, [1, 3, 5], {"params": params}, {}))
        scored.append(made.evaluate(params, np.array([2, 4]), "test"))
        assert not made.notes  # which would say that it cannot be vectorized
    assert_same(*found)
    for name, scores in scored[0].metrics.items():
        np.testing.assert_allclose(scores.values, scored[1].metrics[name].values, rtol=1e-10)
        assert np.isfinite(scores.total)
