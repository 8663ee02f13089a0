"""Search spaces: which hyperparameters there are, what values they may have, and on which grid tables hold them.

A hyperparameter has the name of the setting that it sets, such as ``local.lr``, so a configuration of a space is a set
of overrides for a run. Spaces need no library; `Space.configspace` gives the same as a space of ConfigSpace.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest

Configuration = dict[str, Any]
Kind = Literal["float", "int", "choice"]
_KEYS = ("from", "to", "log", "bins")
_GRID_DIGITS = 6  # so that what is shown of a value is the value
_NEAR = 1e-9  # relative; values of a grid that went through a file may differ in the last digits


@dataclass(frozen=True)
class Hyperparameter:
    """One dimension of a space: a range of numbers, or some values to choose from."""

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Any, ...] = ()
    bins: int | None = None  # how many values of a range a table holds

    def __post_init__(self) -> None:
        if self.kind == "choice":
            if not self.choices:
                raise BadInputError(f"search: {self.name} has no values to choose from")
            if any(one in self.choices[:place] for place, one in enumerate(self.choices)):
                raise BadInputError(f"search: {self.name} names a value twice: {quoted(list(self.choices))}")
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise BadInputError(
                f"search: {self.name} must go from a smaller to a larger number, not from {self.low} to {self.high}"
            )
        if self.log and self.low <= 0:
            raise BadInputError(
                f"search: {self.name} cannot be searched on a log scale from {self.low}; it must be above 0"
            )
        if self.bins is not None and self.bins < 2:
            raise BadInputError(f"search: {self.name} must have at least 2 bins, not {self.bins}")

    def value_at(self, place: float) -> Any:
        """The value at a place in [0, 1]."""
        place = min(max(float(place), 0.0), 1.0)
        if self.kind == "choice":
            return self.choices[min(int(place * len(self.choices)), len(self.choices) - 1)]
        if (
            self.kind == "int"
        ):  # all whole numbers have an equal part of the range, or one by the logarithm of its bounds
            low, high = self.low - 0.5, self.high + 0.5
            value = math.exp(_between(math.log(low), math.log(high), place)) if self.log else _between(low, high, place)
            return int(min(max(math.floor(value + 0.5), self.low), self.high))
        if self.log:
            value = math.exp(_between(math.log(self.low), math.log(self.high), place))
        else:
            value = _between(self.low, self.high, place)
        return min(max(value, self.low), self.high)

    def place_of(self, value: Any) -> float:
        """The place in [0, 1] of a value, in the middle of what stands for it."""
        if self.kind == "choice":
            return (self.choices.index(value) + 0.5) / len(self.choices)
        if self.kind == "int":
            low, high = self.low - 0.5, self.high + 0.5
        else:
            low, high = self.low, self.high
        if self.log:
            return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
        return float((value - low) / (high - low))

    def grid(self) -> list[Any]:
        """The values that a table holds: all of few, else as many as there are bins, evenly spread."""
        if self.kind == "choice":
            return list(self.choices)
        if self.bins is None:
            if self.kind == "int" and not self.log:
                return list(range(int(self.low), int(self.high) + 1))
            raise BadInputError(f"{self.name} has no grid: say how many bins it has")
        spread = np.geomspace if self.log else np.linspace
        values = [float(f"{value:.{_GRID_DIGITS}g}") for value in spread(self.low, self.high, self.bins)]
        values[0], values[-1] = self.low, self.high
        return [round(value) for value in values] if self.kind == "int" else values

    def between(self, values: Sequence[Any]) -> Hyperparameter:
        """The same, as far as these values reach; of choices, those that are among them."""
        if self.kind == "choice" or len(set(values)) == 1:
            return replace(self, kind="choice", choices=tuple(values))
        low, high = min(values), max(values)
        if (low, high) == (self.low, self.high):
            return self
        return replace(self, low=low, high=high, bins=len(values))

    def check(self, value: Any) -> Any:
        """The value as it is meant; refuses what the space does not have."""
        if self.kind == "choice":
            for one in self.choices:
                if isinstance(one, bool) == isinstance(value, bool) and np.ndim(value) == np.ndim(one) and one == value:
                    return one
            raise BadInputError(f"{self.name} must be one of {', '.join(map(str, self.choices))}, not {quoted(value)}")
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise BadInputError(f"{self.name} must be a number, not {quoted(value)}")
        number = float(value)
        slack = _NEAR * abs(self.high)
        if not self.low - slack <= number <= self.high + slack:
            raise BadInputError(f"{self.name} must be from {self.low:g} to {self.high:g}, not {quoted(value)}")
        if self.kind == "int":
            if number != round(number):
                raise BadInputError(f"{self.name} must be a whole number, not {quoted(value)}")
            return round(number)
        return min(max(number, self.low), self.high)


class Space:
    """The hyperparameters of a problem, in a fixed order."""

    def __init__(self, hyperparameters: Sequence[Hyperparameter]):
        self.hyperparameters = tuple(hyperparameters)
        self._named = {one.name: one for one in hyperparameters}
        if not hyperparameters:
            raise BadInputError("A search space needs at least one hyperparameter")
        if len(self._named) < len(hyperparameters):
            raise BadInputError("A search space names a hyperparameter twice")

    @classmethod
    def parse(cls, search: Any) -> Space:
        """The space that ``search:`` in a configuration describes.

        Each name is a setting; it has a list of values, or ``{from: 0.01, to: 1.0, log: true, bins: 10}``, of which the
        last two may be left out. Whole numbers in both ends mean whole numbers in between.

        >>> Space.parse({"local.lr": {"from": 0.01, "to": 1.0, "log": True}, "local.batch_size": [8, 16]}).names
        ('local.lr', 'local.batch_size')
        """
        if not isinstance(search, Mapping) or not search:
            raise BadInputError(
                "search: must name settings with what to try, such as {local.lr: {from: 0.01, to: 1.0, log: true}}"
            )
        return cls([_parse_one(str(name), given) for name, given in search.items()])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and self.hyperparameters == other.hyperparameters

    def __hash__(self) -> int:
        return hash(self.hyperparameters)

    def __len__(self) -> int:
        return len(self.hyperparameters)

    def __iter__(self) -> Iterator[Hyperparameter]:
        return iter(self.hyperparameters)

    def __getitem__(self, name: str) -> Hyperparameter:
        return self._named[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the hyperparameters."""
        return tuple(self._named)

    def described(self) -> dict[str, Any]:
        """What `parse` makes the same space of."""
        return {one.name: _described(one) for one in self}

    def check(self, configuration: Mapping[str, Any]) -> Configuration:
        """The configuration in the order of the space; refuses one with other names or values outside."""
        if not isinstance(configuration, Mapping):
            raise BadInputError(
                f"A configuration must be hyperparameters with their values, such as {{{self.names[0]!r}: …}}, not "
                f"{quoted(configuration)}"
            )
        for name in configuration:
            if name not in self._named:
                raise BadInputError(
                    f"The space has no hyperparameter {quoted(name)}; {nearest(str(name), self._named)}"
                )
        missing = [name for name in self._named if name not in configuration]
        if missing:
            raise BadInputError(f"The configuration lacks {', '.join(missing)}")
        return {one.name: one.check(configuration[one.name]) for one in self}

    def sample(self, generator: np.random.Generator) -> Configuration:
        """A configuration drawn uniformly (by the logarithm where a hyperparameter is on a log scale)."""
        return self.at(generator.random(len(self)))

    def at(self, places: Sequence[float] | npt.NDArray[np.float64]) -> Configuration:
        """The configuration at a point of the unit cube."""
        return {one.name: one.value_at(place) for one, place in zip(self, places, strict=True)}

    def places(self, configuration: Mapping[str, Any]) -> npt.NDArray[np.float64]:
        """Where a configuration is in the unit cube."""
        return np.array([one.place_of(configuration[one.name]) for one in self])

    def grid(self) -> Iterator[Configuration]:
        """All configurations that a table holds, the last hyperparameter changing fastest."""
        for values in itertools.product(*(one.grid() for one in self)):
            yield dict(zip(self.names, values, strict=True))

    def on_grid(self) -> Space:
        """The space of the grid alone: every hyperparameter is a choice among the values that a table holds."""
        return Space([Hyperparameter(one.name, "choice", choices=tuple(one.grid())) for one in self])

    def between(self, grid: Mapping[str, Sequence[Any]]) -> Space:
        """The part of the space that lies between these values of its hyperparameters."""
        return Space([one.between(grid[one.name]) for one in self])

    def configspace(self, seed: int = 0) -> Any:
        """The same as a ``ConfigurationSpace`` of the library ConfigSpace."""
        try:
            import ConfigSpace
        except ImportError as error:
            raise BadInputError("ConfigSpace is not installed; pip install 'fedarena[hpo]'") from error
        space = ConfigSpace.ConfigurationSpace(seed=seed)
        for one in self:
            if one.kind == "choice":
                space.add(ConfigSpace.CategoricalHyperparameter(one.name, list(one.choices)))
            elif one.kind == "int":
                space.add(ConfigSpace.UniformIntegerHyperparameter(one.name, int(one.low), int(one.high), log=one.log))
            else:
                space.add(ConfigSpace.UniformFloatHyperparameter(one.name, one.low, one.high, log=one.log))
        return space


