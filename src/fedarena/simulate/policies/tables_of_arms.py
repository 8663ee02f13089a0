"""What policies share that choose among arms: options, decisions, and what tables say about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedarena.core import streams
from fedarena.simulate.policies.arms import Arms, Tables, check_arms, make_arms
from fedarena.simulate.policies.base import (
    Baseline,
    FloatArray,
    IntArray,
    Judged,
    JudgedOn,
    Judgement,
    Policy,
    PolicyFacts,
    check_between,
)

ENTROPY, BASELINE = "policy_entropy", "policy_baseline"
_WORST = 10.0  # times the usual loss: what diverging counts as


class PolicyOfArms(Policy):
    """Draws an arm from every table by its probability.

    A decision is the number of an arm for every table, and then the probabilities with which they were drawn.
    """

    tables: list[Arms]

    def __init__(
        self,
        *,
        search: dict[str, Any] | None,
        arms: int,
        spread: float,
        tables: Tables,
        baseline_discount: float,
        cutoff: float,
        judgement: Judgement,
        judged_on: JudgedOn,
        bound: float,
        scale: float,
    ):
        super().__init__(search=search, judgement=judgement, judged_on=judged_on)
        check_arms(arms, spread)
        check_between("baseline_discount", baseline_discount)
        check_between("cutoff", cutoff, most=np.inf)
        check_between("bound", bound, least=np.finfo(np.float64).tiny, most=1e30)
        check_between("scale", scale, least=np.finfo(np.float64).tiny, most=1e30)
        self.arms, self.spread, self.table_form = arms, spread, tables
        self.baseline, self.cutoff = Baseline(baseline_discount), cutoff
        self.bound, self.scale = bound, scale

    def prepare(self, facts: PolicyFacts) -> None:
        """Makes the arms."""
        super().prepare(facts)
        self.tables = make_arms(self.space, facts, self.arms, self.spread, self.table_form)

    def draw(self, probabilities: list[FloatArray], clients: IntArray, numbers: IntArray) -> FloatArray:
        """Decisions of jobs whose arms have these probabilities, ``[jobs, arms]`` for every table."""
        chosen, chances = [], []
        for place, each in enumerate(probabilities):
            drawn = streams.uniform(self.facts.seed, f"arm of table {place}", numbers, clients)
            until = np.cumsum(each, axis=1)
            arm = np.minimum((drawn[:, None] * until[:, -1:] >= until).sum(1), each.shape[1] - 1)
            chosen.append(arm.astype(np.float64))
            chances.append(each[np.arange(len(arm)), arm])
        return np.stack([*chosen, *chances], axis=1)

    def chosen(self, decisions: FloatArray) -> IntArray:
        """The numbers of the arms, ``[jobs, tables]``."""
        return decisions[:, : len(self.tables)].astype(np.int64)

    def chances(self, decisions: FloatArray) -> FloatArray:
        """With which probabilities they were drawn, ``[jobs, tables]``."""
        return decisions[:, len(self.tables) :]

    def hyperparameters(self, decisions: FloatArray) -> dict[str, FloatArray]:
        """Those of the arms."""
        chosen = self.chosen(decisions)
        found: dict[str, FloatArray] = {}
        for place, table in enumerate(self.tables):
            found |= {name: values[chosen[:, place]] for name, values in table.values.items()}
        return {name: found[name] for name in self.space.names}

    def frozen(self, probabilities: FloatArray) -> FloatArray:
        """Rows of probabilities; those whose entropy is below the cut-off are all for their best arm."""
        decided = entropies(probabilities) < self.cutoff
        best = np.eye(probabilities.shape[1])[probabilities.argmax(1)]
        return np.where(decided[:, None], best, probabilities)

    def surplus(self, judged: Judged, baseline: float | None) -> FloatArray:
        """How much worse than usual jobs went; before the first loss there is nothing to compare with.

        Who diverged went as badly as a loss of ten times the usual one. In private runs it is at most the bound, and in
        the scale of what is sent.
        """
        usual = 0.0 if baseline is None else baseline
        found = np.where(judged.diverged, (_WORST - 1) * abs(usual), judged.losses - usual)
        if not self.facts.is_private:
            return found
        return self.scale * np.where(judged.diverged, 1.0, np.clip(found / self.bound, -1.0, 1.0))

    def counting(self, judged: Judged, baseline: float | None) -> Judged:
        """The same, of whom those are not heard who diverged before there was anything to compare with."""
        if baseline is not None or self.facts.is_private:
            return judged
        return replace(judged, weights=np.where(judged.diverged, 0.0, judged.weights))

    @property
    def columns(self) -> dict[str, str]:
        """Entropy, baseline, and how likely every arm is."""
        found = {
            ENTROPY: "entropy of the policy in nats; 0 when it has decided",
            BASELINE: "discounted mean of the losses, which the next are compared with",
        }
        for place in range(len(self.tables)):
            found |= {name: f"probability of arm {arm}" for arm, name in enumerate(self.arm_columns(place))}
        return found

    def arm_columns(self, place: int) -> list[str]:
        """The names of the columns of a table's arms."""
        label = self.tables[place].label if len(self.tables) > 1 else ""
        return [f"arm_{number}{':' if label else ''}{label}" for number in range(len(self.tables[place]))]

    def job_columns(self, decisions: FloatArray) -> dict[str, Any]:
        """The numbers of the arms."""
        chosen = self.chosen(decisions)
        return {name: chosen[:, place] for place, name in enumerate(self.job_column_names)}

    @property
    def job_column_names(self) -> dict[str, str]:
        """Which arm a job has, of every table."""
        names = ["arm"] if len(self.tables) == 1 else [f"arm:{table.label}" for table in self.tables]
        return dict.fromkeys(names, "number of the arm that the job was given")

    def described(self) -> dict[str, Any]:
        """All arms, and under which columns their probabilities are found."""
        tables = [
            {"columns": self.arm_columns(place), "arms": [table.arm(number) for number in range(len(table))]}
            for place, table in enumerate(self.tables)
        ]
        return super().described() | {"tables": tables}

    def best_of(self, probabilities: list[FloatArray]) -> dict[str, Any]:
        """The settings of the likeliest arms."""
        best: dict[str, Any] = {}
        for table, each in zip(self.tables, probabilities, strict=True):
            best |= table.arm(int(each.argmax()))
        return {name: best[name] for name in self.space.names}


def entropies(probabilities: FloatArray) -> FloatArray:
    """Of every row, in nats."""
    logs = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    found: FloatArray = -(probabilities * logs).sum(1)
    return found


def one_hot(chosen: IntArray, factors: FloatArray, arms: int) -> torch.Tensor:
    """Rows that have a factor at the chosen arm and 0 elsewhere."""
    rows = torch.zeros((len(chosen), arms), dtype=torch.float64)
    rows[torch.arange(len(chosen)), torch.from_numpy(chosen)] = torch.from_numpy(factors)
    return rows
