"""Count sketches of updates. Charikar, Chen, Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002.

(Ivkin et al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019, for gradients.) A client sends a
small table: in every row of it each coordinate is added to one cell, with a random sign (see `CountSketch`). Where
coordinates go is drawn anew for every version of the model, the same for all clients, so that a server may add tables
up and look into the sum alone. For that, what it sees must be linear in the table: the mean over its rows instead of
the median, which `fetchsgd` uses to find the largest coordinates of a sum.

A coordinate's cell times its sign is an unbiased estimate. With error feedback, the cell is divided by how many
coordinates it holds: that is a projection, |c - sent|² ≤ |c|², and E|c - sent|² ≤ (1 - columns / length) |c|².
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.train.sketch import CountSketch
from fedarena.transforms.compressor import Compressor, check_share, compressor
from fedarena.transforms.encodings import Message, Plain
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import common_type, length_of


@compressor("count_sketch")
class Sketched(Compressor):
    """Sends a table of `rows` with together a `share` of the numbers that the update has.

    With `error_feedback`, a client keeps the difference to what the server can tell from it.
    """

    def __init__(self, *, share: float = 0.1, rows: int = 1, error_feedback: bool = True):
        check_share("count_sketch", share)
        if rows < 1:
            raise BadInputError(f"count_sketch.rows must be at least 1, not {rows}")
        self.share, self.rows, self.error_feedback = share, rows, error_feedback

    def check(self, form: Tensors) -> None:
        """Every row of the table needs a cell."""
        if self.rows > length_of(form):
            raise BadInputError(
                f"count_sketch.rows is {self.rows:,}, but the model has only {length_of(form):,} parameters; "
                "choose fewer"
            )

    def encoding(self, form: Tensors) -> Plain:
        """The key of where coordinates go, and the table."""
        table = (self.rows, self._columns(length_of(form)))
        return Plain({"key": ((), torch.int64), "table": (table, common_type(form))})

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """The tables."""
        keys = np.asarray(streams.bits(rows.seed, f"{rows.stream}sketch", rows.jobs.versions)).view(np.int64)
        table = vectors.new_empty(len(vectors), self.rows, self._columns(vectors.shape[1]))
        for key in np.unique(keys).tolist():
            of_key = torch.from_numpy(np.flatnonzero(keys == key)).to(vectors.device)
            table[of_key] = self._sketch(vectors.shape[1], key, vectors.device).sketch(vectors[of_key])
        return {"key": torch.from_numpy(keys.copy()), "table": table}, {}

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """What the tables tell of every coordinate."""
        keys, table, length = messages["key"], messages["table"], length_of(form)
        vectors = table.new_empty(len(table), length)
        for key in sorted(set(keys.tolist())):
            of_key = (keys == key).nonzero().squeeze(1).to(table.device)
            sketch = self._sketch(length, key, table.device)
            cells = table[of_key] / sketch.coordinates_in_columns() if self.error_feedback else table[of_key]
            vectors[of_key] = sketch.mean_estimate(cells)
        return vectors

    def values_left(self, values: int, form: Tensors) -> int:
        """Every coordinate is estimated."""
        return length_of(form)

    def _columns(self, length: int) -> int:
        return max(1, round(self.share * length / self.rows))

    def _sketch(self, length: int, key: int, device: torch.device) -> CountSketch:
        return _sketch(length, self.rows, self._columns(length), device, key)


@lru_cache(maxsize=4)
def _sketch(length: int, rows: int, columns: int, device: torch.device, key: int) -> CountSketch:
    """Jobs of the same version follow each other."""
    return CountSketch(length, rows, columns, device, key)
