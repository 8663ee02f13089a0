"""Jobs in virtual time: when a phone downloads, trains and uploads, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.metrics import OUTCOMES
from fedarena.train.engine import IntArray

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Outcome(IntEnum):
    """How a job ended; until it has, how it is going to end if nobody stops it. In the order of `OUTCOMES`."""

    USED = 0
    LATE = 1
    STALE = 2
    LEFT_DOWNLOADING = 3
    LEFT_TRAINING = 4
    LEFT_UPLOADING = 5
    CRASHED = 6
    NOT_AVAILABLE = 7
    LOST_WITH_ITS_GROUP = 8  # of whose members too few were left for a secure sum

    @property
    def label(self) -> str:
        """The word for it in tables."""
        return OUTCOMES[self]


@dataclass(frozen=True)
class Jobs:
    """Some jobs; every array has an entry per job. Times are seconds of virtual time, infinite for what never happens.

    What a phone has to do is known when it begins, and with its availability also how that will end.
    """

    numbers: IntArray  # counted over the whole run
    clients: IntArray
    versions: IntArray  # how many steps the server had made when it sent the model
    shares: FloatArray  # of a whole job, for clients that would be late
    samples: IntArray  # to be processed
    download_bytes: IntArray
    upload_bytes: IntArray
    begin: FloatArray
    download_seconds: FloatArray  # of work; it takes longer if the phone pauses
    compute_seconds: FloatArray
    upload_seconds: FloatArray
    downloaded: FloatArray  # moments at which a phase ends
    trained: FloatArray
    uploaded: FloatArray
    end: FloatArray  # of the whole job, one way or the other
    outcomes: IntArray  # values of `Outcome`
    rounds: IntArray  # in which they began
    decisions: FloatArray | None = None  # of a policy about hyperparameters, a row each; None: there is none

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, which: Any) -> Jobs:
        """The jobs at these positions, or where a mask is true."""
        values = (getattr(self, field.name) for field in fields(self))
        taken: Any = [None if value is None else value[which] for value in values]
        return Jobs(*taken)

    @property
    def arrive(self) -> BoolArray:
        """Whether the update gets to the server."""
        return np.asarray(self.outcomes == Outcome.USED)

    def in_order(self) -> Jobs:
        """The same jobs by the time at which they end; those that end together in the order they began."""
        return self.take(np.lexsort((self.numbers, self.end)))

    def stopped(self, which: BoolArray, time: float, outcome: Outcome) -> Jobs:
        """The same jobs, but where `which` is true the server has no use for the update from `time` on.

        Those that would have failed after that have not failed by then.
        """
        end = np.where(which, np.minimum(self.end, time), self.end)
        outcomes = np.where(which & (self.arrive | (self.end > time)), int(outcome), self.outcomes)
        cut = {
            name: np.where(getattr(self, name) <= end, getattr(self, name), np.inf)
            for name in ("downloaded", "trained", "uploaded")
        }
        return replace(self, end=end, outcomes=outcomes, **cut)


def join_jobs(parts: Sequence[Jobs]) -> Jobs:
    """All of them in one."""
    parts = [part for part in parts if len(part)] or parts[:1]  # nobody has decided anything about no jobs
    columns = ([getattr(part, field.name) for part in parts] for field in fields(Jobs))
    joined: Any = [None if column[0] is None else np.concatenate(column) for column in columns]
    return Jobs(*joined)


def no_jobs() -> Jobs:
    """None at all."""
    integers = {"numbers", "clients", "versions", "samples", "download_bytes", "upload_bytes", "outcomes", "rounds"}
    names = [field.name for field in fields(Jobs) if field.name != "decisions"]
    kinds: list[Any] = [np.int64 if name in integers else np.float64 for name in names]
    return Jobs(*(np.empty(0, dtype=kind) for kind in kinds))
