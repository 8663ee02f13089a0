"""Builds of federations in processes of their own, some of which are killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fedarena.data import load_federation
from fedarena.data.registry import CACHE_VARIABLE
from store import peak_resident_bytes


def build(name: str, options: dict[str, Any], kill_at: float | None) -> dict[str, Any]:
    """Builds a federation, or finds it built, in a process that did nothing else; or is killed on the way."""

    def progress(fraction: float, words: str) -> None:
        if kill_at is not None and fraction >= kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    before = peak_resident_bytes()
    start = time.perf_counter()
    federation = load_federation(name, options, progress)
    return {
        "seconds": time.perf_counter() - start,
        "clients": federation.num_clients,
        "stored_samples": federation.num_samples,
        "fingerprint": federation.fingerprint,
        "peak_megabytes": peak_resident_bytes() / 1e6,
        "peak_megabytes_before": before / 1e6,
        "store_megabytes": sum(file.stat().st_size for file in federation.path.iterdir()) / 1e6,
    }


def in_fresh_process(command: list[str], cache: Path, kill_at: float | None = None) -> dict[str, Any] | None:
    """What a script says as JSON when it is called so; None if it was killed."""
    command = [sys.executable, *command, *([] if kill_at is None else ["--kill-at", str(kill_at)])]
    finished = subprocess.run(command, capture_output=True, text=True, env={**os.environ, CACHE_VARIABLE: str(cache)})
    if finished.returncode == -signal.SIGKILL:
        return None
    if finished.returncode:
        raise SystemExit(finished.stderr)
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
