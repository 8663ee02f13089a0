"""The work that every tool does in the speed benchmark: models, clients, and the parameters all of them start from.

NumPy only, because every peer's environment imports it. All clients of a workload take part in every round, so that the
work of a round is the same for everybody, whatever a tool draws at random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from statistics import NormalDist
from typing import Any

import numpy as np

CLIENTS = 50
SAMPLES = 50  # of a client, on average where sizes differ
BATCH_SIZE = 10
SIGMA = 2.0  # of the logarithm of the ragged sizes

Array = np.ndarray[Any, Any]
Client = tuple[Array, Array]  # inputs and targets, a row per sample
Params = dict[str, Array]  # named and laid out as in torch


@dataclass(frozen=True)
class Model:
    """An architecture; which of the numbers count depends on the kind."""

    kind: str  # logistic_regression, mlp, cnn, char_mlp, lstm: as they are called in FedArena
    input_shape: tuple[int, ...]  # of one sample
    classes: int
    hidden: int = 0
    channels: tuple[int, int] = (0, 0)  # of the two 3x3 convolutions, each followed by ReLU and 2x2 pooling
    context: int = 0  # characters that a prediction sees
    embedding: int = 0  # width of a character

    @property
    def reads_text(self) -> bool:
        """Whether samples are sequences of characters, of which every next one is to be predicted."""
        return self.kind in ("char_mlp", "lstm")


@dataclass(frozen=True)
class Workload:
    """One model trained by one cohort: a local epoch of plain SGD in every round."""

    name: str
    description: str
    model: Model
    lr: float
    clients: tuple[Client, ...]
    batch_size: int = BATCH_SIZE

    @property
    def sizes(self) -> Array:
        """How many samples each client has."""
        return np.array([len(y) for _, y in self.clients])


LOGISTIC = Model("logistic_regression", (60,), 5)
MLP = Model("mlp", (784,), 62, hidden=200)
CNN = Model("cnn", (3, 32, 32), 10, hidden=128, channels=(32, 64))
# Vocabulary and length of the sequences are those of the federation chitchat.
CHARACTERS = Model("char_mlp", (64,), 98, hidden=128, context=8, embedding=16)
LSTM = Model("lstm", (64,), 98, hidden=64, embedding=16)

# What is drawn for whom: its model, its learning rate, whether sizes differ.
_WORKLOADS: dict[str, tuple[str, Model, float, bool]] = {
    "logistic": ("logistic regression, 60 features, 5 classes", LOGISTIC, 0.1, False),
    "mlp": ("MLP 784-200-62", MLP, 0.1, False),
    "cnn": ("CNN 3x32x32: 3x3 convolutions 32-64, dense 128, 10 classes", CNN, 0.05, False),
    "characters": ("next character: 8 characters embedded 16 wide, hidden 128, 98 classes", CHARACTERS, 0.5, False),
    "ragged": ("MLP 784-200-62, clients of log-normal size (sigma 2)", MLP, 0.1, True),
    "lstm": ("next character: an LSTM of width 64 over 64 characters embedded 16 wide, 98 classes", LSTM, 0.5, False),
}
NAMES = tuple(_WORKLOADS)
EQUAL_OF_RAGGED = "mlp"  # the same model on clients of equal size


def make_workload(name: str, clients: int = CLIENTS, samples: int = SAMPLES, seed: int = 0) -> Workload:
    """A workload, the same in every process; fewer clients and samples make it smaller."""
    description, model, lr, ragged = _WORKLOADS[name]
    random = np.random.default_rng([seed, NAMES.index(name)])
    sizes = log_normal_sizes(clients, samples) if ragged else np.full(clients, samples)
    draw = _draw_sequences if model.reads_text else draw_labelled
    x, y = draw(model, int(sizes.sum()), random)
    bounds = np.cumsum(sizes)[:-1]
    data = tuple(zip(np.split(x, bounds), np.split(y, bounds), strict=True))
    return Workload(name, description, model, lr, data)


def log_normal_sizes(clients: int, mean: float) -> Array:
    """Sizes at evenly spaced quantiles of a log-normal distribution, so that no draw is luckier than another."""
    normal = NormalDist(sigma=SIGMA)
    raw = np.exp([normal.inv_cdf((i + 0.5) / clients) for i in range(clients)])
    sizes: Array = np.maximum(1, np.round(raw * mean / raw.mean())).astype(np.int64)
    # The first client being the largest in every tool's order would be as lucky as the last.
    return np.random.default_rng(0).permutation(sizes)


def draw_labelled(model: Model, samples: int, random: np.random.Generator) -> Client:
    """Every class has a pattern, drowned in noise: a loss that goes down only if there is training."""
    patterns = random.normal(size=(model.classes, *model.input_shape))
    strength = 8 / np.sqrt(prod(model.input_shape))
    if model.kind == "cnn":  # pictures have areas, and convolutions see little else
        patterns = np.kron(patterns[..., ::8, ::8], np.ones((8, 8)))
        strength = 0.5
    y = random.integers(model.classes, size=samples)
    x = strength * patterns[y] + random.normal(size=(samples, *model.input_shape))
    return x.astype(np.float32), y.astype(np.int64)


def _draw_sequences(model: Model, samples: int, random: np.random.Generator) -> Client:
    """Sequences in which every character has a few likely successors."""
    (length,) = model.input_shape
    successors = random.integers(model.classes, size=(model.classes, 4))
    tokens = np.empty((samples, length + 1), dtype=np.int64)
    tokens[:, 0] = random.integers(model.classes, size=samples)
    for position in range(length):
        tokens[:, position + 1] = successors[tokens[:, position], random.integers(4, size=samples)]
    return tokens[:, :-1], tokens[:, 1:]


def initial_params(model: Model, seed: int = 0) -> Params:
    """What training starts from: uniform in ±1/√inputs, embeddings normal; named and laid out as in FedArena."""
    random = np.random.default_rng([seed, 1])

    def layer(name: str, *shape: int) -> Params:
        bound = 1 / np.sqrt(prod(shape[1:]))
        weight, bias = (random.uniform(-bound, bound, size) for size in (shape, shape[:1]))
        return {f"{name}.weight": weight.astype(np.float32), f"{name}.bias": bias.astype(np.float32)}

    inputs = prod(model.input_shape)
    if model.kind == "logistic_regression":
        return layer("1", model.classes, inputs)
    if model.kind == "mlp":
        return layer("1", model.hidden, inputs) | layer("3", model.classes, model.hidden)
    if model.kind == "cnn":
        image_channels, height, width = model.input_shape
        first, second = model.channels
        flat = second * (height // 4) * (width // 4)
        convolutions = layer("0", first, image_channels, 3, 3) | layer("3", second, first, 3, 3)
        return convolutions | layer("7", model.hidden, flat) | layer("9", model.classes, model.hidden)
    embed = random.normal(size=(model.classes, model.embedding)).astype(np.float32)
    if model.kind == "lstm":  # one bias for all four gates; torch's own layer has two, which are added up
        recurrent = layer("1.recurrent", 4 * model.hidden, model.hidden)["1.recurrent.weight"]
        gates = layer("1.input", 4 * model.hidden, model.embedding) | {"1.recurrent.weight": recurrent}
        return {"0.weight": embed} | gates | layer("2", model.classes, model.hidden)
    window = layer("window", model.hidden, model.context * model.embedding)
    return {"embed.weight": embed} | window | layer("output", model.classes, model.hidden)


def mean_loss(workload: Workload, loss_of: Callable[[Array, Array], float]) -> float:
    """The mean loss over all samples of all clients, from a function that gives it for some; not too many at once."""
    x, y = (np.concatenate(columns) for columns in zip(*workload.clients, strict=True))
    pieces = [slice(start, start + 500) for start in range(0, len(y), 500)]
    return sum(loss_of(x[piece], y[piece]) * len(y[piece]) for piece in pieces) / len(y)
