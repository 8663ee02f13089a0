"""FedHPO-Bench's Table 5 and Fig. 5 in small: optimizers alone, and as wrappers of FedEx (X+FedEx).

    python benchmarks/fedex.py fedex.json --optimizers random bo_gp bo_rf bo_kde hyperband bohb --repetitions 3

A trial is a run. Alone, the optimizer's configuration is what all clients train with; around FedEx it is the centre of
the arms (the same settings, with policy=fedex beside them). Optimizers of one fidelity have trials of `--trial-rounds`
rounds; the others go on with paused runs, from `--least-rounds` to `--most-rounds`. Both may spend `--budget` rounds. A
trial's value is the smallest validation loss so far. Then the configuration that was found (of FedEx, its likeliest
arm) is trained alone for `--full-rounds` rounds, and its test accuracy is what counts.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core.errors import FedArenaError
from fedarena.core.space import Space
from fedarena.hpo.optimizers import OPTIMIZERS
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, start_run

SEARCH: dict[str, Any] = {
    "local.lr": {"from": 0.01, "to": 1.0, "log": True},
    "local.weight_decay": {"from": 0.0, "to": 0.001},
    "local.steps": {"from": 1, "to": 4},
}
BASE: dict[str, Any] = {
    "federation": {
        "name": "digits",
        "partition": {"name": "dirichlet", "clients": 50, "alpha": 0.5},
        "train_fraction": 0.6,
        "validation_fraction": 0.2,
    },
    "model": {"name": "logistic_regression"},
    "cohort": 10,
    "local": {"steps": 2, "batch_size": 16},
    "engine": "reference",  # which is at work sooner
}
FEDEX: dict[str, Any] = {"name": "fedex", "search": SEARCH, "arms": 9, "spread": 0.1}


class Trials:
    """Runs of one search, which are advanced and paused."""

    def __init__(self, folder: Path, policy: dict[str, Any] | None, seed: int, most_rounds: int):
        self.folder, self.policy, self.seed, self.most_rounds = folder, policy, seed, most_rounds
        self.runs: dict[int, Run] = {}
        self.spent = 0

    def value(self, course: int, configuration: dict[str, Any], rounds: int) -> float:
        """The smallest validation loss of a course after so many rounds."""
        if course not in self.runs:
            policy = {} if self.policy is None else {"policy": self.policy}
            settings = merge({**BASE, **policy, "seed": self.seed, "rounds": self.most_rounds}, configuration)
            settings |= {"name": f"course-{course}", "evaluation": {"every": 1, "part": "validation"}}
            self.runs[course] = Run.create(resolve(settings), self.folder)
        run = self.runs[course]
        self.spent += rounds - run.round
        try:
            run.advance(rounds - run.round)
        except FedArenaError:  # it diverged
            return math.inf
        losses = [loss for loss in run.rounds["loss"].to_pylist()[1:] if loss is not None]
        return float(min(losses, default=math.inf))

    def settings(self, course: int, configuration: dict[str, Any]) -> dict[str, Any]:
        """What a course stands for: its configuration, or what FedEx made of it."""
        return configuration if self.policy is None else dict(self.runs[course].close().summary["policy"]["best"])


def search(name: str, wrapped: bool, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One search: the best value over rounds, what was found, and how good that is in the end."""
    kind = OPTIMIZERS.get(name)
    most = options.most_rounds if kind.multi_fidelity else options.trial_rounds
    least = {"min_rounds": options.least_rounds} if kind.multi_fidelity else {}
    optimizer = kind(Space.parse(SEARCH), most, seed, **least)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = FEDEX | {"baseline_discount": options.baseline_discount} if wrapped else None
        trials = Trials(Path(folder), policy, seed, most)
        best, course, configuration = math.inf, -1, {}
        seen: list[tuple[int, float]] = []
        while trials.spent < options.budget:
            asked = optimizer.ask()
            value = trials.value(asked.course, asked.configuration, asked.rounds)
            optimizer.tell(asked, value)
            if value < best:
                best, course, configuration = value, asked.course, asked.configuration
            seen.append((trials.spent, best))
        found = trials.settings(course, dict(configuration))
        alone = {"name": "final", "seed": seed, "rounds": options.full_rounds}
        evaluation = {"evaluation": {"every": options.full_rounds, "part": "test"}}
        run = start_run(resolve(merge({**BASE, **alone, **evaluation}, found)), Path(folder))
        return {"best_seen": seen, "found": found, "test_accuracy": run.summary["final"]["accuracy"]}


def main() -> None:
    """Runs all searches and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--optimizers", nargs="+", default=["random"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--budget", type=int, default=200, help="rounds of a search, of all trials together")
    parser.add_argument("--trial-rounds", type=int, default=10)
    parser.add_argument("--least-rounds", type=int, default=3)
    parser.add_argument("--most-rounds", type=int, default=27)
    parser.add_argument("--full-rounds", type=int, default=60)
    parser.add_argument("--baseline-discount", type=float, default=0.9, help="of FedEx")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.optimizers:
        for wrapped in (False, True):
            label = f"{name}+FedEx" if wrapped else name
            results[label] = [search(name, wrapped, seed, options) for seed in range(options.repetitions)]
            scores = [100 * one["test_accuracy"] for one in results[label]]
            losses = [one["best_seen"][-1][1] for one in results[label]]
            print(
                f"{label:20} test accuracy {np.mean(scores):.2f} ± {np.std(scores):.2f} %, "
                f"best seen validation loss {np.mean(losses):.4f} ± {np.std(losses):.4f}",
                flush=True,
            )
            options.output.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
