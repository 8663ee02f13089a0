"""The command line. Importing a module registers its commands; --help shows them in this order."""

# ruff: isort: off
from fedarena.cli import runs
from fedarena.cli import catalogue
from fedarena.cli import heterogeneity
from fedarena.cli import profile_device
from fedarena.cli import correlate
from fedarena.cli.base import main

__all__ = ["catalogue", "correlate", "heterogeneity", "main", "profile_device", "runs"]
