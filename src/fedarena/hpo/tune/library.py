"""Optuna, which is an extra: asked for before anything of a study is touched, and kept quiet."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fedarena.core.errors import BadInputError


def require_optuna() -> None:
    """Refuses to go on without the library."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise BadInputError("A search needs optuna, which is not installed; pip install 'fedarena[hpo]'") from error


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keeps its log and its warnings about parts of its own that may change from the user's screen."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"optuna\..*")
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
