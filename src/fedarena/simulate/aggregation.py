"""The weighted mean of the clients' updates."""

from __future__ import annotations

from fedarena.train import Groups


class WeightedMean:
    """Adds updates in the order they are given, so the sum does not depend on who computed them."""

    def __init__(self) -> None:
        self._sum: Groups = {}
        self._weight = 0.0

    def add(self, update: Groups, weight: float) -> None:
        """Counts one client's update with its weight."""
        if not self._sum:
            self._sum = {group: {name: weight * t for name, t in tensors.items()} for group, tensors in update.items()}
        else:
            for group, tensors in update.items():
                for name, t in tensors.items():
                    self._sum[group][name] += weight * t
        self._weight += weight

    def mean(self) -> Groups:
        """The mean so far; there must have been an update of positive weight."""
        return {group: {name: t / self._weight for name, t in tensors.items()} for group, tensors in self._sum.items()}
