"""Making the optimizer that somebody names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.hpo.optimizers.checked import Checked
from fedarena.hpo.optimizers.optimizer import OPTIMIZERS, Optimizer
from fedarena.hpo.space import Space


def make_optimizer(
    chosen: str | type[Optimizer] | Mapping[str, Any], space: Space, max_rounds: int, seed: int, min_rounds: int = 1
) -> Checked:
    """The optimizer of a name, such as "bohb", of ``{"name": "bohb", "eta": 4}``, or of somebody's own class.

    A class of your own is also named as ``package.module:Name``. Its options and its proposals are checked.
    """
    options = resolve_part(OPTIMIZERS, chosen, "optimizer")
    name = options.pop("name")
    made = OPTIMIZERS.get(name)(space, max_rounds, seed, min_rounds, **options)
    if not hasattr(made, "generator"):
        raise BadInputError(
            f"The optimizer {name} does not begin with super().__init__(space, max_rounds, seed, min_rounds), and must"
        )
    return Checked(made, name)
