"""Moving towards a client's model. Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019 (FedAsync)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedarena.core.errors import BadInputError
from fedarena.train import COVERAGE, Groups, take_row
from fedarena.transforms.aggregators.base import AGGREGATORS, Aggregator, Partial, cohort_of
from fedarena.transforms.aggregators.mean import check_exponent, shrinking
from fedarena.transforms.rows import FloatArray, IntArray, Rows


@AGGREGATORS.register("mixing")
class Mixing(Aggregator):
    """The server goes the `share` of the way from its model to a client's, for every client by itself.

    It goes that share times ``(1 + τ)^-staleness_exponent`` of the way to a model that was trained from one τ steps
    old. What a client's model comes to is the algorithm's business: its step from where the client began.
    """

    takes_one_update = True

    def __init__(self, *, share: float = 0.6, staleness_exponent: float = 0.5):
        if not 0 < share <= 1:
            raise BadInputError(f"aggregator.share must be above 0 and at most 1, not {share}")
        check_exponent(staleness_exponent)
        self.share, self.staleness_exponent = share, staleness_exponent

    def factors(self, staleness: IntArray) -> FloatArray:
        """How much of the way the server goes."""
        return self.share * shrinking(staleness, self.staleness_exponent)

    def add_up(self, rows: Rows) -> Partial:
        """The update as it is."""
        numbers = {"share": self.factors(rows.jobs.staleness)[0], "version": rows.jobs.versions[0]}
        return Partial(take_row(rows.update, 0), {name: float(number) for name, number in numbers.items()})

    def finish(self, total: Partial) -> Groups:
        """The same."""
        return {group: tensors for group, tensors in total.tensors.items() if group != COVERAGE} | cohort_of(1.0)

    def move_server(
        self,
        state: Groups,
        update: Groups,
        total: Partial,
        broadcasts: Mapping[int, Groups],
        take: Callable[[Groups, Groups], Groups],
    ) -> Groups:
        """Part of the way to the client's model; parameters that it did not train stay."""
        now, share, coverage = state["params"], total.numbers["share"], total.tensors.get(COVERAGE, {})
        start = broadcasts[int(total.numbers["version"])]["params"]
        stepped = take({**state, "params": start}, update)
        there = stepped["params"]
        mixed = {name: now[name] + share * coverage.get(name, 1.0) * (there[name] - now[name]) for name in now}
        return {**stepped, "params": mixed}
