"""How a model does on a device's samples, in the form in which it travels: sums of the states of metrics."""

from __future__ import annotations

import numpy as np
import torch

from fedarena.client.building import DeviceParts
from fedarena.core.errors import BadInputError
from fedarena.metrics.totals import COUNT, MetricStates
from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.train.engine import Part
from fedarena.train.evaluation import measure_blocks

COUNTS, STATES = "counts", "states"


def measured(parts: DeviceParts, params: Tensors, client: int, part: Part) -> tuple[Groups, int]:
    """The sums over all samples of a part, as groups of one client, and how many samples these are."""
    engine, clients = parts.engine, np.array([client])
    samples = int(engine.data.counts(clients, part)[0])
    if not samples:
        raise BadInputError(f"There are no {part} samples to score a model on")
    engine.hardware.set_up()
    parts.task.module.eval()
    placed = engine.place({"params": params})["params"]
    (found,) = measure_blocks(parts.task, placed, engine.data, clients, part, [(0, 1)], 64)
    states = {name: torch.from_numpy(np.array(sums[0])) for name, sums in found.states.items()}
    return {COUNTS: {COUNT: torch.tensor(float(found.counts[0]), dtype=torch.float64)}, STATES: states}, samples


def client_states(groups: Groups, place: int) -> MetricStates:
    """The inverse, for the client at this place among all."""
    counts = groups[COUNTS][COUNT].reshape(1).numpy()
    states = {name: t.unsqueeze(0).numpy() for name, t in groups.get(STATES, {}).items()}
    return MetricStates(np.array([place]), counts, states)
