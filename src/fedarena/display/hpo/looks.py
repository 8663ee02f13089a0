"""How optimizers are drawn: the same way in every picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fedarena.display.drawing.html import Html, join, swatch_colour, tag
from fedarena.display.drawing.style import DASHES, SERIES_LIGHT, Style
from fedarena.hpo.chosen import ChosenOptimizer

# One with several fidelities has the colour of the one with a single fidelity that it is made of, and a dashed line.
_USUAL: Final = {
    "random": 0,
    "hyperband": 0,
    "bo_kde": 1,
    "bohb": 1,
    "de": 2,
    "dehb": 2,
    "bo_gp": 3,
    "tpe_md": 3,
    "bo_rf": 4,
    "tpe_hb": 4,
    "cma_es": 5,
    "asha": 5,
}
_DASHES_BY_FIDELITY: Final = {False: ("solid", "dot", "longdash"), True: ("dash", "dashdot", "longdash")}


def looks_of(optimizers: Sequence[ChosenOptimizer]) -> dict[str, Style]:
    """A style for every label; solid lines are of optimizers with a single fidelity, as far as lines suffice."""
    looks: dict[str, Style] = {}
    taken: set[tuple[int, str]] = set()
    for one in optimizers:
        dashes = _DASHES_BY_FIDELITY[one.is_multi_fidelity]
        usual = _USUAL.get(one.name)
        colours = range(len(SERIES_LIGHT)) if usual is None else (usual, *range(len(SERIES_LIGHT)))
        tries = [(colour, dash) for dash in (*dashes, *DASHES) for colour in colours]
        colour, dash = next((pair for pair in tries if pair not in taken), tries[0])
        taken.add((colour, dash))
        looks[one.label] = Style(SERIES_LIGHT[colour], dash)
    return looks


def named(label: str, looks: Mapping[str, Style]) -> Html:
    """An optimizer's name beside its colour."""
    swatch = tag("span", class_="swatch", **swatch_colour(looks[label].colour))
    return join([swatch, tag("span", label, class_="label")])
