"""Every constant of the heterogeneity metrics, and two sets of them: the paper's, and those of its published code."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet.arrays import FloatArray

VIT_B_BYTES = 4 * 85_800_194
# Forward and backward through ViT-B/16 on an image of 224 x 224; for devices that tell operations per second.
VIT_B_FLOPS = 105_000_000_000

# Beyond these, simulations would not end, or lose seconds to rounding.
_LONGEST_SECONDS = 1e9
_MOST_ROUNDS = 10**8
_MOST_COSTS = 10_000
_LARGEST = 1e18

# Numbers keyed by simulation, round and client, or those that the published code draws.
RandomNumbers = Literal["keyed", "published"]


@dataclass(frozen=True)
class HeterogeneityOptions:
    """How rounds are simulated; the defaults are those of the paper's supplement.

    The state metrics ask how it would be if every client took the same time, for many such times: by default for
    `cost_draws` times between 0 and the deadline, one drawn at random from each of so many equal parts. The published
    code takes fixed times instead, `deadline_cost_step_seconds` apart up to the deadline, and
    `readiness_costs_seconds`.
    """

    deadline_seconds: float = 120.0  # ddl
    rounds: int = 3000  # simulated for metrics that end in -R
    trips: int = 10_000  # participations after which metrics that end in -T stop
    cohort: int = 20  # k, the clients invited in a round
    break_seconds: float = 20.0  # t_break, before every round
    model_bytes: int = VIT_B_BYTES  # downloaded and uploaded once a round
    upload_bytes: int | None = None  # uploaded instead, where clients do not send as much as they get
    samples: float = 1.0  # |D|, processed in a round
    flops_per_sample: float = VIT_B_FLOPS  # where a device tells operations per second
    ready_share: float = 1.0  # pr, the share of invited clients that metrics ending in -T wait for
    cost_draws: int = 12
    deadline_cost_step_seconds: float | None = None
    readiness_costs_seconds: tuple[float, ...] | None = None
    inclusive_deadline: bool = False  # whether a client that takes exactly as long as the deadline is in time
    # Whether work that can be interrupted is rounded up to whole seconds, and the time it begins at to one by the
    # start of the client's trace: up before that, down afterwards.
    whole_seconds: bool = False
    random_numbers: RandomNumbers = "keyed"
    repetitions: int = 5
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "trips", "cohort", "cost_draws", "repetitions", "seed", "model_bytes"):
            self._check(name, isinstance(getattr(self, name), int), "be a whole number")
        for name in ("deadline_seconds", "break_seconds"):
            known = _is_finite(getattr(self, name)) and 0 < getattr(self, name) <= _LONGEST_SECONDS
            self._check(name, known, f"be positive and at most {_LONGEST_SECONDS:g}")
        for name in ("rounds", "trips", "cohort", "cost_draws", "repetitions"):
            most = _MOST_COSTS if name == "cost_draws" else _MOST_ROUNDS
            self._check(name, 1 <= getattr(self, name) <= most, f"be from 1 to {most:,}")
        for name in ("model_bytes", "samples", "flops_per_sample", "seed"):
            known = _is_finite(getattr(self, name)) and 0 <= getattr(self, name) <= _LARGEST
            self._check(name, known, f"be from 0 to {_LARGEST:g}")
        up = self.upload_bytes
        known = up is None or (isinstance(up, int) and 0 <= up <= _LARGEST)
        self._check("upload_bytes", known, f"be a whole number from 0 to {_LARGEST:g}, or None")
        kinds = get_args(RandomNumbers)
        self._check("random_numbers", self.random_numbers in kinds, f"be {' or '.join(map(repr, kinds))}")
        self._check("ready_share", 0 < self.ready_share <= 1, "be above 0 and at most 1")
        self._check("confidence", 0 < self.confidence < 1, "be between 0 and 1")
        step = self.deadline_cost_step_seconds
        if step is not None:
            self._check(
                "deadline_cost_step_seconds", 0 < step <= self.deadline_seconds, "be between 0 and the deadline"
            )
            few = self.deadline_seconds <= step * _MOST_COSTS
            self._check("deadline_cost_step_seconds", few, f"not be below 1/{_MOST_COSTS:,} of the deadline")
        times = self.readiness_costs_seconds
        if times is not None:
            known = 0 < len(times) <= _MOST_COSTS and all(
                _is_finite(seconds) and 0 <= seconds <= _LONGEST_SECONDS for seconds in times
            )
            self._check(
                "readiness_costs_seconds", known, f"be 1 to {_MOST_COSTS:,} numbers from 0 to {_LONGEST_SECONDS:g}"
            )

    def _check(self, name: str, is_right: bool, right: str) -> None:
        if not is_right:
            raise BadInputError(f"{name} must {right}, but is {getattr(self, name)!r}")

    def as_dict(self) -> dict[str, Any]:
        """Every option by its name, as plain JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def deadline_costs(self, repetition: int) -> FloatArray:
        """The times that all clients take in turn, in seconds, for state metrics that end in -R."""
        if self.deadline_cost_step_seconds is None:
            return self._drawn_costs(repetition)
        steps = math.floor(self.deadline_seconds / self.deadline_cost_step_seconds + 1e-9)
        times = np.float64(self.deadline_cost_step_seconds) * np.arange(1.0, steps + 1)
        return np.minimum(times, self.deadline_seconds)

    def readiness_costs(self, repetition: int) -> FloatArray:
        """The same for state metrics that end in -T."""
        if self.readiness_costs_seconds is None:
            return self._drawn_costs(repetition)
        return np.array(self.readiness_costs_seconds, dtype=np.float64)

    def _drawn_costs(self, repetition: int) -> FloatArray:
        parts = np.arange(self.cost_draws)
        within = streams.uniform(self.seed, "heterogeneity/cost", repetition, parts)
        return self.deadline_seconds * (parts + within) / self.cost_draws


def _is_finite(value: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


PAPER_OPTIONS = HeterogeneityOptions()
CODE_OPTIONS = HeterogeneityOptions(
    # The code divides kilobytes of 1,024 bytes by speeds in kilobits of 1,000.
    model_bytes=round(VIT_B_BYTES * 1000 / 1024),
    samples=0.0,
    ready_share=0.8,
    deadline_cost_step_seconds=10.0,
    readiness_costs_seconds=tuple(10.0 * step for step in range(25)),
    inclusive_deadline=True,
    whole_seconds=True,
    random_numbers="published",
    repetitions=1,
    seed=42,
)
