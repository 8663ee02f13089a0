"""Algorithms whose clients train privately: any algorithm, with some of its hooks replaced."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from fedarena.train import Algorithm

E = TypeVar("E", bound=Algorithm)


def extended(algorithm: Algorithm, extension: type[E], **settings: Any) -> E:
    """A copy of `algorithm` that does first what `extension` says; what that calls by super() is its own doing."""
    kind = type(type(algorithm).__name__, (extension, type(algorithm)), {"__module__": type(algorithm).__module__})
    private: Any = copy.copy(algorithm)
    private.__class__ = kind
    vars(private).update(settings)
    return private  # type: ignore[no-any-return]
