"""NbAFL."""
from __future__ import annotations

from typing import Any

import torch

from fedarena.models import Tensors
from fedarena.train import Algorithm, Client, Groups, Work


class NoisyModels(Algorithm):
    """Clients shorten the models they send to the norm `clip_norm`, and add noise to them."""

    clip_norm: float
    uplink: Any  # samples of a client → deviation of its noise

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The way from the downloaded model to the shortened, noisy one."""
        update, kept = super().client_update(params, client, work)
        start, change = client.broadcast["params"], update["params"]
        model = {name: start[name] + change[name] for name in change}
        length = torch.stack([t.square().sum() for t in model.values()]).sum().sqrt()
        factor = (self.clip_norm / length.clamp(min=self.clip_norm)).to(length.dtype)
        std = self.uplink(work.samples)
        sent = {
            name: factor * t + std * client.job.normal(f"nbafl {name}", t) - start[name] for name, t in model.items()
        }
        return {**update, "params": sent}, kept
