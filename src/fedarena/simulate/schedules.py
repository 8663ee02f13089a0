"""Learning rates that change over a run: what is left of the rate in every round."""

from __future__ import annotations

import math

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.train.own_code import seeded_if_own


class Schedule:
    """Scales a learning rate round by round. Keyword-only constructor arguments are its settings."""

    horizon = 1  # rounds that the run is meant to have

    def prepare(self, horizon: int) -> None:
        """Told before the run: how many rounds it is meant to have."""
        self.horizon = horizon

    def scale(self, round: int) -> float:
        """The factor in this round, of which the first is 1."""
        raise NotImplementedError


def prepare_schedule(schedule: Schedule, horizon: int, seed: int) -> None:
    """Tells a schedule how long the run is; what somebody's own draws then follows from the run's seed."""
    with seeded_if_own(schedule, seed, "own schedule"):
        schedule.prepare(horizon)


def check_schedule(schedule: Schedule) -> None:
    """Refuses factors that are no numbers from 0 on, or that depend on which rounds were asked for before.

    A resumed run asks for other rounds than one that was never interrupted.
    """
    rounds = sorted({1, 2, 3, max(schedule.horizon, 1)})
    forwards, backwards = ([schedule.scale(round) for round in order] for order in (rounds, rounds[::-1]))
    name = type(schedule).__name__
    for round, factor, again in zip(rounds, forwards, backwards[::-1], strict=True):
        try:
            is_number = math.isfinite(factor) and factor >= 0
        except (TypeError, ValueError, RuntimeError):
            is_number = False
        if not is_number:
            raise BadInputError(f"The schedule {name} must give a number from 0 on, not {factor!r:.40} (round {round})")
        if factor != again:
            raise BadInputError(
                f"The schedule {name} gives {factor!r} for round {round}, and {again!r} when it is asked again: it "
                "must follow from the round alone, since a resumed run asks for other rounds"
            )


SCHEDULES: Registry[type[Schedule]] = Registry("schedule", base=Schedule)


@SCHEDULES.register("constant")
class Constant(Schedule):
    """The learning rate stays as it is."""

    def scale(self, round: int) -> float:
        """Always 1."""
        return 1.0


@SCHEDULES.register("exponential")
class Exponential(Schedule):
    """Every round has `decay` times the rate of the one before."""

    def __init__(self, *, decay: float = 0.99):
        _check_decay(decay)
        self.decay = decay

    def scale(self, round: int) -> float:
        """A power of the decay."""
        return float(self.decay ** (round - 1))


@SCHEDULES.register("cosine")
class Cosine(Schedule):
    """Half a cosine wave from the whole rate down to the share `final` of it, which it has after the last round."""

    def __init__(self, *, final: float = 0.0):
        if not 0 <= final <= 1:
            raise BadInputError(f"final must be from 0 to 1, not {final}")
        self.final = final

    def scale(self, round: int) -> float:
        """Beyond the horizon it stays as it is in the end."""
        done = min(1.0, (round - 1) / self.horizon)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2


@SCHEDULES.register("step")
class Step(Schedule):
    """The rate is multiplied by `decay` after every `rounds` rounds."""

    def __init__(self, *, rounds: int = 30, decay: float = 0.1):
        _check_decay(decay)
        if rounds < 1:
            raise BadInputError(f"rounds must be at least 1, not {rounds}")
        self.rounds, self.decay = rounds, decay

    def scale(self, round: int) -> float:
        """A stair."""
        return float(self.decay ** ((round - 1) // self.rounds))


@SCHEDULES.register("warm_up")
class WarmUp(Schedule):
    """Rises in equal steps to the whole rate in round `rounds`, then stays or follows half a cosine wave to `final`."""

    def __init__(self, *, rounds: int = 10, final: float = 1.0):
        if rounds < 1:
            raise BadInputError(f"rounds must be at least 1, not {rounds}")
        self.rounds, self._cosine = rounds, Cosine(final=final)

    def prepare(self, horizon: int) -> None:
        """What comes after warming up has the rest of the rounds."""
        super().prepare(horizon)
        self._cosine.prepare(max(1, horizon - self.rounds + 1))

    def scale(self, round: int) -> float:
        """A ramp, then a wave."""
        return round / self.rounds if round < self.rounds else self._cosine.scale(round - self.rounds + 1)


def _check_decay(decay: float) -> None:
    if not 0 < decay <= 1:
        raise BadInputError(f"decay must be above 0 and at most 1, not {decay}")
