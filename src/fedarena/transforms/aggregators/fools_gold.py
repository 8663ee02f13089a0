"""Clients that always want the same count less. Fung, Yoon, Beschastnikh, "The Limitations of Federated Learning in
Sybil Settings" (FoolsGold), RAID 2020.

From the cosine similarities of what clients have sent so far, each in all its rounds together (cs), with
v_i = max_j cs_ij, and 0 at least: honest clients are pardoned, cs_ij = cs_ij v_i / v_j where v_j > v_i; then
α_i = 1 - max_j cs_ij, divided by the largest, and spread out by κ (ln(α_i / (1 - α_i)) + 0.5), cut to [0, 1]. The paper
adds α_i x_i up; here it is their mean by α_i, so that the step is as long as others' are.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train import Groups
from fedarena.transforms.aggregators.base import AGGREGATORS, ServerStep
from fedarena.transforms.aggregators.collected import Collected, one_thread
from fedarena.transforms.aggregators.defence import Defence
from fedarena.transforms.rows import FloatArray, IntArray

_REMEMBERED, _HISTORY = "remembered", "history"


@AGGREGATORS.register("fools_gold")
class FoolsGold(Defence):
    """Compares what clients have sent in all their rounds, of the last layer or all `layers`.

    What they sent is kept at the server, in at most `memory_bytes`: if that is full, clients that have not come for
    longest are forgotten. Those of the current step are always remembered.
    """

    def __init__(
        self,
        *,
        layers: Literal["last", "all"] = "last",
        confidence: float = 1.0,
        memory_bytes: int = 1 << 28,
        staleness_exponent: float = 0.5,
    ):
        super().__init__(staleness_exponent=staleness_exponent)
        if not confidence > 0:
            raise BadInputError(f"aggregator.confidence must be above 0, not {confidence}")
        if memory_bytes < 1:
            raise BadInputError(f"aggregator.memory_bytes must be at least 1, not {memory_bytes}")
        self.layers, self.confidence, self.memory_bytes = layers, confidence, memory_bytes

    def server_init(self, update: Groups) -> Groups:
        """Nobody is remembered."""
        nobody = torch.zeros(0, dtype=torch.int64)
        return {_REMEMBERED: {"clients": nobody, "versions": nobody.clone()}, _HISTORY: {}}

    @property
    def weighs_whole_updates(self) -> bool:
        """By how little clients are alike."""
        return True

    def defend(self, updates: Collected, kept: Groups, step: ServerStep) -> tuple[Groups, FloatArray, Groups]:
        """The mean by how little clients are alike, and the memory with what they sent now."""
        kept = self._remember(updates, kept, int(step.context.version))
        places = positions_of(updates.clients, kept[_REMEMBERED]["clients"].cpu().numpy())
        rows = torch.from_numpy(places)
        sums = [t[rows.to(t.device)].reshape(len(rows), -1).double().cpu().numpy() for t in kept[_HISTORY].values()]
        weights = learning_rates(similarities(np.concatenate(sums, axis=1)), self.confidence)
        return updates.weighted_mean(weights), weights, kept

    def _remember(self, updates: Collected, kept: Groups, version: int) -> Groups:
        """The memory with the updates of a step, and without those for whom there is no place."""
        known, versions = (kept[_REMEMBERED][name].cpu().numpy() for name in ("clients", "versions"))
        now = np.unique(updates.clients)
        everybody = np.union1d(known, now)
        last = np.full(len(everybody), version)
        last[positions_of(known, everybody)] = versions
        last[positions_of(now, everybody)] = version
        compared = compared_tensors(updates, self.layers)
        per_client = sum(parts[0][0].numel() * parts[0].element_size() for _, parts in compared)
        most = max(len(now), self.memory_bytes // max(per_client, 1))
        left = np.sort(np.argsort(-last, kind="stable")[:most])
        clients = everybody[left]
        stay = np.isin(known, clients)
        old_places = torch.from_numpy(positions_of(known[stay], clients))
        new_places = torch.from_numpy(positions_of(updates.clients, clients))
        history: dict[str, Tensor] = {}
        for name, parts in compared:
            sent = torch.cat(list(parts))
            total = sent.new_zeros(len(clients), *sent.shape[1:])
            if stay.any():
                total[old_places.to(sent.device)] = kept[_HISTORY][name][torch.from_numpy(stay).to(sent.device)]
            history[name] = total.index_add(0, new_places.to(sent.device), sent)
        remembered = {"clients": torch.from_numpy(clients), "versions": torch.from_numpy(last[left])}
        return {_REMEMBERED: remembered, _HISTORY: history}


def compared_tensors(updates: Collected, layers: str) -> list[tuple[str, list[Tensor]]]:
    """Name and rows of the tensors by which clients are compared: all that move the model, or the last layer's."""
    moving = [(f"{group}/{name}", name, parts) for group, name, parts in updates.tensors() if group in updates.changes]
    last_layer = moving[-1][1].rpartition(".")[0]
    chosen = [one for one in moving if layers == "all" or one[1].rpartition(".")[0] == last_layer]
    return [(key, parts) for key, _, parts in chosen]


def positions_of(wanted: IntArray, among: IntArray) -> IntArray:
    """Where these are in a sorted array that has them all."""
    return np.searchsorted(among, wanted)


def similarities(history: FloatArray) -> FloatArray:
    """The cosines between any two rows; 0 with a row of zeros."""
    norms = np.linalg.norm(history, axis=1)
    unit = torch.from_numpy(history / np.where(norms > 0, norms, 1.0)[:, None])
    with one_thread():
        cosines: FloatArray = (unit @ unit.T).clamp(-1.0, 1.0).numpy()
    return cosines


def learning_rates(cosines: FloatArray, confidence: float) -> FloatArray:
    """How much every client counts, from 0 to 1."""
    cosines = cosines.copy()
    np.fill_diagonal(cosines, -np.inf)
    # As in the authors' code: below 0, a product of two negative numbers would make who is least alike the most alike.
    closest = cosines.max(1).clip(min=0.0)
    positive = np.where(closest > 0, closest, 1.0)
    pardon = np.where(closest[None, :] > closest[:, None], closest[:, None] / positive, 1.0)
    alphas = np.clip(1.0 - (cosines * pardon).max(1), 0.0, 1.0)
    if not alphas.any():  # they are all the same, and nobody can say who copied whom
        return np.ones(len(alphas))
    alphas /= alphas.max()
    with np.errstate(divide="ignore"):
        spread = confidence * (np.log(alphas) - np.log1p(-alphas) + 0.5)
    rates: FloatArray = np.clip(spread, 0.0, 1.0)
    return rates
