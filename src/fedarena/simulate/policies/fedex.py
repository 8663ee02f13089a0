"""FedEx. Khodak et al., "Federated Hyperparameter Tuning: Challenges, Baselines, and Connections to Weight-Sharing",
NeurIPS 2021, Algorithm 2.

A table of n arms has the logarithms z of their probabilities θ = softmax(z), all alike at first. Every client trains
with an arm drawn from θ and is judged by its loss s on V validation samples. With the baseline b, a discounted mean of
the losses so far, an arm's gradient is g_j = Σ V (s - b) / (θ_j Σ V) over the clients who drew it. The server makes a
step of exponentiated gradient: z = z - η g, and normalizes. η = sqrt(2 ln n), divided by one of four:

- ``auto``: sqrt(t) in the t-th step,
- ``adaptive``: sqrt of the sum of all ‖g‖∞² so far,
- ``aggressive``: ‖g‖∞,
- ``constant``: 1.

When the entropy of θ falls below `cutoff`, the best arm is taken from then on. Left open by the paper: the first losses
have nothing to be compared with, and only set the baseline.

In a private run every client counts the same, and s - b is clipped to ±`bound` and sent in the `scale` of the update,
with which it is clipped and noised. Noise divided by a small θ_j would drown everything, so the step there is along
g_j - θ_j Σ g, the gradient with respect to z of the mean loss, in which nothing is divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.simulate.policies.arms import Tables
from fedarena.simulate.policies.base import POLICIES, FloatArray, IntArray, Judged, JudgedOn, Judgement
from fedarena.simulate.policies.tables_of_arms import BASELINE, ENTROPY, PolicyOfArms, entropies, one_hot
from fedarena.train import Groups, JobContext

StepRule = Literal["auto", "adaptive", "aggressive", "constant"]
_BASELINE = "baseline"


@POLICIES.register("fedex")
class FedEx(PolicyOfArms):
    """One distribution over arms for everybody, learned by exponentiated gradient.

    `search` says what may differ: settings with ranges or lists of values, as in ``search:`` of a study; by default the
    learning rate, up to ten times larger or smaller than that of the run. The arms are the settings of the run and
    `arms` - 1 perturbations of them, within the share `spread` of every range. With ``tables: separate`` every
    hyperparameter has a table of arms of its own. `step` is η before it is divided, by default sqrt(2 ln n).
    """

    def __init__(
        self,
        *,
        search: dict[str, Any] | None = None,
        arms: int = 27,
        spread: float = 0.1,
        tables: Tables = "joint",
        step_rule: StepRule = "auto",
        step: float | None = None,
        baseline_discount: float = 0.9,
        cutoff: float = 0.0,
        judgement: Judgement = "after",
        judged_on: JudgedOn = "validation",
        bound: float = 1.0,
        scale: float = 0.1,
    ):
        super().__init__(
            search=search,
            arms=arms,
            spread=spread,
            tables=tables,
            baseline_discount=baseline_discount,
            cutoff=cutoff,
            judgement=judgement,
            judged_on=judged_on,
            bound=bound,
            scale=scale,
        )
        if step is not None and not 0 < step < math.inf:
            raise BadInputError(f"policy.step must be above 0, not {step}")
        self.step_rule, self.step = step_rule, step

    def server_init(self, update: Groups) -> Groups:
        """All arms alike, and no baseline."""
        tables = {
            f"table:{place}": {
                "logs": torch.full((len(table),), -math.log(len(table)), dtype=torch.float64),
                "squares": torch.zeros((), dtype=torch.float64),  # of the largest entries of all gradients so far
            }
            for place, table in enumerate(self.tables)
        }
        steps = {"steps": {"made": torch.zeros((), dtype=torch.int64)}}
        return {**tables, **steps, _BASELINE: self.baseline.start()}

    def probabilities(self, server: Groups) -> list[FloatArray]:
        """Of the arms of every table."""
        logs = (server[f"table:{place}"]["logs"].cpu().numpy() for place in range(len(self.tables)))
        return [self.frozen(np.exp(each)[None])[0] for each in logs]

    def decide(self, server: Groups, clients: IntArray, numbers: IntArray, kept: Sequence[Groups]) -> FloatArray:
        """Draws arms, independently for every client."""
        everybody = [np.broadcast_to(each, (len(clients), len(each))) for each in self.probabilities(server)]
        return self.draw(everybody, clients, numbers)

    def empty_message(self) -> Tensors:
        """No gradient."""
        gains = {f"gain:{place}": torch.zeros(len(table)) for place, table in enumerate(self.tables)}
        return gains if self.facts.is_private else {**gains, "surplus": torch.zeros(()), "weight": torch.zeros(())}

    def message(self, judged: Judged, kept: Groups, server: Groups) -> tuple[Tensors, Groups]:
        """A client's part of the gradients, of the mean of s - b, and of the weights."""
        baseline = self.baseline.value(server[_BASELINE])
        judged = self.counting(judged, baseline)
        surplus = judged.weights * self.surplus(judged, baseline)
        chosen, chances = self.chosen(judged.decisions), self.chances(judged.decisions)
        sent: Tensors = {}
        for place, table in enumerate(self.tables):
            of_arm = surplus if self.facts.is_private else surplus / chances[:, place]
            sent[f"gain:{place}"] = one_hot(chosen[:, place], of_arm, len(table))
        if not self.facts.is_private:
            usual = np.where(judged.diverged, 0.0, surplus)  # what diverged is not what is usual
            sent |= {"surplus": torch.from_numpy(usual), "weight": torch.from_numpy(judged.weights)}
        return sent, kept

    def learn(self, message: Tensors, server: Groups, context: JobContext) -> Groups:
        """A step for every table, and the next baseline."""
        if self.facts.is_private:
            gains = [message[f"gain:{place}"] * (self.bound / self.scale) for place in range(len(self.tables))]
            surplus = float(gains[0].sum())
        else:
            weight = float(message["weight"])
            if not weight > 0:
                return server
            gains = [message[f"gain:{place}"] / weight for place in range(len(self.tables))]
            surplus = float(message["surplus"]) / weight
        before = self.baseline.value(server[_BASELINE])
        after = dict(server)
        if before is not None:
            made = server["steps"]["made"] + 1
            after["steps"] = {"made": made}
            for place, gain in enumerate(gains):
                after[f"table:{place}"] = self._stepped(server[f"table:{place}"], gain, int(made))
        after[_BASELINE] = self.baseline.with_loss(server[_BASELINE], surplus + (before or 0.0))
        return after

    def _stepped(self, table: Tensors, gradient: torch.Tensor, number: int) -> Tensors:
        """One step of exponentiated gradient."""
        logs = table["logs"]
        probabilities = logs.exp()
        if float(entropies(probabilities.numpy()[None])[0]) < self.cutoff:
            return table
        if self.facts.is_private:
            gradient = gradient - probabilities * gradient.sum()
        largest = gradient.abs().max()
        squares = table["squares"] + largest.square()
        divisor = {
            "auto": math.sqrt(number),
            "adaptive": float(squares.sqrt()),
            "aggressive": float(largest),
            "constant": 1.0,
        }[self.step_rule]
        if divisor == 0:  # nothing was learned
            return table
        rate = (math.sqrt(2 * math.log(len(logs))) if self.step is None else self.step) / divisor
        moved = logs - rate * gradient
        return {"logs": moved - torch.logsumexp(moved, 0), "squares": squares}

    def measure(self, server: Groups, observed: Mapping[str, float]) -> dict[str, float]:
        """Where the policy stands."""
        found = self.probabilities(server)
        measured = {ENTROPY: sum(float(entropies(each[None])[0]) for each in found)}
        if (baseline := self.baseline.value(server[_BASELINE])) is not None:
            measured[BASELINE] = baseline
        for place, each in enumerate(found):
            measured |= dict(zip(self.arm_columns(place), each.tolist(), strict=True))
        return measured

    def summary(self, server: Groups) -> dict[str, Any]:
        """The likeliest arm, and how likely all are."""
        found = self.probabilities(server)
        return {
            "best": self.best_of(found),
            "entropy": sum(float(entropies(each[None])[0]) for each in found),
            "probabilities": [each.tolist() for each in found],
        }
