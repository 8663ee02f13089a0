"""Problems: the catalogue, and its three modes."""

from fedarena.hpo.problems.declared import Declared, declared_names, find_declared
from fedarena.hpo.problems.making import problem

__all__ = ["Declared", "declared_names", "find_declared", "problem"]
