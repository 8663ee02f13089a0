"""What a run comes to on a machine, so that another one can tell whether it would do the same run."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from fedarena.core.errors import BadInputError
from fedarena.runs.building import Experiment
from fedarena.runs.identity import data_fingerprints
from fedarena.runs.run import Run


@dataclass(frozen=True)
class BuiltHere:
    """What must be the same where a run is done, so that it is the run that it would be here."""

    device: str
    fleet: str | None  # fingerprints
    federation: str | None
    weights: str | None

    @classmethod
    def of(cls, experiment: Experiment) -> BuiltHere:
        """Of an experiment on this machine."""
        return cls(experiment.simulation.engine.choices["device"], **data_fingerprints(experiment))

    def check_same(self, there: BuiltHere, node: str) -> None:
        """Refuses a machine on which the same settings come to something else."""
        for part in ("federation", "fleet", "weights"):
            if getattr(there, part) != getattr(self, part):
                raise BadInputError(
                    f"The {'file of weights' if part == 'weights' else part} on {node} is another one than on the "
                    "machine of the suite; copy it from there, or remove what lies here to have it made again"
                )
        if there.device != self.device:
            raise BadInputError(
                f"{node} computes on {there.device}, and the machine that asked for the run on {self.device}; choose "
                "engine.device for both"
            )


def compared_run(wanted: BuiltHere) -> type[Run]:
    """Runs that are refused, before their folder is made, if they are not what they would be on another machine."""

    class ComparedRun(Run):
        @classmethod
        def check_possible(cls, experiment: Experiment) -> None:
            wanted.check_same(BuiltHere.of(experiment), socket.gethostname())

    return ComparedRun
