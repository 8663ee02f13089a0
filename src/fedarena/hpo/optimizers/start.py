"""Where searches with a model begin."""

from __future__ import annotations

import warnings

import numpy as np

from fedarena.hpo.optimizers.axes import Axes, FloatArray


def spread_out(axes: Axes, number: int, generator: np.random.Generator) -> FloatArray:
    """Points that cover the space more evenly than chance would: a scrambled Sobol sequence."""
    from scipy.stats import qmc  # takes longer to load than all optimizers together

    sequence = qmc.Sobol(len(axes), rng=np.random.default_rng(generator.integers(2**63)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # any number will do, not only powers of 2
        return axes.snap(sequence.random(number))
