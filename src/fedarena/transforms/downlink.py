"""The way of the model to clients, in fewer bytes: the server sends differences, and all clients hold the same model.

The server knows what clients hold, h. After a step to the model x it sends a compressed d = C(x - h), and they hold
h + a d from then on, where a (one number more) is what comes nearest to x. What compression loses is part of the next
difference, so nothing is lost for good: |x - h| only gets smaller by sending, whatever the compressor. Local training
starts from h; the server's own model stays x. (Like the server's side of DoubleSqueeze, Tang et al., ICML 2019, and of
EF21-BC, Fatkhullin et al. 2021.)

A client that took part before pays for the differences it has missed, or for all of h, whichever is less; a new one
pays for all of h.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train import Algorithm, Groups, Job, JobArrays, Work, count_bytes
from fedarena.train.own_code import refusing_own_draws
from fedarena.transforms.aggregators.base import named, unnamed
from fedarena.transforms.compressor import Compressor
from fedarena.transforms.rows import IntArray, Rows, flat, unflat
from fedarena.transforms.wire import common_type

_HELD, _SIZES, _MEMORY = "held", "sizes", "memory:"


class Downlink:
    """What becomes of the parameters that an algorithm broadcasts.

    What the server keeps for it is groups of tensors: the parameters that clients hold, what the compressor keeps, and
    the bytes of all differences up to every version.
    """

    def __init__(self, algorithm: Algorithm, compressor: Compressor, seed: int = 0):
        self.algorithm, self.compressor, self.seed = algorithm, compressor, seed

    def check(self, state: Groups) -> None:
        """Refuses what does not fit; `state` is one of the server."""
        sent = self._sent(self.algorithm.broadcast(state))
        if not sent:
            raise BadInputError(
                f"download={type(self.compressor).__name__} has nothing to do: clients of "
                f"{type(self.algorithm).__name__} download no parameters; leave it out"
            )
        self.compressor.check(sent)

    def start(self, state: Groups) -> Groups:
        """What the server keeps before the first round: clients hold the model it begins with."""
        sent = self._sent(self.algorithm.broadcast(state))
        device = next(iter(sent.values())).device
        return {
            _HELD: sent,
            _SIZES: {"so_far": torch.zeros(1, dtype=torch.int64, device=device)},
            **named(_MEMORY, self.compressor.memory(sent)),
        }

    def broadcast(self, state: Groups, kept: Groups) -> Groups:
        """What clients have when they begin: what the algorithm broadcasts, with the parameters they hold."""
        whole = self.algorithm.broadcast(state)
        return {**whole, "params": {**whole["params"], **kept[_HELD]}}

    def advance(self, state: Groups, kept: Groups, version: int) -> Groups:
        """What the server keeps after the step to this version and state: it has sent another difference."""
        sent, held = self._sent(self.algorithm.broadcast(state)), kept[_HELD]
        form = {name: held[name] for name in sent}
        update = {"params": {name: (t - held[name])[None] for name, t in sent.items()}}
        one = np.ones(1)
        jobs = JobArrays.of([Job(0, version, version=version)])
        rows = Rows(update, jobs, Work(one, one, one), one, ("params",), self.seed, "download:")
        memory = {
            group: {name: t[None] for name, t in tensors.items()} for group, tensors in unnamed(_MEMORY, kept).items()
        }
        difference = flat(update)
        with refusing_own_draws(self.compressor, "compress"):
            messages, memory = self.compressor.compress(difference, rows, memory)
        seen = self.compressor.restore(messages, form)
        moved = unflat(_best_factor(difference, seen) * seen, update)["params"]
        encoding = self.compressor.encoding(form)
        so_far = kept[_SIZES]["so_far"]
        size = int(encoding.sizes(messages)[0]) + common_type(form).itemsize
        return {
            _HELD: {name: held[name] + change[0] for name, change in moved.items()},
            _SIZES: {"so_far": torch.cat([so_far, so_far[-1:] + size])},
            **named(_MEMORY, {group: {name: t[0] for name, t in ts.items()} for group, ts in memory.items()}),
        }

    def sizes_so_far(self, kept: Groups) -> IntArray:
        """Bytes of all differences up to every version."""
        sizes: IntArray = kept[_SIZES]["so_far"].cpu().numpy()
        return sizes

    def planned_bytes(self, state: Groups) -> int:
        """What a difference will take, as far as is known before."""
        params = self._sent(self.algorithm.broadcast(state))
        numbers = sum(t.numel() for t in params.values())
        values = self.compressor.values_left(numbers, params)
        planned: int = self.compressor.planned_bytes(values, params) + common_type(params).itemsize
        return planned

    def whole_bytes(self, state: Groups) -> tuple[int, int]:
        """What the parameters take as they are, and what is downloaded beside them."""
        broadcast = self.algorithm.broadcast(state)
        params = count_bytes({"params": self._sent(broadcast)})
        return params, count_bytes(self.algorithm.download(broadcast)) - params

    def _sent(self, broadcast: Groups) -> Tensors:
        return self.algorithm.download(broadcast).get("params", {})


def _best_factor(wanted: Tensor, seen: Tensor) -> Tensor:
    """How much of `seen` comes nearest to `wanted`: less than all where a compressor is right in the mean only."""
    squares = (seen * seen).sum()
    return torch.where(squares > 0, (wanted * seen).sum() / squares, 1.0).to(seen.dtype)
