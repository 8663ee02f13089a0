"""How often something of a device was refused in a run, on disk: who is at the limit is so after a restart, too."""

from __future__ import annotations

from pathlib import Path

from fedarena.core.files import write_bytes
from fedarena.core.sealed_json import read_sealed, seal_json

OFFENCES_FILE = "refused.json"  # of the folder in which a server keeps what is under way


class Offences:
    """What was refused of every device, by its certificate: whoever is invited anew begins anew."""

    def __init__(self, folder: Path):
        self._path = folder / OFFENCES_FILE
        self._known: dict[str, list[str]] = {}
        if (found := read_sealed(self._path, "refused")) is not None:
            self._known = found["refused"]

    def add(self, serial: str, what: str) -> int:
        """One more, durably; how many there are. What is refused again after a kill, by its name, counts once."""
        known = self._known.setdefault(serial, [])
        if what not in known:
            known.append(what)
            write_bytes(self._path, seal_json({"refused": self._known}))
        return len(known)
