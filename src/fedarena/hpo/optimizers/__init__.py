"""Optimizers, one per file."""

from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal

__all__ = ["OPTIMIZERS", "Optimizer", "Proposal"]
