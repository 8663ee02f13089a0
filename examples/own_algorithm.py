"""An algorithm of one's own: FedAvg whose server keeps a moving average of all models and evaluates that one.

python examples/own_algorithm.py
"""

from __future__ import annotations

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.train import Groups


class AveragedFedAvg(FedAvg):
    """Broadcasts an exponential moving average of the models that FedAvg goes through."""

    def __init__(self, *, decay: float = 0.5):
        super().__init__()
        self.decay = decay

    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        before, after = state["params"], super().server_step(state, mean_update, round)["params"]
        return {"params": {name: self.decay * before[name] + (1 - self.decay) * after[name] for name in after}}


if __name__ == "__main__":
    settings = {"federation": "digits", "model": "logistic_regression", "rounds": 20, "cohort": 10}
    plain = fedarena.run(settings, algorithm="fedavg")
    averaged = fedarena.run(settings, algorithm={"name": AveragedFedAvg, "decay": 0.3})
    for result in (plain, averaged):
        print(result.config["algorithm"], "accuracy", result.summary["final"]["accuracy"])
