"""What a policy is: it decides with which hyperparameters a client trains, and learns from how well that went.

A policy is a transform, the first on the way of updates. At the client it adds a group to what is sent: what the client
has to say about the hyperparameters that it trained with. That group is clipped, noised and added up like
everything else, and at the server the policy takes it off again and learns. So what it knows is part of the server's
state in every checkpoint, bytes are counted, and a privacy mechanism that covers all that clients send covers it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.core.space import Space
from fedarena.models import Tensors
from fedarena.simulate.phones import Speeds
from fedarena.simulate.policies.settings import WHOLE, check_space, joined_names, usual_space
from fedarena.train import Algorithm, Groups, JobContext, LocalTraining
from fedarena.train.engine import IntArray as IntArray
from fedarena.transforms import Transform
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import Sent, Wire

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
# By what hyperparameters are judged: the loss of a client's model after local training, or that minus the one before.
Judgement = Literal["after", "difference"]
JudgedOn = Literal["validation", "train"]

POLICY_GROUP = "policy"  # of an update: what clients say about their hyperparameters


@dataclass(frozen=True)
class PolicyFacts:
    """What a policy is told about the run that it is part of."""

    seed: int
    clients: IntArray  # who may take part, sorted
    algorithm: Algorithm
    local: LocalTraining
    settings: Mapping[str, Any]  # those of the run that are not in `local`, such as algorithm.mu and model.dropout
    samples: Callable[[IntArray], IntArray]  # how many training samples clients have
    labels: Callable[[IntArray], FloatArray] | None = None  # how often clients have each label; None: there are none
    is_private: bool = False  # whether what clients send is clipped and noised, each counting the same
    counts_equally: bool = False  # whether the aggregator has no regard to clients' weights

    def setting(self, name: str) -> Any:
        """What the run itself has for a setting; None if nothing."""
        if name.startswith("local."):
            return getattr(self.local, name.removeprefix("local."), None)
        return self.settings.get(name)


@dataclass(frozen=True)
class RoundSettings:
    """What a policy wants to be otherwise in one round; None: it is as the run has it."""

    cohort: int | None = None  # how many clients' updates the round is meant to use
    deadline_seconds: float | None = None  # of a protocol that has one


@dataclass(frozen=True)
class Judged:
    """What clients say about their jobs; every array has an entry per job."""

    decisions: FloatArray  # a row each, in the terms of the policy
    clients: IntArray
    losses: FloatArray  # by the judgement that the policy wants; 0 where nothing can be said, or they diverged
    before: FloatArray  # the loss of what a client downloaded; NaN unless the judgement is the difference
    weights: FloatArray  # by what its message is to be multiplied so that clients count as they should; 0: not at all
    diverged: BoolArray  # who came to no finite loss: nothing is worse than their hyperparameters


class Policy(Transform):
    """Decides on hyperparameters. Keyword-only constructor arguments are its settings.

    `decide` is called when jobs are planned, since what a job takes may depend on it; a decision is a row of numbers,
    and `hyperparameters` says what settings it means. `message` is what clients send about theirs, and `learn` what the
    server makes of the (weighted) mean of the messages. One that `judges` nothing decides without hearing from clients,
    and these send nothing. `round_settings` changes whole rounds: how many take part, and for how long is waited.
    """

    learns = True
    judges = True  # whether clients say how well their hyperparameters did
    speeds: Callable[[IntArray, IntArray], Speeds] | None = None  # of phones in these jobs; None: no time passes
    judgement: Judgement = "after"
    judged_on: JudgedOn = "validation"
    space: Space  # the settings that it decides on
    facts: PolicyFacts

    def __init__(
        self,
        *,
        search: dict[str, Any] | None = None,
        judgement: Judgement = "after",
        judged_on: JudgedOn = "validation",
    ):
        self.search, self.judgement, self.judged_on = search, judgement, judged_on

    def prepare(self, facts: PolicyFacts) -> None:
        """Told once, before the run; refuses what does not fit it."""
        self.facts = facts
        self.space = Space.parse(joined_names(self.search)) if self.search else usual_space(facts.local)
        check_space(self.space, facts.algorithm, facts.local)

    def private_obstacle(self) -> str | None:
        """Why this policy does not fit a run whose updates are made private; None: it does."""
        return None

    def decide(self, server: Groups, clients: IntArray, numbers: IntArray, kept: Sequence[Groups]) -> FloatArray:
        """A decision for each of these jobs, which are numbered over the whole run: ``[jobs, numbers]``.

        `kept` is what their clients keep for the policy; empty for those who never took part.
        """
        raise NotImplementedError

    def round_settings(self, server: Groups, round: int) -> RoundSettings:
        """What is otherwise in this round; `server` is what the policy knows before it."""
        return RoundSettings()

    @property
    def changes_rounds(self) -> bool:
        """Whether rounds differ in more than the hyperparameters of jobs."""
        return type(self).round_settings is not Policy.round_settings

    @property
    def changes_work(self) -> bool:
        """Whether how much there is to do, or how much time for it, is not what the settings of the run say."""
        return self.changes_rounds or any(name in WHOLE for name in self.space.names)

    def hyperparameters(self, decisions: FloatArray) -> dict[str, FloatArray]:
        """The settings that decisions mean, by their names."""
        raise NotImplementedError

    def message(self, judged: Judged, kept: Groups, server: Groups) -> tuple[Tensors, Groups]:
        """What clients send about their jobs, and what they keep; both have a row per client."""
        raise NotImplementedError

    def empty_message(self) -> Tensors:
        """What a client sends who has nothing to say."""
        raise NotImplementedError

    def learn(self, message: Tensors, server: Groups, context: JobContext) -> Groups:
        """What the server knows after a step with this mean of messages."""
        raise NotImplementedError

    @property
    def columns(self) -> dict[str, str]:
        """What it measures in every round, by the names of columns, and what these mean."""
        return {}

    @property
    def job_column_names(self) -> dict[str, str]:
        """The columns of `job_columns`, and what they mean."""
        return {}

    def job_columns(self, decisions: FloatArray) -> dict[str, Any]:
        """What the table of jobs says about decisions beside the settings that they mean."""
        return {}

    def described(self) -> dict[str, Any]:
        """What it chooses from, for those who look at the run."""
        return {"search": self.space.described()}

    def summary(self, server: Groups) -> dict[str, Any]:
        """What the summary of a run says about it; ``best`` are the settings that it found to be best."""
        return {}

    def at_client(self, rows: Rows, kept: Groups, server: Groups) -> tuple[Groups, Groups]:
        """Adds the clients' messages."""
        if not self.judges:
            return rows.update, kept
        like = next((t for tensors in rows.update.values() for t in tensors.values() if t.is_floating_point()), None)
        device, dtype = ("cpu", torch.float32) if like is None else (like.device, like.dtype)
        judged = self._judged(rows)
        if judged is None:
            sent: Tensors = {name: t.expand(len(rows), *t.shape) for name, t in self.empty_message().items()}
        else:
            sent, kept = self.message(judged, _on_cpu(kept), _on_cpu(server))
        return rows.update | {POLICY_GROUP: {name: t.to(device, dtype) for name, t in sent.items()}}, kept

    def at_server(self, update: Groups, server: Groups, context: JobContext) -> tuple[Groups, Groups]:
        """Takes the messages off, and learns from them."""
        message = update.get(POLICY_GROUP)
        if message is None:
            return update, server
        rest = {group: tensors for group, tensors in update.items() if group != POLICY_GROUP}
        return rest, self.learn(_on_cpu({"": message})[""], _on_cpu(server), context)

    def sent(self, wire: Wire, updates: Groups | None) -> Wire:
        """The message as it is."""
        if not self.judges:
            return wire
        form = {name: t.float() for name, t in self.empty_message().items()}
        numbers = sum(t.numel() for t in form.values())
        return wire | {POLICY_GROUP: Sent(4 * numbers, form, numbers)}

    def _judged(self, rows: Rows) -> Judged | None:
        """What clients have to say; None if these are not real ones."""
        decisions, validated = rows.jobs.decisions, rows.validated
        if decisions is None or validated is None:
            return None
        losses = validated.after - validated.before if self.judgement == "difference" else validated.after
        known = np.isfinite(losses) & (validated.samples > 0)
        diverged = np.isposinf(validated.after) & (validated.samples > 0)
        weights = (known | diverged).astype(np.float64)
        if not self.facts.is_private:
            given = np.ones(len(rows)) if self.facts.counts_equally else rows.weights
            relative = np.divide(validated.samples, given, out=np.zeros(len(rows)), where=given > 0)
            weights = weights * relative
        said = np.where(known, losses, 0.0)
        return Judged(decisions, rows.jobs.clients, said, validated.before, weights, diverged)


