"""What is written down about where a run ran."""

from __future__ import annotations

from importlib import metadata

import pytest

from fedarena.runs.environment import describe_environment


def test_a_package_that_is_used_from_its_source_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without_ours(name: str) -> str:
        if name == "fedarena":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_ours)
    versions = describe_environment()["versions"]
    assert versions["fedarena"] is None
    assert versions["torch"]
