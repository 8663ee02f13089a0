"""Engines: they execute the training of a cohort and the evaluation of a model."""

from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.engine import ENGINES, ClientData, ClientScores, Engine, Job, JobResult
from fedarena.train.flops import count_training_flops
from fedarena.train.optimizers import LocalTraining
from fedarena.train.reference import ReferenceEngine
from fedarena.train.tensors import Groups, all_finite, count_bytes, flatten_groups, unflatten_groups

__all__ = [
    "ENGINES",
    "Algorithm",
    "ClientData",
    "ClientScores",
    "Engine",
    "Groups",
    "Job",
    "JobResult",
    "LocalTraining",
    "ReferenceEngine",
    "Work",
    "all_finite",
    "count_bytes",
    "count_training_flops",
    "flatten_groups",
    "unflatten_groups",
]
