"""Matrix factorization (Koren, Bell and Volinsky, IEEE Computer 2009), for ratings of items by users."""

from __future__ import annotations

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


@MODELS.register("matrix_factorization")
def matrix_factorization(spec: DataSpec, *, factors: int = 8) -> nn.Module:
    """Vectors of `factors` numbers for users and items, whose product says how well they match."""
    coded = len(spec.inputs) == 2 and all(part.values is not None and part.shape == () for part in spec.inputs)
    require(coded, "matrix_factorization", "two inputs that are codes, such as a user and an item", spec)
    at_least_one(factors=factors)
    users, items = (part.values or 0 for part in spec.inputs)
    level = sum(spec.value_range) / 2 if spec.value_range else 0.0
    return MatrixFactorization(users, items, factors, spec.classes, level)
