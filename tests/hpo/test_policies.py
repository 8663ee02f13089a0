"""Policies against plain versions of themselves, on problems whose answers are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.simulate.policies import FTS, POLICY_GROUP, FedEx, PersonalizedFedEx, Policy, PolicyFacts
from fedarena.train import Groups, JobArrays, JobContext, LocalTraining, Work
from fedarena.train.jobs import Job
from fedarena.train.validation import Validated
from fedarena.transforms.aggregators import Mean
from fedarena.transforms.rows import Rows

CLIENTS = np.arange(12)
LRS = [0.01, 0.03, 0.1, 0.3]
STEP = JobContext(1.0, 1, 0, False, torch.tensor(0))
Losses = Callable[[dict[str, np.ndarray], np.ndarray], np.ndarray]


def facts(**changes: Any) -> PolicyFacts:
    local = LocalTraining(lr=0.1, steps=2, epochs=None)
    sizes = np.full(len(CLIENTS), 100)
    return PolicyFacts(5, CLIENTS, FedAvg(), local, {}, lambda clients: sizes[clients], **changes)


class Federation:
    """Rounds in which nothing is trained: losses are a function of hyperparameters and clients."""

    def __init__(self, policy: Policy, losses: Losses, before: float = 2.0):
        self.policy, self.losses, self.before = policy, losses, before
        self.state = policy.server_init({})
        self.kept: dict[int, Groups] = {}
        self.jobs = 0

    def round(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decisions, losses and validation sizes of a round, in which the policy learns on the way of real updates."""
        numbers = np.arange(self.jobs, self.jobs + len(clients))
        self.jobs += len(clients)
        new = self.policy.client_init({})
        decisions = self.policy.decide(self.state, clients, numbers, [self.kept.get(int(c), {}) for c in clients])
        losses = self.losses(self.policy.hyperparameters(decisions), clients)
        sizes, weights = 1 + clients % 4, 3.0 + clients % 5
        jobs = JobArrays.of([Job(int(client), 1) for client in clients])
        jobs = JobArrays(**{**vars(jobs), "decisions": decisions})
        update = {"params": {"w": torch.zeros(len(clients), 2, dtype=torch.float64)}}
        validated = Validated(sizes, losses, np.full(len(clients), self.before))
        rows = Rows(update, jobs, Work(sizes, sizes, sizes), weights, ("params",), validated=validated)
        kept = _stacked([self.kept.get(int(client), new) for client in clients]) if new else {}
        sent, kept = self.policy.at_client(rows, kept, self.state)
        for row, client in enumerate(clients.tolist()):
            self.kept[client] = {g: {n: t[row] for n, t in tensors.items()} for g, tensors in kept.items()}
        half = len(clients) // 2
        whole = Rows(sent, jobs, rows.work, weights, ("params",))
        mean = Mean()
        total = mean.merge(
            mean.add_up(whole.take(np.arange(half))), mean.add_up(whole.take(np.arange(half, len(clients))))
        )
        left, self.state = self.policy.at_server(mean.finish(total), self.state, STEP)
        assert POLICY_GROUP not in left
        return decisions, losses, sizes


def _stacked(each: list[Groups]) -> Groups:
    return {g: {n: torch.stack([one[g][n] for one in each]) for n in each[0][g]} for g in each[0]}


class PlainFedEx:
    """The update as in the paper, client after client."""

    def __init__(self, arms: int, rule: str, discount: float, cutoff: float):
        self.z = np.full(arms, -np.log(arms))
        self.rule, self.discount, self.cutoff = rule, discount, cutoff
        self.trace: list[float] = []
        self.steps, self.squares = 0, 0.0

    @property
    def theta(self) -> np.ndarray:
        theta = np.exp(self.z)
        if -(theta * np.log(theta)).sum() < self.cutoff:
            return np.eye(len(theta))[theta.argmax()]
        return theta

    def learn(self, arms: np.ndarray, losses: np.ndarray, sizes: np.ndarray) -> None:
        if self.trace and self.theta.max() < 1:
            powers = self.discount ** np.arange(len(self.trace))[::-1]
            baseline = float((powers * self.trace).sum() / powers.sum())
            gradient = np.zeros(len(self.z))
            for arm, loss, size in zip(arms, losses, sizes, strict=True):
                gradient[arm] += size * (loss - baseline) / self.theta[arm] / sizes.sum()
            self.steps += 1
            largest = np.abs(gradient).max()
            self.squares += largest**2
            divisor = {"auto": np.sqrt(self.steps), "adaptive": np.sqrt(self.squares), "aggressive": largest}
            self.z = self.z - np.sqrt(2 * np.log(len(self.z))) / divisor.get(self.rule, 1.0) * gradient
            self.z -= np.log(np.exp(self.z).sum())
        self.trace.append(float((sizes * losses).sum() / sizes.sum()))


