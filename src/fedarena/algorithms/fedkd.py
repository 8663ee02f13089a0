"""FedKD. Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Commun., 2022.

Every client keeps a mentor t, a model of its own. It trains it on the same batches as the mentee s, the shared model,
and each learns from the labels and from the other: CE_t + KL(s, t) / (CE_t + CE_s) and CE_s + KL(t, s) / (CE_t + CE_s),
so that they trust each other the more, the better both are. A mentor starts as the first mentee its client downloads.

The change of the mentee is compressed (see `low_rank`): every matrix keeps so many singular values that their squares
make up more than a share of all, which rises over the run; round r of R asks for the fraction r / R of the way from
`start_energy` to `end_energy`. The server adds up what clients have sent.

- In the paper each model follows the gradient of its own loss: for it, the other's predictions are given, and here so
  is the weight 1 / (CE_t + CE_s). `gradients="joint"` is the authors' code: all of it depends on both models.
- Mentor and mentee are of the same architecture here, and there is no loss of hidden states.
- Downloads are the whole model, uncompressed: whoever was away would need all changes it missed.
- How large an upload will be is not known before there is one. A client is expected to send as many numbers as those
  of the last round did in the mean, in which they count like their updates; before that, the whole model.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.low_rank import compress
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.train import Client, Groups, Work, flatten_groups, unflatten_groups
from fedarena.train.jobs import IntArray


@ALGORITHMS.register("fedkd")
class FedKD(FedAvg):
    """A shared mentee, of which compressed changes are uploaded, and mentors that stay on the clients."""

    predicts = ("classes", "tokens")

    def __init__(
        self,
        *,
        start_energy: float = 0.95,
        end_energy: float = 0.98,
        gradients: Literal["own", "joint"] = "own",
        server_lr: float = 1.0,
    ):
        super().__init__(server_lr=server_lr)
        for name, energy in (("start_energy", start_energy), ("end_energy", end_energy)):
            if not 0 <= energy <= 1:
                raise BadInputError(f"algorithm.{name} must be from 0 to 1, not {energy}")
        if gradients not in ("own", "joint"):
            raise BadInputError(f"algorithm.gradients must be own or joint, not {gradients!r}")
        self.start_energy, self.end_energy, self.gradients = start_energy, end_energy, gradients

    def server_init(self, params: Tensors) -> Groups:
        """The mentee, what share of the squares uploads must have, and how many numbers they are expected to be."""
        numbers = sum(p.numel() for p in params.values())
        device = next(iter(params.values())).device
        upload = {"numbers": torch.tensor(numbers, dtype=torch.float64, device=device)}
        return {"params": params, "energy": self._energy(1, params), "upload": upload}

    def broadcast(self, state: Groups) -> Groups:
        """Clients need to know how much to keep."""
        return {"params": state["params"], "energy": state["energy"]}

    def client_init(self, broadcast: Groups) -> Groups:
        """A client's mentor."""
        return {"mentor": broadcast["params"]}

    def local_start(self, client: Client) -> Tensors:
        """Both models."""
        return flatten_groups({"mentee": client.broadcast["params"], "mentor": client.state["mentor"]})

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """The mentee's loss on the labels, with the gradients of all that both models minimize."""
        models = unflatten_groups(params)
        mentee, mentor = (F.log_softmax(task.predict(models[name], batch), -1) for name in ("mentee", "mentor"))
        target = batch["y"].unsqueeze(-1)
        mentee_loss, mentor_loss = (task.mean(-p.gather(-1, target).squeeze(-1), batch) for p in (mentee, mentor))
        certain = torch.finfo(mentee.dtype).eps  # where both know everything, there is nothing to divide by
        errors = (mentee_loss + mentor_loss).clamp(min=certain)
        if self.gradients == "own":
            errors = errors.detach()
            apart = _divergence(mentor.detach(), mentee) + _divergence(mentee.detach(), mentor)
        else:
            apart = _divergence(mentor, mentee) + _divergence(mentee, mentor)
        total = mentee_loss + mentor_loss + task.mean(apart, batch) / errors
        return mentee_loss.detach() + (total - total.detach())

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The compressed change of the mentee, and how many numbers it is; the mentor stays."""
        models = unflatten_groups(params)
        energy = client.broadcast["energy"]["share"]
        sent = {name: compress(p - client.broadcast["params"][name], energy) for name, p in models["mentee"].items()}
        numbers = torch.stack([numbers for _, numbers in sent.values()]).sum()
        update = {"params": {name: change for name, (change, _) in sent.items()}, "upload": {"numbers": numbers}}
        return update, {"mentor": models["mentor"]}

    def expected_upload_bytes(self, state: Groups) -> int:
        """The numbers of the last uploads; how many they are, their length tells."""
        size = next(iter(state["params"].values())).element_size()
        return round(float(state["upload"]["numbers"]) * size)

    def uploaded_bytes(self, updates: Groups) -> IntArray:
        """The numbers that are left of the change."""
        size = next(iter(updates["params"].values())).element_size()
        numbers: IntArray = np.rint(updates["upload"]["numbers"].double().cpu().numpy()).astype(np.int64)
        return numbers * size

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Federated averaging of the mentee."""
        stepped = super().server_step(state, mean_update, round)
        return {**stepped, "energy": self._energy(round + 1, state["params"]), "upload": mean_update["upload"]}

    def personal_models(self, client: Client) -> list[Tensors]:
        """The mentor."""
        return [client.state["mentor"]]

    def _energy(self, round: int, params: Tensors) -> Tensors:
        """What share of the squares uploads of this round must have."""
        share = self.start_energy + (self.end_energy - self.start_energy) * min(1.0, round / self.horizon)
        like = next(iter(params.values()))
        return {"share": torch.tensor(share, dtype=like.dtype, device=like.device)}


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of every prediction, from logarithms of probabilities."""
    return (p.exp() * (p - q)).sum(-1)
