"""Where a run is worked on, and by how many: no part of what makes it this run, so it may go on elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.train import ENGINES, RayEngine

Elsewhere = str | Mapping[str, Any] | None  # settings of the engine, or its name; None: as the run's settings say


@dataclass(frozen=True)
class Workplace:
    """A cluster, and who of it works."""

    address: str | None = None
    workers: int | None = None  # None: as many as find room; 0: this process alone
    cores: int = 1  # of a worker without a GPU


def workplace_of(engine: Mapping[str, Any], elsewhere: Elsewhere = None) -> Workplace | None:
    """Where an engine of these settings works, or is to go on; None for one that works in this process alone."""
    changes = {"name": elsewhere} if isinstance(elsewhere, str) else dict(elsewhere or {})
    name = changes.pop("name", None)
    kind = ENGINES.get(engine["name"])
    if not (isinstance(kind, type) and issubclass(kind, RayEngine)):
        if changes or name is not None:
            raise BadInputError(
                "Only a run with engine=ray can go on elsewhere; this one goes on as it began, leave engine out"
            )
        return None
    if name == "cohort" and not changes:
        return Workplace(workers=0)
    usual = asdict(Workplace())
    if name not in (None, "ray") or (wrong := [key for key in changes if key not in usual]):
        what = f"engine={name}" if name not in (None, "ray") else f"engine.{wrong[0]}"
        raise BadInputError(
            f"{what} of a run that is there cannot be changed; a run with engine=ray may go on with other "
            f"{', '.join(f'engine.{key}' for key in usual)}, or with engine=cohort"
        )
    here = {key: engine[key] for key in usual}
    checked = resolve_part(ENGINES, {"name": "ray", **here, **changes}, "engine")
    if checked["cores"] < 1 or (checked["workers"] or 0) < 0:
        raise BadInputError("engine.cores must be 1 or more, and engine.workers 0 or more")
    return Workplace(**{key: checked[key] for key in usual})
