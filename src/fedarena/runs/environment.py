"""What a run ran on: versions, hardware and the state of the user's repositories, kept with its results."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedarena.core.installation import installed_version
from fedarena.profiling.memory import total_memory_bytes

_GIT_SECONDS = 10  # a repository that takes longer is not described
_PACKAGES = ("fedarena", "torch", "numpy", "pyarrow", "safetensors")


def describe_environment() -> dict[str, Any]:
    """Versions, hardware and the time."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: installed_version(name) for name in _PACKAGES},
        },
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": total_memory_bytes(),
            "gpus": gpus,
        },
        "system": platform.platform(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def describe_repositories(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The git repositories that files lie in: the commit, and which of the files it does not hold as they are."""
    roots: dict[Path, list[Path]] = {}
    for path in files:
        top = _git(path.parent, "rev-parse", "--show-toplevel")
        if top is not None:
            roots.setdefault(Path(top.strip()), []).append(path)
    found = []
    for root, inside in sorted(roots.items()):
        commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
        tracked = _git(root, "status", "--porcelain", "--untracked-files=no")
        changed = _git(root, "status", "--porcelain", "--ignored", "-z", "--", *map(str, inside))
        found.append(
            {
                "folder": str(root),
                "commit": None if commit is None else commit.strip(),  # there is none yet
                "dirty": None if tracked is None or changed is None else bool(tracked or changed),
                "changed_files": [entry[3:] for entry in (changed or "").split("\0") if entry],
            }
        )
    return found


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it is not installed, does not know the folder, or takes too long."""
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    try:
        ended = subprocess.run(
            command, capture_output=True, timeout=_GIT_SECONDS, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if ended.returncode else ended.stdout.decode(errors="replace")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
