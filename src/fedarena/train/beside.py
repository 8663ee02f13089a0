"""Clients with far more to do than others train beside them, so that nobody waits for them alone in the end.

A GPU takes a step of few clients about as fast as one of a single client, and much faster than one of many: those with
very many steps need not wait for all others in each of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import cached_property

import numpy as np
import torch

from fedarena.train.engine import JobResults
from fedarena.train.lane_pool import LanePool
from fedarena.train.lanes import LaneTraining
from fedarena.train.placing import PlannedWork
from fedarena.train.streams import LaneStream

_FAR_MORE = 2  # times as many steps as all lanes have if everything is shared out evenly


def divide_by_length(
    some: PlannedWork | None, all_work: PlannedWork, lanes: int
) -> tuple[PlannedWork | None, PlannedWork | None]:
    """Of some clients, those with far more steps than there would be if all work were shared out evenly; the rest."""
    working = int((all_work.steps > 0).sum())
    if some is None or not working:
        return None, some
    evenly = -(-int(all_work.steps.sum()) // min(lanes, working))
    is_long = some.steps > _FAR_MORE * evenly
    if not is_long.any() or (is_long.all() and len(some.steps) == len(all_work.steps)):
        return None, some
    long, others = np.flatnonzero(is_long), np.flatnonzero(~is_long)
    return some.of(long), some.of(others) if len(others) else None


class Beside:
    """Where such clients train: on a GPU on a stream of their own, which goes first."""

    def __init__(self, device: torch.device):
        self._device = device
        self._pool = LanePool()

    @cached_property
    def _stream(self) -> LaneStream | None:
        return LaneStream(urgent=True) if self._device.type == "cuda" else None

    def train(self, long: LaneTraining, usual: Iterator[JobResults | None], usual_steps: int) -> Iterator[JobResults]:
        """The results of both; so that both are told to a GPU in time, some of the long steps follow each usual one."""
        stream, results = self._stream, []
        course = long.course(self._pool, stream)
        if stream is not None:
            stream.stream.wait_stream(torch.cuda.current_stream())
        for finished in usual:
            if finished is not None:
                yield finished
                continue
            until = long.taken + -(-long.schedule.length // max(1, usual_steps))
            with stream or nullcontext():
                while long.taken < min(until, long.schedule.length):  # results are for later: they are waited for
                    next(course)
        with stream or nullcontext():
            results = [finished for finished in course if finished is not None]
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream.stream)
        yield from results
