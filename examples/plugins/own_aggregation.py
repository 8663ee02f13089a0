"""Adaptive aggregation, as FedScale's `round_completion_handler`: the server goes further while updates agree.

python examples/plugins/own_aggregation.py
"""

from __future__ import annotations

import torch

import fedarena
from fedarena.algorithms import FedAvg


class FurtherWhileAgreed(FedAvg):
    """The step of the server grows by a tenth when it goes on in the same direction, and is halved when it turns."""

    def server_init(self, params):
        none = {name: torch.zeros_like(p) for name, p in params.items()}
        return {"params": params, "before": none, "scale": {"": torch.ones((), dtype=torch.float64)}}

    def server_step(self, state, mean_update, round):
        update = mean_update["params"]
        along = sum((u.double() * state["before"][name].double()).sum() for name, u in update.items())
        scale = (state["scale"][""] * torch.where(along < 0, 0.5, 1.1)).clamp(max=2.0)
        params = {name: p + scale.to(p.dtype) * update[name] for name, p in state["params"].items()}
        return {**state, "params": params, "before": update, "scale": {"": scale}}


SETTINGS = {"algorithm": FurtherWhileAgreed}

if __name__ == "__main__":
    print(fedarena.run(SETTINGS, federation="digits", rounds=20, cohort=10).summary["final"]["accuracy"])
