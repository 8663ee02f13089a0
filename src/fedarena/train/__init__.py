"""Engines: they execute the training of a cohort and the evaluation of a model."""

from fedarena.train.algorithm import COVERAGE, JOB, Algorithm, PartialWork, Work
from fedarena.train.cohort import CohortEngine
from fedarena.train.engine import ENGINES, ClientData, ClientScores, Engine, Job, JobResults
from fedarena.train.flops import count_training_flops
from fedarena.train.optimizers import LocalTraining
from fedarena.train.personal import personal_notes
from fedarena.train.reference import ReferenceEngine
from fedarena.train.tensors import (
    Groups,
    count_bytes,
    finite_rows,
    flatten_groups,
    is_finite,
    map_groups,
    stack_groups,
    take_row,
    unflatten_groups,
)

__all__ = [
    "COVERAGE",
    "ENGINES",
    "JOB",
    "Algorithm",
    "ClientData",
    "ClientScores",
    "CohortEngine",
    "Engine",
    "Groups",
    "Job",
    "JobResults",
    "LocalTraining",
    "PartialWork",
    "ReferenceEngine",
    "Work",
    "count_bytes",
    "count_training_flops",
    "finite_rows",
    "flatten_groups",
    "is_finite",
    "map_groups",
    "personal_notes",
    "stack_groups",
    "take_row",
    "unflatten_groups",
]