def _between(low: float, high: float, place: float) -> float:
    return low + (high - low) * place


def _described(one: Hyperparameter) -> Any:
    if one.kind == "choice":
        return list(one.choices)
    number = int if one.kind == "int" else float
    described: dict[str, Any] = {"from": number(one.low), "to": number(one.high)}
    if one.log:
        described["log"] = True
    if one.bins is not None:
        described["bins"] = one.bins
    return described


def _bound(name: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInputError(f"search: {name} needs numbers for from and to, not {quoted(value)}")
    return value


def _parse_one(name: str, given: Any) -> Hyperparameter:
    if isinstance(given, Sequence) and not isinstance(given, str):
        return Hyperparameter(name, "choice", choices=tuple(given))
    if not isinstance(given, Mapping):
        raise BadInputError(
            f"search: {name} must be a list of values or {{from: …, to: …}}, with log: true for a log scale, "
            f"not {quoted(given)}"
        )
    for key in given:
        if key not in _KEYS:
            raise BadInputError(f"search: {name} has no key {quoted(key)}; {nearest(str(key), _KEYS)}")
    low, high = (_bound(name, given.get(end)) for end in ("from", "to"))
    log, bins = given.get("log", False), given.get("bins")
    if not isinstance(log, bool):
        raise BadInputError(f"search: {name}: log must be true or false, not {quoted(log)}")
    if bins is not None and (isinstance(bins, bool) or not isinstance(bins, int)):
        raise BadInputError(f"search: {name}: bins must be a whole number, not {quoted(bins)}")
    whole = isinstance(low, int) and isinstance(high, int)
    return Hyperparameter(name, "int" if whole else "float", float(low), float(high), log, bins=bins)
