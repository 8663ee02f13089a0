"""The federation of a run: opened, with what automatic choices come to; who trains on it, and who is scored."""

from __future__ import annotations

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.core.rounding import changed_by_rounding
from fedarena.data import Federation, PooledFederation, load_federation
from fedarena.models import MODELS, TASKS, DataSpec, InputSpec, default_model
from fedarena.models.tasks import AUTOMATIC_TASK
from fedarena.models.tasks.translation import inputs_of_translation
from fedarena.runs.config import AUTOMATIC_MODEL, USUAL_COHORT, RunConfig
from fedarena.runs.observer import Observer
from fedarena.train import LocalTraining
from fedarena.train.engine import IntArray, Part

_FLOAT_BYTES = 4  # of numbers as models usually compute
_CLIENTS_LOOKED_AT = 100
_OF_CLASSES = ("classification", "multi_label", "node_classification")  # kinds of federations


def open_federation(
    config: RunConfig, observer: Observer, given: Federation | None = None
) -> tuple[Federation, RunConfig]:
    """The federation of a run, and its configuration with the task, model and cohort that automatic choices come to."""
    if given is None:
        options = dict(config.federation)
        federation = load_federation(options.pop("name"), options, observer.preparing)
    else:
        federation = given
    if config.task["name"] == AUTOMATIC_TASK:
        task = resolve_part(TASKS, config.task | {"name": federation.task.kind}, "task")
        config = config.model_copy(update={"task": task})
    if config.model["name"] == AUTOMATIC_MODEL:
        model = resolve_part(MODELS, default_model(data_spec(federation)), "model")
        config = config.model_copy(update={"model": model})
    if config.cohort is None:
        config = config.model_copy(update={"cohort": min(USUAL_COHORT, len(clients_to_train(federation, [])))})
    return federation, config


def data_spec(federation: Federation) -> DataSpec:
    """The form of a federation's samples, as models want to know it."""
    task, columns = federation.task, federation.columns
    if task.kind == "next_token":
        length = columns["tokens"].shape[0] - 1
        return DataSpec("next_token", task.classes, (length,), task.padding, task.unknown, token_names=task.label_names)
    inputs = tuple(InputSpec(name, columns[name].shape, values) for name, values in (task.inputs or {}).items())
    shape = () if inputs else columns["x"].shape
    if task.kind == "translation":
        inputs = inputs_of_translation(columns["x"].shape[0], columns["y"].shape[0], task.tokens or 0, task.classes)
    return DataSpec(
        task.kind,
        task.classes,
        shape,
        task.padding,
        task.unknown,
        task.tokens,
        inputs,
        task.value_range,
        task.label_names if task.kind == "transcription" else task.token_names,
        tuple(federation.label_counts.tolist()) if task.kind in _OF_CLASSES else None,
        task.sample_rate,
        columns["y"].shape[0] if task.kind == "transcription" else None,
    )


def clients_to_train(federation: Federation, warnings: list[str]) -> IntArray:
    """Training clients who have samples; that others have none is added to the warnings."""
    clients = federation.clients("train")
    useful = clients[federation.counts(clients, "train") > 0]
    if len(useful) == 0 and federation.source.name == "devices":
        raise BadInputError(
            f"The federation {federation.name!r} has no samples, only their form: real devices have them; "
            "train with: fedarena deploy run"
        )
    if len(useful) == 0:
        raise BadInputError(f"No client of the federation {federation.name!r} has a training sample")
    if len(useful) < len(clients):
        empty = len(clients) - len(useful)
        warnings.append(f"{empty:,} of {len(clients):,} clients have no training sample and are never invited")
    return useful


def samples_to_train_on(
    federation: Federation, clients: IntArray, local: LocalTraining, config: RunConfig
) -> tuple[Federation | PooledFederation, IntArray]:
    """Where training samples come from, and who holds them."""
    if config.training == "natural":
        return federation, clients
    if config.training == "iid":
        pooled = PooledFederation(federation, clients, config.seed, samples_per_client=None)
        return pooled, pooled.made_up_clients(len(clients))
    # In every round the server goes on in the sequence: by as much as its steps need, or by the whole pool.
    in_pool = int(federation.counts(clients, "train").sum())
    per_round = in_pool if local.steps is None else local.steps * local.batch_size
    pooled = PooledFederation(federation, clients, config.seed, per_round)
    return pooled, pooled.made_up_clients(config.rounds)


def check_digits(federation: Federation, clients: IntArray, config: RunConfig) -> list[str]:
    """Refuses labels that differ by less than models compute with, and tells of such inputs."""
    columns, notes = federation.columns, []
    if config.engine.get("dtype") == "float64":
        return []
    looked_at = [
        name
        for name in ("x", "y")
        if name in columns
        and np.dtype(columns[name].dtype).itemsize > _FLOAT_BYTES
        and (federation.task.kind == "regression" or (name == "x" and data_spec(federation).is_features))
    ]
    samples = federation.samples(clients[:_CLIENTS_LOOKED_AT], "train").columns if looked_at else {}
    for name in looked_at:
        if changed := changed_by_rounding(samples[name]):
            told = (
                f"The federation {federation.name!r} has numbers in {name!r} that differ by less than the seven digits "
                f"that models compute with: {changed[0]!r} becomes {changed[1]!r}"
            )
            instead = "subtract what they have in common, or choose engine.dtype=float64"
            if name == "y":
                raise BadInputError(f"{told}; {instead}")
            notes.append(f"{told} ({instead})")
    return notes


def clients_to_score(federation: Federation, config: RunConfig) -> IntArray:
    """Clients on whose samples models are evaluated."""
    part: Part = config.evaluation.part
    clients = federation.clients("train" if part == "train" else "all")
    clients = clients[federation.counts(clients, part) > 0]
    if len(clients) == 0:
        raise BadInputError(
            f"The federation {federation.name!r} has no {part} samples to evaluate on; "
            "choose another evaluation.part, or fractions of the federation that leave some"
        )
    return at_most_scored(clients, config)


def at_most_scored(clients: IntArray, config: RunConfig) -> IntArray:
    """As many as are to be scored."""
    most = config.evaluation.max_clients
    if most is None or most >= len(clients):
        return clients
    chosen = streams.generator(0, "evaluation clients").choice(clients, most, replace=False)
    return np.sort(chosen)  # the same for all seeds, so that they can be compared