POLICIES: Registry[type[Policy]] = Registry("policy", base=Policy, takes=())


@POLICIES.register("none")
class NoPolicy(Policy):
    """All clients train with the settings of the run."""

    learns = False

    def __init__(self) -> None:
        super().__init__()


def _on_cpu(groups: Groups) -> Groups:
    """The same groups as double precision numbers on the CPU, in which policies are computed."""

    def placed(t: Tensor) -> Tensor:
        return t.detach().cpu().double() if t.is_floating_point() else t.detach().cpu()

    return {group: {name: placed(t) for name, t in tensors.items()} for group, tensors in groups.items()}


def check_between(name: str, value: float, least: float = 0.0, most: float = 1.0) -> None:
    """Refuses an option of a policy that is not from one number to another."""
    if not least <= value <= most:
        raise BadInputError(f"policy.{name} must be from {least:g} to {most:g}, not {value}")


@dataclass(frozen=True)
class Baseline:
    """The discounted mean of the losses so far: what a loss is compared with."""

    discount: float

    def start(self) -> Tensors:
        """Nothing so far."""
        return {"sum": torch.zeros((), dtype=torch.float64), "weight": torch.zeros((), dtype=torch.float64)}

    def value(self, state: Tensors) -> float | None:
        """The mean; None before the first loss."""
        weight = float(state["weight"])
        return float(state["sum"]) / weight if weight > 0 else None

    def with_loss(self, state: Tensors, loss: float) -> Tensors:
        """The state after another loss."""
        return {"sum": self.discount * state["sum"] + loss, "weight": self.discount * state["weight"] + 1.0}
