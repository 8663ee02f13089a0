"""Federated algorithms, one per file."""

from fedarena.algorithms.fedadagrad import FedAdagrad
from fedarena.algorithms.fedadam import FedAdam
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.fedavgm import FedAvgM
from fedarena.algorithms.feddyn import FedDyn
from fedarena.algorithms.fednova import FedNova
from fedarena.algorithms.fedprox import FedProx
from fedarena.algorithms.fedyogi import FedYogi
from fedarena.algorithms.minibatch_sgd import MinibatchSGD
from fedarena.algorithms.qfedavg import QFedAvg
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.algorithms.scaffold import Scaffold

__all__ = [
    "ALGORITHMS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedNova",
    "FedProx",
    "FedYogi",
    "MinibatchSGD",
    "QFedAvg",
    "Scaffold",
]
