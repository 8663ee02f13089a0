"""Federated algorithms, one per file."""

from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.fedprox import FedProx
from fedarena.algorithms.fedyogi import FedYogi
from fedarena.algorithms.registry import ALGORITHMS

__all__ = ["ALGORITHMS", "FedAvg", "FedProx", "FedYogi"]
