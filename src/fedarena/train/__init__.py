"""Engines: they execute the training of a cohort and the evaluation of a model."""

from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.cohort import CohortEngine
from fedarena.train.crew import Crew, RayEngine
from fedarena.train.engine import ENGINES, ClientData, ClientScores, Engine, JobResults, OtherTest, train_jobs
from fedarena.train.flops import count_scoring_flops, count_training_flops
from fedarena.train.jobs import Client, Job, JobArrays, JobContext
from fedarena.train.optimizers import LocalTraining
from fedarena.train.personal import personal_notes
from fedarena.train.reference import ReferenceEngine
from fedarena.train.shards import Shard
from fedarena.train.systems_hooks import COVERAGE, PartialWork
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
from fedarena.train.without_compiler import spare_the_compiler

__all__ = [
    "COVERAGE",
    "ENGINES",
    "Algorithm",
    "Client",
    "ClientData",
    "ClientScores",
    "CohortEngine",
    "Crew",
    "Engine",
    "Groups",
    "Job",
    "JobArrays",
    "JobContext",
    "JobResults",
    "LocalTraining",
    "OtherTest",
    "PartialWork",
    "RayEngine",
    "ReferenceEngine",
    "Shard",
    "Work",
    "count_bytes",
    "count_scoring_flops",
    "count_training_flops",
    "finite_rows",
    "flatten_groups",
    "is_finite",
    "map_groups",
    "personal_notes",
    "stack_groups",
    "take_row",
    "train_jobs",
    "unflatten_groups",
]

spare_the_compiler()