@pytest.mark.parametrize("rule", ["auto", "adaptive", "aggressive", "constant"])
@pytest.mark.parametrize("tables", ["joint", "separate"])
def test_fedex_is_the_papers_update(rule: Any, tables: Any) -> None:
    search = {"local.lr": LRS, "local.weight_decay": [0.0, 0.1]}
    policy = FedEx(search=search, tables=tables, step_rule=rule, baseline_discount=0.7, cutoff=0.4)
    policy.prepare(facts())

    def losses(settings: dict[str, np.ndarray], clients: np.ndarray) -> np.ndarray:
        return 1 + 0.1 * np.abs(np.log(settings["local.lr"] / 0.1)) + settings["local.weight_decay"] + 0.01 * clients

    sizes = [8] if tables == "joint" else [4, 2]
    plain = [PlainFedEx(arms, rule, 0.7, 0.4) for arms in sizes]
    federation = Federation(policy, losses)
    generator = np.random.default_rng(0)
    for _ in range(25):
        cohort = np.sort(generator.permutation(CLIENTS)[:7])
        for found, expected in zip(policy.probabilities(federation.state), plain, strict=True):
            np.testing.assert_allclose(found, expected.theta, atol=1e-10)
        decisions, found_losses, validation = federation.round(cohort)
        for place, expected in enumerate(plain):
            arms = policy.chosen(decisions)[:, place]
            np.testing.assert_allclose(policy.chances(decisions)[:, place], expected.theta[arms], atol=1e-10)
            expected.learn(arms, found_losses, validation)
    assert plain[0].theta.max() > 1.5 / sizes[0]  # there was something to learn


def test_arms_are_drawn_as_often_as_they_are_likely() -> None:
    policy = FedEx(search={"local.lr": LRS})
    policy.prepare(facts())
    state = policy.server_init({})
    state["table:0"]["logs"] = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))
    numbers = np.arange(20_000)
    decisions = policy.decide(state, numbers % 12, numbers, [])
    shares = np.bincount(policy.chosen(decisions)[:, 0]) / len(numbers)
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4], atol=0.015)
    again = policy.decide(state, numbers[500:600] % 12, numbers[500:600], [])
    assert np.array_equal(again, decisions[500:600])  # whoever else is asked about


def test_arms_lie_around_the_settings_of_the_run() -> None:
    search = {"local.lr": {"from": 0.001, "to": 10.0, "log": True}, "local.steps": {"from": 1, "to": 4}}
    policy = FedEx(search=search, arms=200, spread=0.1)
    policy.prepare(facts())
    (table,) = policy.tables
    assert table.arm(0) == {"local.lr": 0.1, "local.steps": 2}
    decades = np.log10(table.values["local.lr"])
    assert -1.4 <= decades.min() < -1.35 < -0.65 < decades.max() <= -0.6
    assert set(table.values["local.steps"]) == {2.0}  # a tenth of the range leads to no other number
    wide = FedEx(search=search, arms=200, spread=1.0)
    wide.prepare(facts())
    assert set(wide.tables[0].values["local.steps"]) == {1.0, 2.0, 3.0, 4.0}
    assert np.log10(wide.tables[0].values["local.lr"]).std() == pytest.approx(4 / np.sqrt(12), rel=0.1)
    plain = FedEx()
    plain.prepare(facts())
    assert len(plain.tables[0]) == 27
    assert plain.tables[0].arm(0) == {"local.lr": 0.1}


