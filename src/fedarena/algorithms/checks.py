"""Refusing hyperparameters outside of their range."""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.train import LocalTraining


def check_positive(**values: float) -> None:
    """Raises unless every value is above 0."""
    for name, value in values.items():
        if not value > 0:
            raise BadInputError(f"algorithm.{name} must be above 0, not {value}")


def check_not_negative(**values: float) -> None:
    """Raises unless every value is at least 0."""
    for name, value in values.items():
        if not value >= 0:
            raise BadInputError(f"algorithm.{name} must be at least 0, not {value}")


def check_fraction(**values: float) -> None:
    """Raises unless every value is at least 0 and below 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise BadInputError(f"algorithm.{name} must be at least 0 and below 1, not {value}")


def check_sgd(name: str, optimizer: str) -> None:
    """Raises unless an algorithm that counts on it has a local optimizer whose steps are sums of gradients."""
    if optimizer != "sgd":
        raise BadInputError(f"{name} is defined for local.optimizer=sgd, not for {optimizer}")


def check_layers_can_rest(name: str, local: LocalTraining) -> None:
    """Raises where layers without a turn would move: what decay adds is taken from them before clipping."""
    if local.clip_norm is not None and local.weight_decay:
        raise BadInputError(
            f"{name} leaves layers as they are in some steps, which cannot be with both local.weight_decay and "
            "local.clip_norm; leave out one of them"
        )
