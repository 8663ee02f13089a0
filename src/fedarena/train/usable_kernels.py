"""Whether kernels of our own for GPUs can be made on this machine."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from types import ModuleType

from torch import Tensor

# Programs are numbered by samples, and by blocks of 32 pixels or more, in directions in which a GPU has only so many.
_MOST_SAMPLES = (1 << 16) - 1
_MOST_PIXELS = 32 * _MOST_SAMPLES


@cache
def usable_kernels(module: str, what: str) -> ModuleType | None:
    """The module with kernels for `what`; None, with a warning, where they cannot be made.

    Looked for when a GPU first needs them, since their compiler takes a while to import. The module's `try_out` makes
    and runs some.
    """
    try:
        found = importlib.import_module(module)
        found.try_out()
    except Exception as error:  # Triton is not installed, or finds no compiler or no GPU that it knows
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"{what} without kernels of their own ({reason})", stacklevel=2)
        return None
    return found


def group_norm_kernels(pictures: Tensor) -> ModuleType | None:
    """Those for group normalization of these pictures; where they can be made, so can those for single channels."""
    return _kernels_for(pictures, "fedarena.train.group_norm_kernels", "Layers of group normalization run")


def picture_kernels(pictures: Tensor) -> ModuleType | None:
    """Those for crops and patches of these pictures."""
    return _kernels_for(pictures, "fedarena.train.picture_kernels", "Pictures are cut up")


def _kernels_for(pictures: Tensor, module: str, what: str) -> ModuleType | None:
    samples, *_, height, width = pictures.shape
    if not pictures.is_cuda or samples > _MOST_SAMPLES or height * width > _MOST_PIXELS:
        return None
    return usable_kernels(module, what)
