"""Who may work for a run: what a worker must have in common with the driver, or results would depend on who works."""

from __future__ import annotations

import functools
import hashlib
import platform
import socket
from importlib import metadata
from pathlib import Path

from fedarena.runs.building import Experiment
from fedarena.runs.cluster.messages import Message
from fedarena.runs.cluster.probe import fingerprint_of_bits

_PACKAGES = ("fedarena", "torch", "numpy", "ray")


def here() -> Message:
    """What this place is called, and with what it computes."""
    return {
        "node": socket.gethostname(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "source": _source_of_fedarena(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # it can be there without, such as in a folder of sources
        return None


def built(experiment: Experiment) -> Message:
    """What came of building a run here."""
    engine = experiment.simulation.engine
    return {
        "federation": experiment.federation.fingerprint,
        "weights": experiment.weights_fingerprint,
        "device": engine.choices["device"],
        "bits": fingerprint_of_bits(experiment.simulation),
    }


@functools.cache
def _source_of_fedarena() -> str:
    """A fingerprint of the package itself: whoever develops it has many sources of one version."""
    folder = Path(__file__).parents[2]
    hashed = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*.py")):
        hashed.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return hashed.hexdigest()


def why_refused(answer: Message, mine: Message, mixed_hardware: bool = False) -> str | None:
    """Why a worker cannot be used, if so: what is not as it is here, and what would be right."""
    node = answer["node"]
    for package, version in mine["versions"].items():
        if package == "python" or (found := answer["versions"].get(package)) == version:
            continue
        return f"{node} has {package} {found}, and this machine {version}; install the same version there"
    if answer.get("source") != mine["source"]:  # which others may not know of
        return (
            f"{node} has another source of fedarena {mine['versions']['fedarena']} than this machine; install the same "
            "there"
        )
    if "refused" in answer:  # which may be for want of what was checked before
        return f"A worker on {node} cannot build the run: {answer['refused'].strip()}"
    if answer["federation"] != mine["federation"]:
        return (
            f"The federation on {node} is another one (fingerprint {answer['federation']} instead of "
            f"{mine['federation']}); copy the store from this machine, or remove it there to have it made again"
        )
    if answer["weights"] != mine["weights"]:
        return f"The file of weights on {node} is another one; copy it from this machine"
    if answer["device"] != mine["device"]:
        return (
            f"The worker on {node} computes on {answer['device']}, and this machine on {mine['device']}; choose "
            "engine.device for both"
        )
    if answer["bits"] != mine["bits"] and not mixed_hardware:
        return (
            f"{node} does not compute the same bits as this machine, so results would depend on who computed "
            "them; use machines of one kind, or engine.mixed_hardware=true, and no two runs will be the same"
        )
    return None
