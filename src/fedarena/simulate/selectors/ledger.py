"""What a selector knows about clients it has seen: columns that grow with them, not with the population."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.simulate.selectors.base import BoolArray, IntArray


class Ledger:
    """A table with one row per client seen, sorted by client; columns are given with the value of a new row."""

    def __init__(self, **columns: float):
        self.clients: IntArray = np.empty(0, dtype=np.int64)
        self._defaults = columns
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(0, type(new)) for name, new in columns.items()}

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """The column itself: changing it changes the ledger."""
        return self._columns[column]

    def knows(self, clients: IntArray) -> BoolArray:
        """Which of these have a row."""
        if not len(self):
            return np.zeros(len(clients), dtype=np.bool_)
        place = np.minimum(np.searchsorted(self.clients, clients), len(self) - 1)
        return np.asarray(self.clients[place] == clients)

    def rows(self, clients: IntArray) -> IntArray:
        """The rows of these clients, each of whom has one."""
        return np.searchsorted(self.clients, clients).astype(np.int64)

    def add(self, clients: IntArray) -> IntArray:
        """The rows of these clients, made for who has none yet; the same client may come more than once."""
        new = np.unique(clients[~self.knows(clients)])
        if len(new):
            places = np.searchsorted(self.clients, new)
            self.clients = np.insert(self.clients, places, new)
            for name, value in self._defaults.items():
                self._columns[name] = np.insert(self._columns[name], places, value)
        return self.rows(clients)
