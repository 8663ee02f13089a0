"""What a model answers for every single sample that it is evaluated on, as a table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from fedarena.models import Task, Tensors
from fedarena.runs.building import Experiment
from fedarena.train.evaluation import OwnTask
from fedarena.train.tensors import column_tensor

_CLIENTS_AT_ONCE = 256
_ROWS_AT_ONCE = 256
LABEL_NAMES = b"label_names"  # in the metadata of the table, as JSON, where the federation has names


def predictions_of(experiment: Experiment, params: Tensors) -> pa.Table:
    """A row per sample of the evaluated clients: whose, which, what is right, what the model answers, its scores."""
    simulation, federation = experiment.simulation, experiment.federation
    clients, part = simulation.evaluation_clients, simulation.evaluation_part
    own, device = OwnTask(simulation.task, params), next(iter(params.values())).device
    at_once = min(_ROWS_AT_ONCE, own.task.largest_batch or _ROWS_AT_ONCE)
    blocks = []
    for start in range(0, len(clients), _CLIENTS_AT_ONCE):
        chosen = clients[start : start + _CLIENTS_AT_ONCE]
        samples = federation.samples(chosen, part)
        counts = np.diff(samples.offsets)
        tensors = {name: column_tensor(values) for name, values in samples.columns.items()}
        owners = np.repeat(np.array(federation.client_ids(chosen), dtype=object), counts)
        numbers = np.arange(len(owners)) - np.repeat(samples.offsets[:-1], counts)
        for first in range(0, len(owners), at_once):
            rows = slice(first, first + at_once)
            with torch.no_grad():
                batch = own.task.batch({name: t[rows].to(device) for name, t in tensors.items()})
                answers = own.task.answers(own.task.predict(own.params, batch))
            columns = {"client": owners[rows], "sample": numbers[rows], **_told(own.task, answers, batch["y"])}
            blocks.append(pa.table({name: _column(values) for name, values in columns.items()}))
    table = pa.concat_tables(blocks).combine_chunks()
    names = federation.task.label_names
    return table.replace_schema_metadata({LABEL_NAMES: json.dumps(list(names)).encode()}) if names else table


def _told(task: Task, answers: Tensor, right: Tensor) -> dict[str, Any]:
    """Label, prediction and scores of every sample, as the task sees them."""
    if task.predicts == "numbers":
        return {"label": _numbers(right), "prediction": _numbers(answers)}
    if task.predicts in ("tokens", "transcripts"):  # the scores would be many thousand a sample
        return {"label": right.cpu().numpy(), "prediction": answers.argmax(-1).cpu().numpy()}
    scores = answers.cpu().numpy()
    if task.predicts == "labels":  # one for every label
        return {"label": _numbers(right.long()), "prediction": _numbers((answers > 0).long()), "scores": scores}
    return {"label": right.cpu().numpy(), "prediction": answers.argmax(-1).cpu().numpy(), "scores": scores}


def _numbers(values: Tensor) -> npt.NDArray[Any]:
    """A number per sample, or several."""
    return (values.squeeze(-1) if values.dim() > 1 and values.shape[-1] == 1 else values).cpu().numpy()


def _column(values: npt.NDArray[Any]) -> pa.Array:
    """A value per sample, or a list of them."""
    if values.dtype == object:
        return pa.array(values, pa.string())
    if values.ndim == 1:
        return pa.array(values)
    flat = values.reshape(len(values), -1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])
