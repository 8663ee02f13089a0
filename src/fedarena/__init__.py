"""FedArena: how would a federated learning method really do?"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedarena.core.version import VERSION

if TYPE_CHECKING:
    from fedarena.api import Result, load, open, resume, run
    from fedarena.data.huggingface import from_hf
    from fedarena.data.images.own import from_images
    from fedarena.data.text.own import from_texts
    from fedarena.runs.callbacks import Callback, Stop
    from fedarena.runs.run import Run

__version__ = VERSION
__all__ = [
    "Callback",
    "Result",
    "Run",
    "Stop",
    "__version__",
    "from_hf",
    "from_images",
    "from_texts",
    "load",
    "open",
    "resume",
    "run",
]
_ELSEWHERE = {
    "Callback": "runs.callbacks",
    "Stop": "runs.callbacks",
    "Run": "runs.run",
    "from_hf": "data.huggingface",
    "from_images": "data.images.own",
    "from_texts": "data.text.own",
}


def __getattr__(name: str) -> Any:
    """Imports the interface when it is first used, so that parts of the package work without all dependencies."""
    if name in __all__:
        return getattr(import_module(f"fedarena.{_ELSEWHERE.get(name, 'api')}"), name)
    raise AttributeError(f"module 'fedarena' has no attribute {name!r}")
