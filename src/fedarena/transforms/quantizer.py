"""What compressors share that round coordinates to few levels, as chance decides."""

from __future__ import annotations

import math

import numpy as np
import torch

from fedarena.models import Tensors
from fedarena.models.keyed_random import keyed_normal, keyed_uniform
from fedarena.train import Job, JobArrays, Work
from fedarena.transforms.compressor import Compressor
from fedarena.transforms.encodings import Levels
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import common_type, length_of

_MOST_TRIED = 1 << 16  # coordinates


class Quantizer(Compressor):
    """Sends scales and levels. How many bytes that takes depends on how the values are distributed."""

    def encoding(self, form: Tensors) -> Levels:
        """Scales and levels."""
        raise NotImplementedError

    def planned_bytes(self, values: int, form: Tensors) -> int:
        """What normally distributed coordinates take, of which so many are other than zero: some are tried."""
        length = length_of(form)
        like = torch.empty(min(length, _MOST_TRIED), dtype=common_type(form))
        is_there = keyed_uniform(torch.tensor(1), like) < values / length
        sample = {"sample": keyed_normal(torch.tensor(2), like) * is_there}
        one = np.ones(1)
        rows = Rows(
            {"params": {"sample": sample["sample"][None]}}, JobArrays.of([Job(0, 1)]), Work(one, one, one), one, ()
        )
        messages, _ = self.compress(sample["sample"][None], rows, {})
        encoding, tried = self.encoding(form), self.encoding(sample)
        levels = int(tried.sizes(messages)[0]) - tried.scale_bytes
        return encoding.scale_bytes + math.ceil(levels * length / len(like))
