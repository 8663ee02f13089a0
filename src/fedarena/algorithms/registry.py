"""The catalogue of algorithms."""

from fedarena.registry import Registry
from fedarena.train import Algorithm

ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm")
