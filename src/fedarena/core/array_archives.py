"""Archives of arrays, as numpy writes them, and what numpy raises at files that are damaged."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import reading

# Heads of arrays are read as Python is. A changed bit makes an entry of an archive encrypted, or compressed in a way
# that nobody knows, which is a RuntimeError.
NO_ARRAYS = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError, SyntaxError),
    *(tokenize.TokenError, zlib.error, zipfile.BadZipFile),
)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an archive, by name; refuses one that is damaged, in whatever place of it that is."""
    try:
        with reading(path), np.load(path, allow_pickle=False) as content:
            return dict(content.items())
    except NO_ARRAYS as error:
        reason = " ".join(str(error).split())
        raise DamagedFileError(f"{path} cannot be read, or is damaged ({reason})") from None
