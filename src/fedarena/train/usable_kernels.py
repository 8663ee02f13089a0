"""Whether kernels of our own for GPUs can be made on this machine."""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from types import ModuleType


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


def group_norm_kernels() -> ModuleType | None:
    """Those for group normalization; where they can be made, so can those for filters of single channels."""
    return usable_kernels("fedarena.train.group_norm_kernels", "Layers of group normalization run")


def picture_kernels() -> ModuleType | None:
    """Those for crops and patches of pictures."""
    return usable_kernels("fedarena.train.picture_kernels", "Pictures are cut up")
