"""The interface of an attack: what clients do that an adversary has in its hands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.metrics import Metric
from fedarena.models import DataSpec, Task
from fedarena.train import Algorithm, Groups
from fedarena.transforms.rows import FloatArray, IntArray, Rows

Sight = Literal["own", "corrupted", "all"]
Columns = Mapping[str, npt.NDArray[Any]]

_SIGHTS: dict[Sight, str] = {
    "own": "only their own data and updates",
    "corrupted": "the updates that all corrupted clients in the same step of the server would have sent",
    "all": "the updates of all honest clients in the same step of the server",
}


@dataclass(frozen=True)
class AttackedRun:
    """What an adversary knows about a run before it begins."""

    spec: DataSpec  # the form of the federation's samples
    task: Task
    clients: int  # those who could ever be invited
    corrupted: int  # how many of them it has in its hands
    updates_per_step: int  # of the server: how many updates are expected to come together
    seed: int
    dtypes: Mapping[str, str] = field(default_factory=dict)  # of the samples' columns, as NumPy calls them
    label_names: Sequence[str] | None = None  # what classes are called, if that is known


@dataclass(frozen=True)
class OwnSamples:
    """Samples of some clients, with whose each is: all arrays have a row per sample."""

    columns: Columns
    clients: IntArray
    places: IntArray  # of a sample among those of its client
    seed: int  # of the run

    def __len__(self) -> int:
        return len(self.clients)

    def uniform(self, purpose: str) -> FloatArray:
        """A number in [0, 1) for every sample that depends on nothing but the sample, the purpose and the seed."""
        return np.asarray(streams.uniform(self.seed, f"attack: {purpose}", self.clients, self.places))


class Attack:
    """A `share` of the clients is corrupted, drawn once by the run's seed, and attacks from round `from_round` on.

    Keyword-only constructor arguments are its settings; every attack has these two. It overrides what its clients do
    differently: `forge` says what they send instead of their updates, `poison` what they train on instead of their
    samples, and `trigger` how a test sample is changed to see whether that worked.

    Forged updates are sent after the transforms of updates, so they keep to none of these, except to what a server can
    make sure of by itself (`Transform.enforced`).
    """

    sees: Sight = "own"  # a client's own data and update; those of all corrupted clients; or everybody's updates
    remembers_downloads = False  # whether `forge` needs what corrupted clients downloaded, now and the last time
    run: AttackedRun | None = None

    def __init__(self, *, share: float = 0.1, from_round: int = 1):
        if not 0 <= share < 1:
            raise BadInputError(f"attack.share must be at least 0 and below 1, not {share}")
        if from_round < 1:
            raise BadInputError(f"attack.from_round must be at least 1, not {from_round}")
        self.share, self.from_round = share, from_round

    @property
    def forges_updates(self) -> bool:
        """Whether `forge` is used."""
        return type(self).forge is not Attack.forge

    @property
    def poisons_data(self) -> bool:
        """Whether `poison` is used."""
        return type(self).poison is not Attack.poison

    @property
    def has_trigger(self) -> bool:
        """Whether `trigger` is used, and how often it works is measured."""
        return type(self).trigger is not Attack.trigger

    def prepare(self, run: AttackedRun) -> None:
        """Told once, before the run: what it is about. Refuses a run that the attack does not fit."""
        self.run = run

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """Why this attack does not fit an algorithm with such updates (of one client); None: it does."""
        return None

    def deed(self) -> str:
        """What corrupted clients do, to go on after the word "they"."""
        lines = (type(self).__doc__ or "").strip().splitlines()
        return f"attack by {type(self).__name__}" + (f": {lines[0].rstrip('.')}" if lines else "")

    def sight(self) -> str:
        """What they see, to go on after "they see"."""
        return _SIGHTS[self.sees]

    def corrupted_clients(self, clients: IntArray, seed: int) -> IntArray:
        """Who of these (all who could ever be invited, sorted) is corrupted: the share, to the nearest client."""
        number = round(self.share * len(clients))
        order = np.argsort(np.asarray(streams.bits(seed, "corrupted", clients)), kind="stable")
        return np.sort(clients[order[:number]])

    def forge(self, rows: Rows, seen: Rows) -> Groups:
        """What corrupted clients (`rows`) send instead of their updates; `seen` are the rows that they see.

        With ``sees = "own"`` these are the same, and a client may use nothing but its own row. Random numbers come from
        ``rows.context``.
        """
        return rows.update

    def poison(self, samples: OwnSamples) -> Columns:
        """The columns that are different in what corrupted clients train on: a row for every one of their samples.

        It is a pure function of the samples; what is random comes from ``samples.uniform``. Somebody's own is asked for
        one client at a time, and may draw numbers in any way.
        """
        return {}

    def trigger(self, samples: OwnSamples) -> Columns:
        """The columns that are different in test samples which carry the trigger; what is right stays as it is."""
        return {}

    def success(self) -> Metric:
        """Measures how often a model does with triggered samples what the attack wants."""
        raise BadInputError(
            f"The attack {type(self).__name__} has a trigger, so it needs a method success(), which gives the metric "
            "that tells how often it works"
        )


ATTACKS: Registry[type[Attack]] = Registry("attack", base=Attack)
