"""FedArena: how would a federated learning method really do?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedarena.core.version import VERSION

if TYPE_CHECKING:
    from fedarena.api import compare, load, open, resume, run, suite
    from fedarena.catalogue import federations, fleets, load_federation, load_fleet
    from fedarena.core.errors import BadInputError, FedArenaError
    from fedarena.data import Federation
    from fedarena.data.graphs.own import from_graph
    from fedarena.data.huggingface import from_hf
    from fedarena.data.images.own import from_images
    from fedarena.data.tables import from_table
    from fedarena.data.text.own import from_texts
    from fedarena.display import write_report
    from fedarena.fleet import Fleet
    from fedarena.privacy import plan_privacy
    from fedarena.results import Comparison, Result
    from fedarena.runs.callbacks import Callback, Stop
    from fedarena.runs.run import Run

__version__ = VERSION
# Where what is offered is found; it is imported when it is first used, so that parts work without all dependencies.
_HOMES = {
    "api": ("compare", "load", "open", "resume", "run", "suite"),
    "catalogue": ("federations", "fleets", "load_federation", "load_fleet"),
    "core.errors": ("BadInputError", "FedArenaError"),
    "data": ("Federation",),
    "data.graphs.own": ("from_graph",),
    "data.huggingface": ("from_hf",),
    "data.images.own": ("from_images",),
    "data.tables": ("from_table",),
    "data.text.own": ("from_texts",),
    "display": ("write_report",),
    "fleet": ("Fleet",),
    "privacy": ("plan_privacy",),
    "results": ("Comparison", "Result"),
    "runs.callbacks": ("Callback", "Stop"),
    "runs.run": ("Run",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [
    "BadInputError",
    "Callback",
    "Comparison",
    "FedArenaError",
    "Federation",
    "Fleet",
    "Result",
    "Run",
    "Stop",
    "__version__",
    "compare",
    "federations",
    "fleets",
    "from_graph",
    "from_hf",
    "from_images",
    "from_table",
    "from_texts",
    "load",
    "load_federation",
    "load_fleet",
    "open",
    "plan_privacy",
    "resume",
    "run",
    "suite",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"fedarena.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'fedarena' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
