"""A selector of one's own, as FedScale's Fig. 17: clients that learn much and are fast are invited again.

python examples/plugins/own_selector.py
"""

from __future__ import annotations

import numpy as np

import fedarena
from fedarena.simulate.selectors import Candidates, Feedback, Selector


class Useful(Selector):
    """Half of the cohort by chance, half by loss per second."""

    def prepare(self, clients, samples, cohort, seed) -> None:
        self.use = np.zeros(clients.max() + 1)

    def select(self, number: int, candidates: Candidates, round: int):
        drawn = candidates.draw(4 * number)
        by_chance, rest = drawn[: number // 2], drawn[number // 2 :]
        return np.append(by_chance, rest[np.argsort(-self.use[rest], kind="stable")[: number - len(by_chance)]])

    def observe(self, round: int, feedback: Feedback) -> None:
        self.use[feedback.clients] = np.nan_to_num(feedback.losses) / np.maximum(feedback.seconds, 1)


SETTINGS = {"fleet": "fedscale", "protocol": "synchronous", "selector": Useful}

if __name__ == "__main__":
    print(fedarena.run(SETTINGS, federation="digits", rounds=20, cohort=5).summary["final"]["accuracy"])
