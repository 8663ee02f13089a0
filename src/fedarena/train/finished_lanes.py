"""Lanes as they were after their client's last step, put aside by a GPU within the graph of many steps.

Where everybody has a lane, those who are done stay in it while the others go on. Without this, a graph would have to
end where anybody does, and Python take a turn; in a group of clients of many lengths that would be nearly every step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.jobs import IntArray
from fedarena.train.tensors import sent_to
from fedarena.train.usable_kernels import usable_kernels

_WORD_BYTES = 4
_WORDS = 1024  # that a processor copies at once
_PARTS = 32  # processors for a lane


def available(device: torch.device) -> bool:
    """Whether a device can do it."""
    return device.type == "cuda" and usable_kernels(__name__, "Clients of very different sizes train") is not None


def try_out() -> None:
    """Makes and runs the kernel, to see whether that is possible here."""
    one = torch.ones(1, 1, device="cuda")
    FinishedLanes({"": one}, one[0]).keep(one[0], 1)


def can_be_kept(tensors: Tensors) -> bool:
    """Whether lanes lie one after the other in these tensors; an algorithm of one's own may start from others."""
    return all(t.is_contiguous() and t[0].nbytes % _WORD_BYTES == 0 for t in tensors.values())


class FinishedLanes:
    """Copies of the rows of tensors that can be kept, each as it was when its lane had taken its last step."""

    def __init__(self, tensors: Tensors, numbers: Tensor):
        """The `numbers` of lanes are 1 more than the steps that they have taken."""
        self.tensors = {name: torch.empty_like(t) for name, t in tensors.items()}
        self._last = torch.zeros_like(numbers)
        rows = [
            (t.data_ptr(), self.tensors[name].data_ptr(), t[0].nbytes // _WORD_BYTES) for name, t in tensors.items()
        ]
        self._table = sent_to(numbers.device, np.array(rows, dtype=np.int64))
        self.keep(self._last + 1, len(numbers))  # copies nothing, but a kernel cannot be made while a graph is captured

    def begin(self, steps: IntArray) -> None:
        """The first lanes are going to take so many steps each."""
        self._last[: len(steps)] = sent_to(self._last.device, steps + 1).to(self._last.dtype)

    def keep(self, numbers: Tensor, width: int) -> None:
        """Copies those of the first `width` lanes that have just taken their last step."""
        from fedarena.train.triton_finished import copy_finished_kernel  # which takes a while, for GPUs only

        copy_finished_kernel[(width, _PARTS)](
            numbers, self._last, self._table, TENSORS=len(self.tensors), WORDS=_WORDS, num_warps=4
        )
