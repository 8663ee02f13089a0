"""What a table is to have, before anything of it is trained."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.hpo.problems.declared import Declared, settings_digest
from fedarena.hpo.problems.raw import usual_rate
from fedarena.hpo.space import Configuration
from fedarena.hpo.tables.rounding import MANTISSA_BITS
from fedarena.hpo.tables.table import FORMAT

USUAL_SEEDS = (0, 1, 2)  # as in the paper, every configuration is trained three times
USUAL_NOTED = 40
_FIRST = 10  # rounds at the start that are all noted
USUAL_AT_ONCE = 2_000  # trials of a block, which is what a kill can cost


@dataclass(frozen=True)
class Recipe:
    """The grid, sample rates, rounds and seeds of a table."""

    declared: Declared
    grid: dict[str, tuple[Any, ...]]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    rounds: tuple[int, ...]  # that are noted
    bits: int = MANTISSA_BITS
    at_once: int = USUAL_AT_ONCE  # trials that are trained and stored together; makes no difference to the table

    @property
    def fingerprint(self) -> str:
        """What tells the table from others."""
        about = [FORMAT, self.declared.name, self.declared.fingerprint, {k: list(v) for k, v in self.grid.items()}]
        return settings_digest([*about, self.rates, self.seeds, self.rounds, self.bits])

    def configurations(self) -> list[Configuration]:
        """All configurations of the grid, in its order."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def trials(self) -> int:
        """How many courses are trained."""
        return int(np.prod([len(values) for values in self.grid.values()])) * len(self.rates) * len(self.seeds)

    def blocks(self) -> Iterator[list[int]]:
        """Places of configurations that are trained together: of the same model and batch size, and not too many."""
        groups: dict[str, list[int]] = {}
        for place, configuration in enumerate(self.configurations()):
            alike = {key: value for key, value in configuration.items() if _groups_trials(key)}
            groups.setdefault(settings_digest(alike), []).append(place)
        most = max(1, self.at_once // (len(self.rates) * len(self.seeds)))
        for places in groups.values():
            for first in range(0, len(places), most):
                yield places[first : first + most]


def make_recipe(
    declared: Declared,
    *,
    seeds: Sequence[int] | None = None,
    rates: Sequence[float] | None = None,
    rounds: int | None = None,
    noted: int | Sequence[int] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    bits: int = MANTISSA_BITS,
    at_once: int = USUAL_AT_ONCE,
) -> Recipe:
    """The table of a problem, as usual but for what is given.

    `noted` is how many rounds are noted, or which; `grid` has other values for some hyperparameters than the bins of
    their ranges. About `at_once` trials are stored at a time: fewer of large models, so that a kill costs less.
    """
    chosen = grid_values_of(declared, grid)
    last = declared.table_rounds if rounds is None else _whole(rounds, "rounds", 1)
    if isinstance(noted, int) or noted is None:
        which = noted_rounds(last, USUAL_NOTED if noted is None else _whole(noted, "noted", 1))
    else:
        which = tuple(sorted({_whole(round, "noted rounds", 1) for round in noted}))
        if not which or which[-1] > last:
            raise BadInputError(f"Noted rounds must be from 1 to {last}, not {quoted(list(noted))}")
    wanted = tuple(rates) if rates else (declared.sample_rates or (usual_rate(declared),))
    for rate in wanted:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
            raise BadInputError(f"A client sample rate must be above 0 and at most 1, not {quoted(rate)}")
    if not 1 <= bits <= 22:
        raise BadInputError(f"Scores can be rounded to 1 to 22 bits, not to {bits}")
    return Recipe(
        declared=declared,
        grid=chosen,
        rates=tuple(sorted({float(rate) for rate in wanted})),
        seeds=tuple(dict.fromkeys(_whole(seed, "seeds", 0) for seed in (USUAL_SEEDS if seeds is None else seeds))),
        rounds=which,
        bits=bits,
        at_once=_whole(at_once, "at_once", 1),
    )


def grid_values_of(declared: Declared, grid: Mapping[str, Sequence[Any]] | None) -> dict[str, tuple[Any, ...]]:
    """The values of every hyperparameter: the bins of its range, or those that are given."""
    chosen = {one.name: tuple((grid or {}).get(one.name) or one.grid()) for one in declared.space}
    for name, values in (grid or {}).items():
        if name not in chosen:
            raise BadInputError(f"{declared.name} has no hyperparameter {quoted(name)}; it has {', '.join(chosen)}")
        chosen[name] = tuple(declared.space[name].check(value) for value in values)
        if len(set(map(str, values))) < len(values):
            raise BadInputError(f"The grid of {name} names a value twice: {quoted(list(values))}")
    return chosen


def noted_rounds(last: int, number: int = USUAL_NOTED) -> tuple[int, ...]:
    """Rounds to note: the first ones, the powers of 3 that successive halving stops at, and ever fewer up to the last.

    >>> noted_rounds(30, 12)
    (1, 2, 3, 5, 6, 7, 9, 10, 12, 16, 21, 27, 30)
    """
    if number >= last:
        return tuple(range(1, last + 1))
    powers = [3**exponent for exponent in range(20) if 3**exponent <= last]
    halved = [last // 3**exponent for exponent in range(20) if last // 3**exponent >= 1]
    needed = {*powers, *halved, last}
    spread = number
    while True:
        first = min(_FIRST, number // 4)
        found = {*range(1, first + 1), *needed, *np.rint(np.geomspace(1, last, max(spread, 2))).astype(int).tolist()}
        if len(found) <= number or spread <= 2:
            return tuple(sorted(found))
        spread -= 1


def _groups_trials(setting: str) -> bool:
    return setting == "local.batch_size" or setting.startswith("model") or setting in ("algorithm", "federation")


def _whole(value: Any, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise BadInputError(f"{what} must be whole numbers from {least} on, not {quoted(value)}")
    return int(value)