def test_settings_may_be_nested() -> None:
    """As on the command line, where they are ``policy.search.local.lr=[…]``."""
    policy = FedEx(search={"local": {"lr": LRS, "steps": {"from": 1, "to": 4}}})
    policy.prepare(facts())
    assert policy.space.names == ("local.lr", "local.steps")


def two_kinds(settings: dict[str, np.ndarray], clients: np.ndarray) -> np.ndarray:
    """Clients with even numbers want the first learning rate, the others the last."""
    wanted = np.where(clients % 2 == 0, LRS[0], LRS[-1])
    return 1 + 0.3 * np.abs(np.log(settings["local.lr"] / wanted))


@pytest.mark.parametrize(("code", "rounds", "right"), [("labels", 120, 12), ("random", 200, 10)])
def test_personalized_fedex_gives_different_arms_to_different_clients(code: Any, rounds: int, right: int) -> None:
    """Clients who have nothing in common are learned about one by one, and chance misleads one or the other."""

    def labels(clients: np.ndarray) -> np.ndarray:
        return np.eye(2)[clients % 2]

    policy = PersonalizedFedEx(search={"local.lr": LRS}, code=code)
    policy.prepare(facts(labels=labels))
    federation = Federation(policy, two_kinds)
    (before,) = policy.probabilities(federation.state, CLIENTS)
    np.testing.assert_allclose(before, 0.25)
    for _ in range(rounds):
        federation.round(CLIENTS)
    (after,) = policy.probabilities(federation.state, CLIENTS)
    wanted = np.where(CLIENTS % 2 == 0, 0, len(LRS) - 1)
    assert (after[CLIENTS, wanted] > 0.8).sum() >= right
    (likeliest,) = policy.summary(federation.state)["clients_by_likeliest_arm"]
    assert min(likeliest[0], likeliest[-1]) >= 4


