"""Trials as lanes: many configurations are trained by one computation, with the results of one run each.

`train_trials` takes a configuration and what each trial overrides. `fedarena.hpo.lanes.training` is its numerical part,
which needs torch and numpy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedarena.hpo.lanes.curves import TrialCurves

if TYPE_CHECKING:
    from fedarena.hpo.lanes.trials import train_in_blocks, train_trials

__all__ = ["TrialCurves", "train_in_blocks", "train_trials"]


def __getattr__(name: str) -> Any:
    """What needs the configuration of runs is imported when it is first used."""
    if name not in ("train_trials", "train_in_blocks"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedarena.hpo.lanes import trials

    return getattr(trials, name)
