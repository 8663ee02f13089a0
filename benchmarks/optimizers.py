"""What a proposal of each optimizer of hyperparameter search costs: ``python benchmarks/optimizers.py [proposals]``."""

from __future__ import annotations

import sys
import time

from fedarena.hpo import Space
from fedarena.hpo.optimizers import OPTIMIZERS, Proposal, make_optimizer

SPACE = Space.parse(
    {
        "local.lr": {"from": 1e-5, "to": 1.0, "log": True, "bins": 15},
        "local.weight_decay": [0.0, 0.001, 0.003, 0.01, 0.1],
        "local.steps": {"from": 1, "to": 5},
        "local.batch_size": [4, 8, 16, 32, 64, 128, 256],
    }
).on_grid()


def value(proposal: Proposal) -> float:
    return float(((SPACE.places(proposal.configuration) - 0.62) ** 2).sum() + 1 / proposal.rounds)


def cpu_milliseconds(name: str, proposals: int) -> float:
    optimizer = make_optimizer(name, SPACE, 81, seed=0)
    spent = 0.0
    for _ in range(proposals):
        began = time.process_time()
        proposal = optimizer.ask()
        spent += time.process_time() - began
        told = value(proposal)
        began = time.process_time()
        optimizer.tell(proposal, told)
        spent += time.process_time() - began
    return 1000 * spent / proposals


def main() -> None:
    proposals = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    make_optimizer("bo_gp", SPACE, 81, 0)  # importing is no proposal
    print(f"CPU milliseconds per proposal over {proposals}")
    for name in OPTIMIZERS.names():
        cpu_milliseconds(name, 12)  # what is loaded at the first proposal
        print(f"{name:10s} {cpu_milliseconds(name, proposals):8.2f}")


if __name__ == "__main__":
    main()
