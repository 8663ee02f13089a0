"""Optimizers, one per file."""

from fedarena.hpo.optimizers.asha import ASHA
from fedarena.hpo.optimizers.bo_gp import GaussianProcessSearch
from fedarena.hpo.optimizers.bo_kde import KernelDensitySearch
from fedarena.hpo.optimizers.bo_rf import RandomForestSearch
from fedarena.hpo.optimizers.bohb import BOHB
from fedarena.hpo.optimizers.checked import Checked
from fedarena.hpo.optimizers.cma_es import CMAES
from fedarena.hpo.optimizers.de import DifferentialEvolution
from fedarena.hpo.optimizers.dehb import DEHB
from fedarena.hpo.optimizers.hyperband import Hyperband
from fedarena.hpo.optimizers.make import make_optimizer
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer, Proposal
from fedarena.hpo.optimizers.random_search import RandomSearch
from fedarena.hpo.optimizers.replay import replay
from fedarena.hpo.optimizers.sha import SuccessiveHalving
from fedarena.hpo.optimizers.tpe_hb import HyperbandPrunedTPE
from fedarena.hpo.optimizers.tpe_md import MedianPrunedTPE

__all__ = [
    "ASHA",
    "BOHB",
    "CMAES",
    "DEHB",
    "OPTIMIZERS",
    "Checked",
    "DifferentialEvolution",
    "GaussianProcessSearch",
    "Hyperband",
    "HyperbandPrunedTPE",
    "KernelDensitySearch",
    "MedianPrunedTPE",
    "Optimizer",
    "Proposal",
    "RandomForestSearch",
    "RandomSearch",
    "SuccessiveHalving",
    "make_optimizer",
    "replay",
]
