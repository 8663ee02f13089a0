"""Sizes of models, computed once for every version of their code and of torch and then kept in the cache."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

import torch

import fedarena.models
from fedarena.core.files import write_json
from fedarena.data.registry import cache_folder
from fedarena.models.sizes import USUAL_DATA, usual_size


def model_sizes() -> dict[str, str]:
    """By name what to tell of the size of each of our models."""
    path = cache_folder() / "model_sizes" / f"{_fingerprint()}.json"
    with suppress(OSError, ValueError):  # it is not there yet, or somebody damaged it
        kept = json.loads(path.read_text())
        if isinstance(kept, dict) and set(kept) == set(USUAL_DATA):
            return {str(name): str(text) for name, text in kept.items()}
    sizes = {name: str(usual_size(name)) for name in USUAL_DATA}
    with suppress(OSError):  # a cache that cannot be written to makes nothing wrong
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, sizes)
    return sizes


def _fingerprint() -> str:
    """Of all that sizes depend on."""
    digest = hashlib.blake2b(torch.__version__.encode(), digest_size=8)
    for file in sorted(Path(fedarena.models.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
