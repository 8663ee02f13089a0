"""Updates that are scaled up until they replace the model.

Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020: the mean over n updates moves the model by 1/n
of each; an attacker who sends n times its own moves it all the way to the attacker's model, while honest updates,
which get small and cancel out as training converges, hardly matter.
"""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.transforms.attacks.base import AttackedRun

SCALE_OPTION = "attack.scale"


def check_scale(scale: float | None) -> None:
    """A factor that makes updates longer or leaves them as they are."""
    if scale is not None and not scale > 0:
        raise BadInputError(f"{SCALE_OPTION} must be above 0, not {scale}")


def replacing_scale(run: AttackedRun) -> float:
    """The factor with which the corrupted clients who are expected in a step replace the model together."""
    expected = run.updates_per_step * run.corrupted / max(run.clients, 1)
    return max(1.0, run.updates_per_step / max(1.0, expected))
