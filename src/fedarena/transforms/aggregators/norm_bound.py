"""A bound on the length of updates. Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019.

Updates longer than a bound are shortened to it before the mean is taken; weak noise on the mean may hide what is left
of an attack. This is not meant to be differential privacy, for which nothing is accounted here.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train import Algorithm, Groups
from fedarena.train.product_rows import ProductRows
from fedarena.transforms.aggregators.base import AGGREGATORS, Partial, ServerStep, verdict_of
from fedarena.transforms.aggregators.defence import sends_more
from fedarena.transforms.aggregators.mean import Mean
from fedarena.transforms.rows import Rows

_JUDGED = "judged"


@AGGREGATORS.register("norm_bound")
class NormBound(Mean):
    """The mean of updates, none of which is longer than `bound`, plus Gaussian noise of standard deviation `noise`.

    Clients count as the algorithm says, as in the paper. Stale updates are shrunk as in the mean, after the bound.
    """

    adds_products = True

    def __init__(
        self, *, bound: float = 1.0, noise: float = 0.0, staleness_exponent: float = 0.5, rescale: bool = False
    ):
        super().__init__(staleness_exponent=staleness_exponent, rescale=rescale)
        if not bound > 0:
            raise BadInputError(f"aggregator.bound must be above 0, not {bound}")
        if noise < 0:
            raise BadInputError(f"aggregator.noise must not be negative, but is {noise}")
        self.bound, self.noise = bound, noise

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """A bound on the change of the model would leave open what else is sent."""
        if not any(update.get(group) for group in algorithm.change_groups):
            return "its clients send no update"
        return sends_more(algorithm, update)

    def add_up(self, rows: Rows) -> Partial:
        """Sums of the shortened updates, and by how much each was."""
        factor = self.bound / _norms(rows.changes).clamp(min=self.bound)
        factors = {g: {name: factor.to(t.dtype) for name, t in ts.items()} for g, ts in rows.changes.items()}
        partial = super().add_up(replace(rows, factors=factors))
        partial.tensors[_JUDGED] = {"clients": torch.from_numpy(rows.jobs.clients.copy()), "counted": factor.cpu()}
        return partial

    def merge(self, total: Partial, more: Partial) -> Partial:
        """The sums, and everybody who was judged."""
        before, after = total.tensors.pop(_JUDGED), more.tensors[_JUDGED]
        sums = Partial({group: t for group, t in more.tensors.items() if group != _JUDGED}, more.numbers)
        merged = super().merge(total, sums)
        merged.tensors[_JUDGED] = {name: torch.cat([t, after[name]]) for name, t in before.items()}
        return merged

    def conclude(self, total: Partial, kept: Groups, step: ServerStep) -> tuple[Groups, Groups]:
        """The mean with its noise, and what was left of every update."""
        judged = total.tensors[_JUDGED]
        update = self.finish(total)
        if self.noise:
            for group, tensors in update.items():
                if group != "cohort":
                    noisy = {n: t + self.noise * step.context.normal(f"{group}/{n}", t) for n, t in tensors.items()}
                    update[group] = noisy
        return update | verdict_of(judged["clients"].numpy(), judged["counted"].numpy()), kept


def _norms(rows: Groups) -> Tensor:
    """Of every client's numbers, the same whoever else is beside it."""
    each = [
        t.norms().square() if isinstance(t, ProductRows) else t.reshape(len(t), -1).double().square().sum(1)
        for tensors in rows.values()
        for t in tensors.values()
    ]
    return torch.stack(each).sum(0).sqrt()
