"""What is set about a run on a real network; a simulation of the same settings leaves it aside."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from fedarena.core.errors import BadInputError
from fedarena.core.limits import Limits

DEPLOYED = "deploy"  # the folder within that of a run with real devices in which its server keeps what is under way


@dataclass(frozen=True)
class DeployOptions:
    """The settings ``deploy.…`` of a run."""

    # How many devices must be there before the first round; None: as many as the cohort has.
    min_clients: Annotated[int, Limits(least=1)] | None = None
    # The longest update that is accepted, by its Euclidean norm; None: only `norm_factor` decides.
    norm_bound: Annotated[float, Limits(above=0)] | None = None
    # How many times the median of what was accepted before an update may be long; None: any number of times.
    norm_factor: Annotated[float, Limits(above=1)] | None = 30.0
    # Whether the server gets sums of updates alone: short for secure_aggregation=bonawitz.
    secure_aggregation: bool = False
    # How long devices are waited for in every phase of a secure sum.
    secure_seconds: Annotated[float, Limits(above=0)] = 60.0
    # A device that says it has more training samples than this is refused; None: any number.
    max_samples: Annotated[int, Limits(least=1)] | None = None
    # How long devices may take to score a model, where the server has no samples of its own.
    scoring_seconds: Annotated[float, Limits(above=0)] = 600.0

    def notes_without_network(self) -> list[str]:
        """That settings were given which a simulation leaves aside, if there are any."""
        given = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        names = " and ".join(f"deploy.{name}" for name in given)
        return [f"{names}: of no effect in a simulation; fedarena deploy run heeds such settings"] if given else []


def refuse_to_simulate_devices(folder: Path) -> None:
    """A run whose clients are real goes on with them alone: simulated ones would have other samples and memories."""
    if (folder / DEPLOYED).is_dir():
        raise BadInputError(
            f"{folder} is a run with real devices, which cannot go on as a simulation; to go on with its devices: "
            f"fedarena resume {folder}"
        )
