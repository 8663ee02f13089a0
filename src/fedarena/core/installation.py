"""What is installed on a machine, and whether that is the same as on another one."""

from __future__ import annotations

import functools
import hashlib
import platform
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("fedarena", "torch", "numpy", "ray")


def here() -> dict[str, Any]:
    """What this place is called, and with what it computes."""
    return {
        "node": socket.gethostname(),
        "versions": {"python": platform.python_version(), **{name: installed_version(name) for name in _PACKAGES}},
        "source": _source_of_fedarena(),
    }


def installed_version(package: str) -> str | None:
    """The version of a package; None if nobody installed it, though it may be there, such as in a folder of sources."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _source_of_fedarena() -> str:
    """A fingerprint of the package itself: whoever develops it has many sources of one version."""
    folder = Path(__file__).parents[1]
    hashed = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*.py")):
        hashed.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return hashed.hexdigest()


def what_differs(there: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """What is not installed there as it is here, if so, and what would be right."""
    node = there["node"]
    for package, version in mine["versions"].items():
        if package == "python" or (found := there["versions"].get(package)) == version:
            continue
        return f"{node} has {package} {found}, and this machine {version}; install the same version there"
    if there.get("source") != mine["source"]:  # which others may not know of
        return (
            f"{node} has another source of fedarena {mine['versions']['fedarena']} than this machine; install the same "
            "there"
        )
    return None
