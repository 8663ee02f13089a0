"""Choosing parameters of a model by their names."""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.models.parameter_names import PERSONAL_PART, last_layer, layer_of, matching

__all__ = ["PERSONAL_PART", "check_patterns", "last_layer", "layer_of", "matching"]


def check_patterns(params: Tensors, option: str, patterns: list[str]) -> None:
    """Refuses patterns that no parameter matches."""
    for pattern in patterns:
        if not matching(params, [pattern]):
            raise BadInputError(
                f"algorithm.{option}: no parameter of the model matches {pattern!r}; it has {', '.join(params)}"
            )
