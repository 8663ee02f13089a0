"""The catalogue of algorithms."""

from fedarena.core.registry import Registry
from fedarena.train import Algorithm

ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm", base=Algorithm, takes=())
