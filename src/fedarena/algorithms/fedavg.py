"""FedAvg. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

Clients train locally; the server moves to the sample-weighted mean of their models. A server learning rate other than 1
scales that move (Reddi et al., "Adaptive Federated Optimization", ICLR 2021, call this FedAvg with server SGD).
"""

from __future__ import annotations

from fedarena.algorithms.checks import check_positive
from fedarena.algorithms.registry import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.train import Algorithm, Groups


@ALGORITHMS.register("fedavg")
class FedAvg(Algorithm):
    """Federated averaging with a server learning rate."""

    server_lr: float = 1.0  # also of algorithms whose own __init__ forgets this one's

    def __init__(self, *, server_lr: float = 1.0):
        check_positive(server_lr=server_lr)
        self.server_lr = server_lr

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        """Adds the mean update to the parameters."""
        update = mean_update["params"]
        if missing := next((name for name in state["params"] if name not in update), None):
            raise BadInputError(
                f"The mean update has no parameter {missing!r}: an algorithm whose clients leave some out has a "
                "server_step of its own, and transforms and aggregators give on all that they get"
            )
        params = {name: p + self.server_lr * update[name] for name, p in state["params"].items()}
        return {**state, "params": params}
