"""Selectors, one per file: whom to invite."""

from fedarena.simulate.selectors.base import SELECTORS, Candidates, Feedback, Selector, Weights
from fedarena.simulate.selectors.by_size import BySize
from fedarena.simulate.selectors.cyclic import Cyclic
from fedarena.simulate.selectors.in_turn import InTurn
from fedarena.simulate.selectors.leaving_soon import LeavingSoon
from fedarena.simulate.selectors.oort import Oort
from fedarena.simulate.selectors.poisson import Poisson
from fedarena.simulate.selectors.power_of_choice import PowerOfChoice
from fedarena.simulate.selectors.shuffled import Shuffled
from fedarena.simulate.selectors.uniform import Uniform

__all__ = [
    "SELECTORS",
    "BySize",
    "Candidates",
    "Cyclic",
    "Feedback",
    "InTurn",
    "LeavingSoon",
    "Oort",
    "Poisson",
    "PowerOfChoice",
    "Selector",
    "Shuffled",
    "Uniform",
    "Weights",
]
