"""The command line. Importing a module registers its commands; --help shows them in this order."""

# ruff: isort: off
from fedarena.cli import runs
from fedarena.cli import tune
from fedarena.cli import watch
from fedarena.cli import catalogue
from fedarena.cli import heterogeneity
from fedarena.cli import privacy
from fedarena.cli import profile_device
from fedarena.cli import deploy
from fedarena.cli import deploy_demo
from fedarena.cli import correlate
from fedarena.cli import data_list
from fedarena.cli import data_import
from fedarena.cli import data_prepare
from fedarena.cli import data_import_images
from fedarena.cli import data_import_text
from fedarena.cli import data_verify
from fedarena.cli import data_stats
from fedarena.cli import data_export
from fedarena.cli import leaf_metrics
from fedarena.cli import hpo
from fedarena.cli import estimate
from fedarena.cli import hpo_compare
from fedarena.cli import hpo_rates
from fedarena.cli import hpo_privacy
from fedarena.cli.base import main

__all__ = [
    "catalogue",
    "correlate",
    "data_export",
    "data_import",
    "data_import_images",
    "data_import_text",
    "data_list",
    "data_prepare",
    "data_stats",
    "data_verify",
    "deploy",
    "deploy_demo",
    "estimate",
    "heterogeneity",
    "hpo",
    "hpo_compare",
    "hpo_privacy",
    "hpo_rates",
    "leaf_metrics",
    "main",
    "privacy",
    "profile_device",
    "runs",
    "tune",
    "watch",
]
