"""What a method asks of devices, networks and clocks: the hooks of an algorithm that few methods need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedarena.models import Tensors
from fedarena.train.batches import IntArray, count_processed, count_steps, count_steps_within
from fedarena.train.optimizers import LocalTraining
from fedarena.train.tensors import Groups

# A group of an update with a number from 0 to 1 for every parameter: how much of it the client trained. The change of a
# parameter is averaged over those who did. Without such a group everybody trained everything.
COVERAGE = "coverage"

SHARE_ROUNDING = 1e-9  # what is planned to fit exactly does
FORWARD_SHARE = 1 / 3  # of the computing on a sample: the loss without its gradient


@dataclass(frozen=True)
class PartialWork:
    """How the job of a client that would be late gets smaller.

    Leaving out ``"steps"`` saves their computing. Leaving out the first ``"layers"`` saves their part of the backward
    pass, which is twice as much work as the forward pass, and of the upload.
    """

    part: Literal["steps", "layers"]
    # Where the server sets no deadline but waits for all of a round: how many of the clients that begin together do
    # whole jobs, the others as much as takes no longer than theirs. None: everybody does.
    whole_jobs: float | None = None


class SystemsHooks:
    """The part of `Algorithm` that is about bytes, time and staleness; the defaults fit most methods."""

    local: LocalTraining
    tolerates_stale_updates = True  # whether updates may be added to another model than the one they began with
    change_groups: tuple[str, ...] = ("params",)  # of an update, that move the model; old age makes these smaller
    partial_work: PartialWork | None = None  # None: a client does its whole job, or is late

    @property
    def leaves_out_layers(self) -> bool:
        """Whether clients that would be late train only some layers; they know their share from the job."""
        return self.partial_work is not None and self.partial_work.part == "layers"

    def local_steps(self, samples: IntArray, local: LocalTraining) -> IntArray:
        """How many gradient steps clients with so many samples take; none without a sample."""
        return count_steps(samples, local)

    def possible_shares(self, wanted: npt.NDArray[np.float64], samples: IntArray, params: Tensors) -> Any:
        """The shares of a job that clients with so many samples can do, which cost no more than these of whole ones.

        Here, whole steps: at least one, and otherwise as many as process that share of the samples.
        """
        steps, batch_size = self.local_steps(samples, self.local), self.local.batch_size
        fitting = wanted * count_processed(samples, steps, batch_size) + SHARE_ROUNDING
        return np.clip(count_steps_within(fitting, samples, batch_size), 1, None) / np.maximum(steps, 1)

    def download(self, broadcast: Groups) -> Groups:
        """The part of the broadcast that is sent and counted; all but what clients have from the beginning."""
        return broadcast

    def expected_upload_bytes(self, state: Groups) -> int | None:
        """What a client will probably upload now, where that depends on what it learns; None: all of an update."""
        return None

    def uploaded_bytes(self, updates: Groups) -> IntArray | None:
        """What clients (rows of `updates`) really upload, where that depends on what they learned."""
        return None
