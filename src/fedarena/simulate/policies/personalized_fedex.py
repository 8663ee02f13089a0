"""Personalized FedEx, as FedHPO-Bench (Wang et al., ICML 2023, appendix F) has it: other arms for other clients.

A client has a code. A small network with one hidden layer makes of it, with a softmax for every table of arms, the
client's own probabilities θ. Clients are judged as in FedEx; the server minimizes Σ V (s - b) log θ_j over the arms j
that clients drew, which makes arms less likely that did worse than usual. The gradients of that with respect to the
network are what clients send; they add up like any update. The server's optimizer is Adam.

The code is how often a client has each label (``labels``), which the server then knows, or random numbers that are the
client's for the whole run (``random``), which tell nothing about it, but nothing about others like it either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.simulate.policies.arms import Tables
from fedarena.simulate.policies.base import (
    POLICIES,
    FloatArray,
    IntArray,
    Judged,
    JudgedOn,
    Judgement,
    PolicyFacts,
)
from fedarena.simulate.policies.tables_of_arms import BASELINE, ENTROPY, PolicyOfArms, entropies
from fedarena.train import Groups, JobContext, LocalTraining
from fedarena.train.optimizers import optimizer_init, optimizer_step
from fedarena.transforms.rows import Rows

Code = Literal["labels", "random"]
_BASELINE = "baseline"
_MOST_CODES = 100_000  # that are remembered


@POLICIES.register("personalized_fedex")
class PersonalizedFedEx(PolicyOfArms):
    """A distribution over arms for every client, which follows from its code.

    `code_size` is how many random numbers a code has, `hidden` how wide the network is, and `lr` how fast it learns.
    Everything else is as in FedEx.
    """

    write_only: ClassVar[tuple[str, ...]] = ("_codes",)

    def __init__(
        self,
        *,
        search: dict[str, Any] | None = None,
        arms: int = 27,
        spread: float = 0.1,
        tables: Tables = "joint",
        code: Code = "labels",
        code_size: int = 16,
        hidden: int = 16,
        lr: float = 0.03,
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
        for name, number in (("code_size", code_size), ("hidden", hidden)):
            if not 1 <= number <= 4096:
                raise BadInputError(f"policy.{name} must be from 1 to 4096, not {number}")
        if not 0 < lr < math.inf:
            raise BadInputError(f"policy.lr must be above 0, not {lr}")
        self.code: Code = code
        self.code_size, self.hidden = code_size, hidden
        self._optimizer = LocalTraining(optimizer="adam", lr=lr)

    def prepare(self, facts: PolicyFacts) -> None:
        """Makes the arms, and sees what codes there are."""
        super().prepare(facts)
        self._codes: dict[int, FloatArray] = {}
        if self.code == "labels" and facts.labels is None:
            raise BadInputError(
                "policy.code=labels needs samples with labels, and this federation has none; choose policy.code=random"
            )

    def private_obstacle(self) -> str | None:
        """Labels are clients' data."""
        if self.code != "labels":
            return None
        return "the server is told how often clients have each label, without noise; choose policy.code=random"

    def codes(self, clients: IntArray) -> Tensor:
        """Of these clients, a row each."""
        missing = np.array([client for client in clients.tolist() if client not in self._codes], dtype=np.int64)
        if len(missing):
            if len(self._codes) > _MOST_CODES:
                self._codes = {}
            self._codes |= dict(zip(missing.tolist(), self._made(missing), strict=True))
        return torch.from_numpy(np.stack([self._codes[client] for client in clients.tolist()]))

    def _made(self, clients: IntArray) -> FloatArray:
        if self.code == "random":
            places = np.arange(self.code_size)[None, :]
            uniform = streams.uniform(self.facts.seed, "client code", clients[:, None], places)
            standard: FloatArray = math.sqrt(12.0) * (uniform - 0.5)
            return standard
        assert self.facts.labels is not None
        shares = self.facts.labels(clients)
        # The same variance as random numbers would have if every client had one label.
        centred: FloatArray = (shares - 1.0 / shares.shape[1]) * math.sqrt(shares.shape[1])
        return centred

    def server_init(self, update: Groups) -> Groups:
        """A network whose heads put out the same for all arms."""
        inputs = self._made(self.facts.clients[:1]).shape[1]
        generator = streams.generator(self.facts.seed, "policy network")
        network = {
            "hidden.weight": torch.from_numpy(generator.standard_normal((self.hidden, inputs)) / math.sqrt(inputs)),
            "hidden.bias": torch.zeros(self.hidden, dtype=torch.float64),
        }
        for place, table in enumerate(self.tables):
            network[f"head:{place}.weight"] = torch.zeros((len(table), self.hidden), dtype=torch.float64)
            network[f"head:{place}.bias"] = torch.zeros(len(table), dtype=torch.float64)
        optimizer = {f"optimizer:{name}": t for name, t in optimizer_init(self._optimizer, network).items()}
        steps = {"steps": {"made": torch.zeros((), dtype=torch.int64)}}
        return {"network": network, **optimizer, **steps, _BASELINE: self.baseline.start()}

    def logs(self, network: Tensors, codes: Tensor) -> list[Tensor]:
        """The logarithms of the probabilities of all arms, for every table; of one code, or of a row per client."""
        hidden = torch.tanh(codes @ network["hidden.weight"].T + network["hidden.bias"])
        return [
            torch.log_softmax(hidden @ network[f"head:{place}.weight"].T + network[f"head:{place}.bias"], -1)
            for place in range(len(self.tables))
        ]

    def probabilities(self, server: Groups, clients: IntArray) -> list[FloatArray]:
        """Of the arms of every table, a row per client."""
        network = {name: t.cpu() for name, t in server["network"].items()}
        return [self.frozen(each.exp().numpy()) for each in self.logs(network, self.codes(clients))]

    def decide(self, server: Groups, clients: IntArray, numbers: IntArray, kept: Sequence[Groups]) -> FloatArray:
        """Draws every client's arms by its own probabilities, whose entropy is noted as well."""
        found = self.probabilities(server, clients)
        entropy = sum(entropies(each) for each in found)
        return np.column_stack([self.draw(found, clients, numbers), entropy])

    def chances(self, decisions: FloatArray) -> FloatArray:
        """Without the entropy behind them."""
        return super().chances(decisions)[:, :-1]

    def empty_message(self) -> Tensors:
        """No gradient."""
        network = {
            name: torch.zeros_like(t, dtype=torch.float32) for name, t in self.server_init({})["network"].items()
        }
        scalars = ("surplus",) if self.facts.is_private else ("surplus", "weight")
        return network | {name: torch.zeros(()) for name in scalars}

    def message(self, judged: Judged, kept: Groups, server: Groups) -> tuple[Tensors, Groups]:
        """The gradients of every client's part of the loss."""
        baseline = self._level(server)
        judged = self.counting(judged, baseline)
        surplus = torch.from_numpy(judged.weights * self.surplus(judged, baseline))

        def loss(network: Tensors, code: Tensor, chosen: Tensor, surplus: Tensor) -> Tensor:
            each = [logs.gather(0, chosen[place : place + 1])[0] for place, logs in enumerate(self.logs(network, code))]
            return surplus * torch.stack(each).sum()

        chosen = torch.from_numpy(self.chosen(judged.decisions))
        gradients = vmap(grad(loss), in_dims=(None, 0, 0, 0))(
            server["network"], self.codes(judged.clients), chosen, surplus
        )
        if self.facts.is_private:
            return {**gradients, "surplus": surplus}, kept
        usual = surplus.masked_fill(torch.from_numpy(judged.diverged), 0)  # what diverged is not what is usual
        return {**gradients, "surplus": usual, "weight": torch.from_numpy(judged.weights)}, kept

    def learn(self, message: Tensors, server: Groups, context: JobContext) -> Groups:
        """A step of the optimizer, and the next baseline."""
        weight = self.scale if self.facts.is_private else float(message["weight"])
        if not weight > 0:
            return server
        surplus = float(message["surplus"]) / weight * (self.bound if self.facts.is_private else 1.0)
        before = self.baseline.value(server[_BASELINE])
        after = dict(server)
        if before is not None:
            gradients = {name: message[name] / weight for name in server["network"]}
            made = server["steps"]["made"] + 1
            state = {name: server[f"optimizer:{name}"] for name in optimizer_init(self._optimizer, {})}
            network, state = optimizer_step(self._optimizer, server["network"], gradients, state, int(made))
            after |= {"network": network, "steps": {"made": made}}
            after |= {f"optimizer:{name}": tensors for name, tensors in state.items()}
        after[_BASELINE] = self.baseline.with_loss(server[_BASELINE], surplus + (before or 0.0))
        return after

    def _level(self, server: Groups) -> float | None:
        return self.baseline.value(server[_BASELINE])

    def observe(self, before: Rows, after: Groups) -> dict[str, float | Tensor]:
        """How often every arm was drawn, and the entropies of those who drew."""
        if before.jobs.decisions is None:
            return {}
        chosen = self.chosen(before.jobs.decisions)
        noted: dict[str, float | Tensor] = {"clients": float(len(before))}
        noted["entropy"] = float(before.jobs.decisions[:, -1].sum())
        for place, table in enumerate(self.tables):
            counts = np.bincount(chosen[:, place], minlength=len(table)).tolist()
            noted |= {name: float(count) for name, count in zip(self.arm_columns(place), counts, strict=True)}
        return noted

    def measure(self, server: Groups, observed: Mapping[str, float]) -> dict[str, float]:
        """The mean entropy of the round's clients, and which share of them had every arm."""
        measured = {} if (level := self._level(server)) is None else {BASELINE: level}
        clients = observed.get("clients", 0.0)
        if clients:
            measured[ENTROPY] = observed["entropy"] / clients
            for place in range(len(self.tables)):
                measured |= {name: observed[name] / clients for name in self.arm_columns(place)}
        return measured

    @property
    def columns(self) -> dict[str, str]:
        """As of FedEx, of the clients of the round."""
        known = {ENTROPY: "mean entropy of the clients' probabilities in nats; 0 when all have decided"}
        return super().columns | known

    def summary(self, server: Groups) -> dict[str, Any]:
        """The arm that is likeliest for all clients together, and how likely all are on average."""
        clients = self.facts.clients[:_MOST_CODES]
        found = self.probabilities(server, clients)
        means = [each.mean(0) for each in found]
        likeliest = [np.bincount(each.argmax(1), minlength=each.shape[1]).tolist() for each in found]
        return {
            "best": self.best_of(means),
            "entropy": float(np.mean(sum(entropies(each) for each in found))),
            "probabilities": [each.tolist() for each in means],
            "clients_by_likeliest_arm": likeliest,
        }
