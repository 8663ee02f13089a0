"""The sum of updates divided by a number that is known before, whoever came. For differential privacy.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, call it the estimator with a
fixed denominator: one client more or less changes the result by no more than its own update divided by that number.
"""

from __future__ import annotations

from fedarena.train import Groups, map_groups
from fedarena.transforms.aggregators.base import Aggregator, Partial, cohort_of
from fedarena.transforms.rows import Rows, weighted_sum


class FixedMean(Aggregator):
    """The sum over `clients`, how many are expected. It is what a privacy mechanism uses, and not a setting."""

    adds_scaled_rows = True
    adds_products = True
    needs_only_sums = True

    def __init__(self, clients: float):
        self.clients = clients

    def add_up(self, rows: Rows) -> Partial:
        """The sums of all groups."""
        return Partial(weighted_sum(rows.update, rows.weights, rows.factors, rows.dtype))

    def finish(self, total: Partial) -> Groups:
        """What the sums come to; the algorithm, too, is told how many clients are expected, not how many came."""
        return map_groups(lambda t: t / self.clients, total.tensors) | cohort_of(self.clients)
