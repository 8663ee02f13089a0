"""Own selectors, protocols, policies, edges, attacks: the same seed, the same run, also in parts, or a sentence."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import config, content, losses

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.privacy import Mechanism
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.simulate import Protocol, Selector
from fedarena.simulate.edges import Edges
from fedarena.simulate.policies import BySpeed, RoundSettings
from fedarena.simulate.protocols.base import close_round
from fedarena.simulate.schedules import Schedule
from fedarena.transforms import Attack, ClipAndNoise

PHONES = {"fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]}, "protocol": "synchronous"}


class DrawsAtFirst(Selector):
    def prepare(self, clients, samples, cohort, seed):
        self.scores = np.random.rand(clients.max() + 1)

    def select(self, number, candidates, round):
        clients = candidates.everybody()
        return clients[np.argsort(-self.scores[clients], kind="stable")[:number]]


class DrawsWhenItLearns(DrawsAtFirst):
    def observe(self, round, feedback):
        self.scores = self.scores + np.random.rand(len(self.scores))


class UsesTwo(Protocol):
    def used(self, jobs):
        return np.sort(np.random.choice(len(jobs), 2, replace=False))

    def play(self, round, clock, world):
        begin, clients = world.invite_when_possible(self.cohort, clock.time, round)
        jobs = world.plan(clients, begin, clock.version, clock.next_job).in_order()
        return close_round(jobs, self.used(jobs), float(jobs.end.max(initial=begin)), clock)


class UsesMoreAndMore(UsesTwo):
    rounds = 0

    def used(self, jobs):
        self.rounds += 1
        return np.arange(min(len(jobs), self.rounds))


class DecidesByChance(BySpeed):
    def decide(self, server, clients, numbers, kept):
        return np.random.permutation(super().decide(server, clients, numbers, kept))

    def round_settings(self, server, round):
        return RoundSettings(cohort=random.randint(1, 5), deadline_seconds=None)


class LargerAndLarger(BySpeed):
    rounds = 0

    def round_settings(self, server, round):
        self.rounds += 1
        return RoundSettings(cohort=self.rounds, deadline_seconds=None)


class CountsDecisions(BySpeed):
    decisions = 0

    def decide(self, server, clients, numbers, kept):
        self.decisions += 1
        return super().decide(server, clients, numbers, kept)


class EdgesByChance(Edges):
    def edge_of(self, clients):
        return np.random.randint(0, 2, len(clients))


class EdgesDrawnAtFirst(Edges):
    def prepare(self, facts):
        super().prepare(facts)
        self.edges = torch.randint(0, 2, (int(facts.clients.max()) + 1,)).numpy()

    def edge_of(self, clients):
        return self.edges[clients]


class LinksByChance(EdgesDrawnAtFirst):
    def link_seconds(self, edges, size_bytes):
        return 10 * torch.rand(len(edges)).double().numpy()


class SlowerAndSlower(EdgesDrawnAtFirst):
    calls = 0

    def link_seconds(self, edges, size_bytes):
        self.calls += 1
        return np.full(len(edges), float(self.calls))


class LengthDrawnAtFirst(FedAvg):
    def prepare(self, population, local, horizon=1):
        super().prepare(population, local, horizon)
        self.length = float(torch.rand(()))

    def server_step(self, state, mean_update, round):
        shorter = {name: self.length * t for name, t in mean_update["params"].items()}
        return super().server_step(state, {**mean_update, "params": shorter}, round)


class ScaleDrawnAtFirst(Attack):
    def prepare(self, run):
        super().prepare(run)
        self.scale = random.random()

    def forge(self, rows, seen):
        return rows.update | {"params": {name: self.scale * t for name, t in rows.update["params"].items()}}


class FactorDrawnAtFirst(Schedule):
    def prepare(self, horizon):
        super().prepare(horizon)
        self.factor = np.random.rand()

    def scale(self, round):
        return self.factor


class DrawsLabels(Attack):
    """Trains on labels that it draws."""

    def labels(self, samples):
        return np.random.randint(0, 10, len(samples))

    def poison(self, samples):
        return {"y": self.labels(samples)}


class DrawsLabelsBySeed(DrawsLabels):
    def labels(self, samples):
        return np.random.default_rng(self.run.seed).integers(0, 10, len(samples))


class CountsItsSamples(DrawsLabels):
    seen = 0

    def labels(self, samples):
        self.seen += len(samples)
        return np.full(len(samples), self.seen % 10)


class NoiseDrawnAtFirst(Mechanism):
    def prepare(self, facts):
        self.noise = float(np.random.rand())

    def transforms(self):
        return (ClipAndNoise(norm=1.0, noise_multiplier=self.noise, clients=4),)


def settings_of(parts):
    return {"algorithm": "fedavg", "rounds": 5, "local.batch_size": 64, "evaluation.every": 5, **parts}


@pytest.mark.parametrize(
    "parts",
    [
        {"selector": DrawsAtFirst},
        {"selector": DrawsWhenItLearns},
        {"protocol": UsesTwo},
        {"policy": DecidesByChance, **PHONES},
        {"edges": {"name": EdgesByChance, "rounds": 2}, **PHONES},
        {"edges": {"name": EdgesDrawnAtFirst, "seconds": 1.0}, **PHONES},
        {"edges": LinksByChance, **PHONES},
        {"algorithm": LengthDrawnAtFirst},
        {"attack": {"name": ScaleDrawnAtFirst, "share": 0.5}},
        {"attack": {"name": DrawsLabels, "share": 0.5}},
        {"client_lr_schedule": FactorDrawnAtFirst},
        {"privacy": NoiseDrawnAtFirst},
    ],
    ids=lambda parts: str(next(iter(parts.values()))),
)
def test_draws_from_global_generators_follow_from_the_seed(tmp_path: Path, parts) -> None:
    for seed, name in enumerate(("whole", "again")):
        np.random.seed(seed)
        random.seed(seed)
        torch.manual_seed(seed)
        start_run(config(**settings_of(parts)), tmp_path / name)
    with Run.create(config(**settings_of(parts)), tmp_path / "parts") as run:
        run.advance(2)
    resume_run(tmp_path / "parts" / "small")
    whole = content(tmp_path / "whole" / "small")
    assert content(tmp_path / "again" / "small") == whole
    assert content(tmp_path / "parts" / "small") == whole


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"protocol": UsesMoreAndMore}, r"UsesMoreAndMore\.play remembers something in self\.rounds"),
        ({"policy": LargerAndLarger, **PHONES}, r"LargerAndLarger\.round_settings remembers something in self\.rounds"),
        ({"edges": SlowerAndSlower, **PHONES}, r"SlowerAndSlower\.link_seconds remembers something in self\.calls"),
        ({"policy": CountsDecisions, **PHONES}, r"CountsDecisions\.decide remembers something in self\.decisions"),
    ],
)
def test_what_a_resumed_run_would_not_know_is_refused(tmp_path: Path, parts, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(**settings_of(parts)), tmp_path)


@pytest.mark.parametrize("attack", [DrawsLabels, DrawsLabelsBySeed])
def test_own_poison_does_not_depend_on_who_is_read_together(tmp_path: Path, attack) -> None:
    of_engine = {
        name: losses(tmp_path, name, attack={"name": attack, "share": 0.5}) for name in ("cohort", "reference")
    }
    assert of_engine["cohort"] == pytest.approx(of_engine["reference"], rel=1e-10)
    assert of_engine["cohort"] != pytest.approx(losses(tmp_path, "cohort", "honest"), rel=1e-3)


def test_own_poison_that_remembers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"CountsItsSamples.poison remembers something in self.seen"):
        start_run(config(attack={"name": CountsItsSamples, "share": 0.5}), tmp_path)


def test_a_longer_run_has_the_factors_that_its_schedule_drew(tmp_path: Path) -> None:
    settings = settings_of({"client_lr_schedule": FactorDrawnAtFirst})
    start_run(config(**settings | {"rounds": 3}), tmp_path / "longer")
    resume_run(tmp_path / "longer" / "small", rounds=5)
    whole = start_run(config(**settings), tmp_path / "whole")
    longer = resume_run(tmp_path / "longer" / "small")
    assert longer.rounds["train_loss"].to_pylist() == whole.rounds["train_loss"].to_pylist()
