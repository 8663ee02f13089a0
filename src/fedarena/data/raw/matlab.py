"""Matlab's files of version 5, as SciPy reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, DamagedFileError


def read_matlab(path: Path) -> dict[str, Any]:
    """The arrays of a file by their names."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found: dict[str, Any] = loadmat(path)
    except NotImplementedError:
        raise BadInputError(f"{path} is of a newer version of Matlab's files, 7.3; save it with -v7") from None
    except FileNotFoundError:
        raise BadInputError(f"There is no file {path}") from None
    except (MatReadError, ValueError, TypeError, OSError, EOFError, KeyError, IndexError, OverflowError) as error:
        reason = " ".join(str(error).split())[:100]
        raise DamagedFileError(f"{path} is damaged: it is no complete file of Matlab's ({reason})") from None
    return found
