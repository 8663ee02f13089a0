"""The models of the workloads in plain torch, for the peers that train torch modules."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workloads import Array, Model, Workload, initial_params, mean_loss


class CharacterModel(nn.Module):
    """Predicts every next character from the last few."""

    def __init__(self, model: Model):
        super().__init__()
        self.context = model.context
        self.embed = nn.Embedding(model.classes, model.embedding)
        self.window = nn.Linear(model.context * model.embedding, model.hidden)
        self.output = nn.Linear(model.hidden, model.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = F.pad(self.embed(tokens), (0, 0, self.context - 1, 0))
        windows = torch.cat([embedded[:, i : i + tokens.shape[1]] for i in range(self.context)], -1)
        return self.output(torch.relu(self.window(windows)))


OUR_NAMES_IN_LSTM = {
    "embed.weight": "0.weight",
    "lstm.weight_ih_l0": "1.input.weight",
    "lstm.bias_ih_l0": "1.input.bias",
    "lstm.weight_hh_l0": "1.recurrent.weight",
    "output.weight": "2.weight",
    "output.bias": "2.bias",
}


class RecurrentModel(nn.Module):
    """Predicts every next character with torch's LSTM, of whose two biases, which are added up, one is trained."""

    def __init__(self, model: Model):
        super().__init__()
        self.embed = nn.Embedding(model.classes, model.embedding)
        self.lstm = nn.LSTM(model.embedding, model.hidden, batch_first=True)
        self.output = nn.Linear(model.hidden, model.classes)
        nn.init.zeros_(self.lstm.bias_hh_l0.requires_grad_(False))

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(tokens))
        return self.output(states)


def build_module(model: Model) -> nn.Module:
    """The module with the workload's first parameters."""
    given = {name: torch.from_numpy(p) for name, p in initial_params(model).items()}
    if model.kind == "lstm":
        recurrent = RecurrentModel(model)
        named = {name: given[ours] for name, ours in OUR_NAMES_IN_LSTM.items()}
        recurrent.load_state_dict(recurrent.state_dict() | named)
        return recurrent
    if model.kind == "char_mlp":
        module: nn.Module = CharacterModel(model)
    elif model.kind == "cnn":
        first, second = model.channels
        channels, height, width = model.input_shape
        module = nn.Sequential(
            nn.Conv2d(channels, first, 3, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), model.hidden),
            nn.ReLU(),
            nn.Linear(model.hidden, model.classes),
        )
    else:
        widths = [prod(model.input_shape), *([model.hidden] if model.hidden else [])]
        hidden = [nn.Linear(*widths), nn.ReLU()] if model.hidden else []
        module = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], model.classes))
    module.load_state_dict(given)
    return module


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Mean over all predictions, of which a sequence has many."""
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


@torch.no_grad()
def module_loss(module: nn.Module, workload: Workload) -> float:
    """The loss of a module on all samples."""

    def loss_of(x: Array, y: Array) -> float:
        return float(cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)))

    return mean_loss(workload, loss_of)