def test_personal_gradients_are_those_of_the_whole_loss() -> None:
    policy = PersonalizedFedEx(
        search={"local.lr": LRS, "local.weight_decay": [0.0, 0.1]}, tables="separate", code="random"
    )
    policy.prepare(facts())
    federation = Federation(policy, two_kinds)
    federation.round(CLIENTS[:6])
    state = federation.state
    state["network"] = {
        n: t + 0.1 * torch.arange(t.numel()).reshape(t.shape).cos() for n, t in state["network"].items()
    }
    level = float(state["baseline"]["sum"] / state["baseline"]["weight"])
    taken = {}

    def noted(message: Any, server: Any, context: Any) -> Any:
        taken.update(message)
        return server

    policy.learn = noted  # type: ignore[method-assign]
    decisions, losses, sizes = federation.round(CLIENTS)
    leaves = {name: t.clone().requires_grad_() for name, t in state["network"].items()}
    heads = policy.logs(leaves, policy.codes(CLIENTS))
    drawn = sum(
        logs[torch.arange(12), torch.from_numpy(policy.chosen(decisions)[:, p])] for p, logs in enumerate(heads)
    )
    whole = (torch.from_numpy(sizes * (losses - level)) * drawn).sum() / sizes.sum()
    expected = torch.autograd.grad(whole, list(leaves.values()))
    for name, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(taken[name] / taken["weight"], gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("judgement", ["difference", "after"])
def test_fts_finds_the_optimum_of_a_function(judgement: Any) -> None:
    search = {"local.lr": {"from": 0.001, "to": 10.0, "log": True}}
    policy = FTS(search=search, judgement=judgement, lengthscale=0.15)
    policy.prepare(facts())

    def losses(settings: dict[str, np.ndarray], clients: np.ndarray) -> np.ndarray:
        return 1 + np.minimum(1.0, 0.4 * np.abs(np.log10(settings["local.lr"] / 0.05)))

    federation = Federation(policy, losses)
    first = policy.hyperparameters(federation.round(CLIENTS)[0])["local.lr"]
    for _ in range(25):
        decisions, _, _ = federation.round(CLIENTS)
    last = policy.hyperparameters(decisions)["local.lr"]
    assert np.median(np.abs(np.log10(last / 0.05))) < 0.35
    assert np.median(np.abs(np.log10(first / 0.05))) > 0.8
    assert abs(np.log10(policy.summary(federation.state)["best"]["local.lr"] / 0.05)) < 0.5
    assert decisions[:, -1].mean() > 0.9  # by now clients believe themselves


def test_fts_beliefs_are_those_of_bayesian_regression() -> None:
    policy = FTS(search={"local.lr": {"from": 0.001, "to": 1.0, "log": True}}, features=8, noise=0.3, slots=4)
    policy.prepare(facts())
    federation = Federation(policy, lambda settings, clients: 1 + settings["local.lr"])
    seen: dict[int, list[tuple[np.ndarray, float]]] = {}
    means: list[float] = []
    spreads: list[float] = []

    def discounted(values: list[float]) -> float:
        powers = 0.9 ** np.arange(len(values))[::-1]
        return float((powers * values).sum() / powers.sum())

    for number in range(4):
        cohort = CLIENTS[number : number + 3]
        decisions, losses, sizes = federation.round(cohort)
        gains = -(losses - 2.0) / 2.0
        y = np.zeros(3)
        if means:
            distances = gains - discounted(means)
            y = np.clip(distances / (discounted(spreads) if spreads else abs(discounted(means))), -3, 3)
            spreads.append(float((sizes * np.abs(distances)).sum() / sizes.sum()))
        means.append(float((sizes * gains).sum() / sizes.sum()))
        for client, row, value in zip(cohort.tolist(), policy.phi(policy.points(decisions)), y, strict=True):
            seen.setdefault(client, []).append((row, float(value)))
    for client, observations in seen.items():
        phi, y = np.stack([row for row, _ in observations]), np.array([value for _, value in observations])
        belief = federation.kept[client]["belief"]
        precision = phi.T @ phi + 0.09 * np.eye(8)
        np.testing.assert_allclose(belief["precision"], precision, atol=1e-12)
        np.testing.assert_allclose(belief["targets"], phi.T @ y, atol=1e-12)
        assert int(belief["observations"]) == len(y)
    draws = np.stack(
        [policy.sample(precision, phi.T @ y, z) for z in np.random.default_rng(0).normal(size=(20_000, 8))]
    )
    np.testing.assert_allclose(draws.mean(0), np.linalg.solve(precision, phi.T @ y), atol=0.05)
    np.testing.assert_allclose(np.cov(draws.T), 0.09 * np.linalg.inv(precision), atol=0.05)


def test_who_has_nothing_to_say_changes_nothing() -> None:
    for policy in (FedEx(search={"local.lr": LRS}), FTS(), PersonalizedFedEx(code="random")):
        policy.prepare(facts())
        federation = Federation(policy, lambda settings, clients: np.full(len(clients), np.nan))
        before = federation.state
        federation.round(CLIENTS)
        for group, tensors in before.items():
            for name, t in tensors.items():
                assert torch.equal(t, federation.state[group][name])


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        (
            {"local.lrr": [1]},
            "policy.search: 'local.lrr' cannot differ from client to client; did you mean 'local.lr'?",
        ),
        ({"algorithm.mu": [1.0]}, "'algorithm.mu' cannot differ from client to client"),
        ({"local.lr": [0.1, -1.0]}, "policy.search: local.lr cannot be -1"),
        ({"local.momentum": {"from": 0.0, "to": 1.0}}, "policy.search: local.momentum cannot be 1"),
        ({"local.steps": {"from": 1.0, "to": 4.5}}, "policy.search: local.steps must be whole numbers"),
        ({"local.lr": ["a"]}, "policy.search: local.lr must be numbers, not 'a'"),
        ({"local.steps": [1, 2], "local.epochs": [1]}, "give local.steps or local.epochs, not both"),
        ({"local.epochs": {"from": 1, "to": 3}}, "which has no local.epochs; give local.epochs=…, or list values"),
        ({"local.lr": {"from": 0.2, "to": 3.0}}, "and local.lr must be from 0.2 to 3, not 0.1"),
    ],
)
def test_what_cannot_be_searched_is_refused(search: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError) as refused:
        FedEx(search=search).prepare(facts())
    assert sentence in str(refused.value)
