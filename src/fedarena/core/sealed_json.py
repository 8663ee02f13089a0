"""JSON that carries a checksum of itself, so that no byte of it can change unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import json_text, reading

CHECKSUM_KEY = "checksum"
_OWNER_KEY = "of"


def checksum_of(data: bytes) -> str:
    """A hash that stands for these bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def seal_json(value: Mapping[str, Any]) -> bytes:
    """`value` as indented JSON, with the checksum of the rest as its last entry."""
    checksum = checksum_of(json_text(value).encode())
    return json_text({**value, CHECKSUM_KEY: checksum}).encode()


def unseal_json(data: bytes) -> dict[str, Any] | None:
    """What was sealed; None unless every byte, spaces included, is as `seal_json` wrote it."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            return None
        content.pop(CHECKSUM_KEY, None)
        return content if seal_json(content) == data else None
    except (ValueError, RecursionError):
        return None


def read_sealed(path: Path, *keys: str) -> dict[str, Any] | None:
    """What was sealed in a file, which has these entries; None where there is no file."""
    try:
        with reading(path):
            content = unseal_json(path.read_bytes())
    except FileNotFoundError:
        return None
    if content is None or any(key not in content for key in keys):
        raise DamagedFileError(f"{path} is damaged: it is not what was written")
    return content


def seal_json_of(owner: str, value: Mapping[str, Any]) -> bytes:
    """The same for a file that is one of many alike, and says whose it is."""
    return seal_json({_OWNER_KEY: owner, **value})


def read_sealed_of(owner: str, path: Path, *keys: str) -> dict[str, Any] | None:
    """What was sealed for this owner, as `read_sealed`: files of others may have got in its place."""
    content = read_sealed(path, *keys)
    if content is not None and (found := content.pop(_OWNER_KEY, owner)) != owner:  # older files do not say
        raise DamagedFileError(f"{path} is not what was written there: it belongs to {found}")
    return content
