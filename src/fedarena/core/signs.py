"""Whether two machines see the same folder: one puts a file of a random name there, and the other looks for it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class Sign:
    """A sign that a folder is this one, and not another one of the same name."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = folder / f".{uuid.uuid4().hex}.tmp"
        self._file.touch()

    def offer(self) -> dict[str, str]:
        """What others are told, who may see the folder."""
        return {"folder": str(self.folder), "sign": self._file.name}

    def remove(self) -> None:
        """Takes it away."""
        with suppress(OSError):
            self._file.unlink()


def sees(offer: Mapping[str, str] | None) -> bool:
    """Whether a folder that is offered is here the same one, and can be written to."""
    if offer is None:
        return False
    folder = Path(offer["folder"])
    return (folder / offer["sign"]).exists() and os.access(folder, os.W_OK)
