"""Selectors, one per file: whom to invite."""

from fedarena.simulate.selectors.base import SELECTORS, Candidates, Feedback, Selector
from fedarena.simulate.selectors.in_turn import InTurn, select_in_turn
from fedarena.simulate.selectors.uniform import Uniform, select_uniform

__all__ = [
    "SELECTORS",
    "Candidates",
    "Feedback",
    "InTurn",
    "Selector",
    "Uniform",
    "select_in_turn",
    "select_uniform",
]
