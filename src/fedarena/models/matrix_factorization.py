"""Matrix factorization (Koren, Bell and Volinsky, IEEE Computer 2009), for ratings of items by users.

Where every client is one user, samples name items alone, and the model has the vector of one user. That part is called
`personal`: with `fedbn` it stays with the client, and only items are shared (horizontal federated matrix factorization,
Li et al., "Federated Matrix Factorization with Privacy Guarantee", 2021). So a model is as large as the items, however
many users there are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


class MatrixFactorization(nn.Module):
    """A level for all, one more for every user and item, and the product of a vector of each."""

    def __init__(self, users: int, items: int, factors: int, outputs: int, level: float):
        super().__init__()
        self.users, self.items = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_levels, self.item_levels = nn.Embedding(users, outputs), nn.Embedding(items, outputs)
        self.output = nn.Linear(factors, outputs)
        for factor in (self.users, self.items):
            nn.init.normal_(factor.weight, std=0.1)
        for one_level in (self.user_levels, self.item_levels):
            nn.init.zeros_(one_level.weight)
        nn.init.ones_(self.output.weight)
        nn.init.constant_(self.output.bias, level)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Predictions ``[samples, outputs]`` for the numbers of users and items, ``[samples]`` each."""
        product = self.users(users) * self.items(items)
        prediction: Tensor = self.output(product) + self.user_levels(users) + self.item_levels(items)
        return prediction


class OneUsersFactorization(nn.Module):
    """The same for the one user that a client is."""

    def __init__(self, items: int, factors: int, outputs: int, level: float):
        super().__init__()
        self.items, self.item_levels = nn.Embedding(items, factors), nn.Embedding(items, outputs)
        self.output = nn.Linear(factors, outputs)
        self.personal = nn.ParameterDict({"factors": torch.empty(factors), "level": torch.zeros(outputs)})
        for factor in (self.items.weight, self.personal["factors"]):
            nn.init.normal_(factor, std=0.1)
        nn.init.zeros_(self.item_levels.weight)
        nn.init.ones_(self.output.weight)
        nn.init.constant_(self.output.bias, level)

    def forward(self, items: Tensor) -> Tensor:
        """Predictions ``[samples, outputs]`` for the numbers of items, ``[samples]``."""
        product = self.personal["factors"] * self.items(items)
        prediction: Tensor = self.output(product) + self.personal["level"] + self.item_levels(items)
        return prediction


@MODELS.register("matrix_factorization")
def matrix_factorization(spec: DataSpec, *, factors: int = 8) -> nn.Module:
    """Vectors of `factors` numbers for users and items, whose product says how well they match.

    If samples name items alone, because a client is a user, there is one user's vector: with `fedbn` it stays with the
    client.
    """
    coded = all(part.values is not None and part.shape == () for part in spec.inputs)
    needs = "two inputs that are codes, such as a user and an item, or one, such as an item"
    require(coded and len(spec.inputs) in (1, 2), "matrix_factorization", needs, spec)
    at_least_one(factors=factors)
    level = sum(spec.value_range) / 2 if spec.value_range else 0.0
    numbers = [part.values or 0 for part in spec.inputs]
    if len(numbers) == 1:
        return OneUsersFactorization(numbers[0], factors, spec.classes, level)
    return MatrixFactorization(numbers[0], numbers[1], factors, spec.classes, level)
