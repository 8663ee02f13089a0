"""Methods of somebody's own that go wrong, but only on a worker, and only when a file says so."""

from __future__ import annotations

import os
import signal
import traceback
from pathlib import Path

from torch import nn

from fedarena.algorithms import FedAvg


def _is_time() -> bool:
    trigger = os.environ.get("FEDARENA_TEST_TRIGGER", "")
    return bool(trigger) and Path(trigger).exists() and b"ray::" in Path("/proc/self/cmdline").read_bytes()


class Raises(FedAvg):
    """Has a mistake."""

    def client_weight(self, work):
        if _is_time():
            raise ValueError("a mistake of my own")
        return super().client_weight(work)


class Ends(FedAvg):
    """Ends the process that it trains in, as a lack of memory would."""

    def client_weight(self, work):
        in_round = "collect" in (frame.name for frame in traceback.extract_stack())  # not tried before a run begins
        if _is_time() and in_round:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().client_weight(work)


class Branching(nn.Module):
    """What it computes depends on the data, so that clients cannot train together."""

    def __init__(self, outputs: int):
        super().__init__()
        self.layer = nn.Linear(64, outputs)

    def forward(self, x):
        scores = self.layer(x.flatten(1))
        return scores * 1.1 if scores.sum() > 0 else scores


def branching(spec) -> nn.Module:
    return Branching(spec.classes)


class RaisesThere(FedAvg):
    """Has a mistake after the first round."""

    def server_step(self, state, mean_update, round):
        if round == 2:
            raise ValueError("a mistake of my own")
        return super().server_step(state, mean_update, round)


class KillsItsProcess(FedAvg):
    """Ends its process in the second round, as often as there are files that say so."""

    def server_step(self, state, mean_update, round):
        wanted = sorted(Path(os.environ["FEDARENA_TEST_TRIGGER"]).glob("kill-*"))
        if round == 2 and wanted:
            wanted[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().server_step(state, mean_update, round)
