"""Federated algorithms, one per file."""

from fedarena.algorithms.biasprompt import BiasPrompt
from fedarena.algorithms.ditto import Ditto
from fedarena.algorithms.fedadagrad import FedAdagrad
from fedarena.algorithms.fedadam import FedAdam
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.fedavgm import FedAvgM
from fedarena.algorithms.fedbn import FedBN
from fedarena.algorithms.feddyn import FedDyn
from fedarena.algorithms.fedkd import FedKD
from fedarena.algorithms.fednova import FedNova
from fedarena.algorithms.fedprox import FedProx
from fedarena.algorithms.fedyogi import FedYogi
from fedarena.algorithms.fetchsgd import FetchSGD
from fedarena.algorithms.local_head import LocalHead
from fedarena.algorithms.local_only import LocalOnly
from fedarena.algorithms.minibatch_sgd import MinibatchSGD
from fedarena.algorithms.mocha import Mocha
from fedarena.algorithms.qfedavg import QFedAvg
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.algorithms.reptile import Reptile
from fedarena.algorithms.scaffold import Scaffold
from fedarena.algorithms.timelyfl import TimelyFL

__all__ = [
    "ALGORITHMS",
    "BiasPrompt",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedDyn",
    "FedKD",
    "FedNova",
    "FedProx",
    "FedYogi",
    "FetchSGD",
    "LocalHead",
    "LocalOnly",
    "MinibatchSGD",
    "Mocha",
    "QFedAvg",
    "Reptile",
    "Scaffold",
    "TimelyFL",
]
