"""Spaces, and searches in them, for tests of optimizers."""

from __future__ import annotations

from collections.abc import Callable

from fedarena.hpo import Space
from fedarena.hpo.optimizers import Optimizer, Proposal

ROUNDS = 81
TABLE = Space.parse(
    {
        "local.lr": {"from": 1e-5, "to": 1.0, "log": True, "bins": 12},
        "local.weight_decay": [0.0, 0.001, 0.01, 0.1],
        "local.steps": {"from": 1, "to": 4},
        "local.batch_size": [4, 8, 16, 32, 64, 128, 256],
    }
).on_grid()
MIXED = Space.parse(
    {
        "local.lr": {"from": 1e-4, "to": 1.0, "log": True},
        "local.momentum": {"from": 0.0, "to": 0.9},
        "local.steps": {"from": 1, "to": 1000, "log": True},
        "cohort": {"from": 5, "to": 60},
        "algorithm": ["fedavg", "fedprox", "fedadam"],
        "model.hidden": [[32], [32, 32]],
        "local.batch_size": [16, 8, 4],
        "rounds": [50],
    }
)
LINE = Space.parse({"local.lr": {"from": 0.0, "to": 1.0}})
NAMED = Space.parse({"algorithm": ["fedavg", "fedprox", "fedadam", "scaffold"], "model": ["cnn", "mlp"]})
REAL = Space.parse({name: {"from": 0.0, "to": 1.0} for name in ("a", "b", "c")})
SPACES = {"table": TABLE, "mixed": MIXED, "line": LINE, "named": NAMED}


def bowl(space: Space, proposal: Proposal) -> float:
    """Smooth, smallest at 0.62 on every axis, and better with every round."""
    distances = space.places(proposal.configuration) - 0.62
    return float((distances**2).sum()) + 0.3 * (1 - proposal.rounds / ROUNDS)


def search(
    optimizer: Optimizer, value: Callable[[Proposal], float], rounds: int | None = None, asks: int = 10**9
) -> list[tuple[Proposal, float]]:
    """Everything that was evaluated until so many rounds were trained, or so much was asked."""
    history: list[tuple[Proposal, float]] = []
    had: dict[int, int] = {}
    while len(history) < asks and (rounds is None or sum(had.values()) < rounds):
        proposal = optimizer.ask()
        had[proposal.course] = proposal.rounds
        history.append((proposal, value(proposal)))
        optimizer.tell(*history[-1])
    return history
