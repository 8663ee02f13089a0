"""FedArena: how would a federated learning method really do?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedarena.core.version import VERSION

if TYPE_CHECKING:
    from fedarena.api import Result, load, resume, run

__version__ = VERSION
__all__ = ["Result", "__version__", "load", "resume", "run"]


def __getattr__(name: str) -> Any:
    """Imports the interface when it is first used, so that parts of the package work without all dependencies."""
    if name in __all__:
        from fedarena import api

        return getattr(api, name)
    raise AttributeError(f"module 'fedarena' has no attribute {name!r}")
