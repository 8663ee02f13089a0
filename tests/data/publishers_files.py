"""What tests of federations from publishers' files share: loading them, their groups, and real files beside us."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedarena.data import Federation, load_federation

REAL = Path(__file__).parents[3] / "shared" / "data"


def load(name: str, folder: Path, **options: object) -> Federation:
    return load_federation(name, {"folder": str(folder), **options})


def real(name: str) -> Path:
    """A folder of real files, without which the test is skipped."""
    if not (REAL / name).is_dir():
        pytest.skip(f"needs {REAL / name}")
    return REAL / name


def groups_of(federation: Federation) -> dict[str, str]:
    return {
        name: group
        for group in ("train", "validation", "test")
        for name in federation.client_ids(federation.clients(group))
    }
