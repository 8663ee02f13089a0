"""``fedarena data export``."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.data import load_federation


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["data", "export", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_federation_with_options(tmp_path: Path) -> None:
    settings = ("partition=iid", "partition.clients=5", "validation_fraction=0.1")
    output = call("digits", tmp_path / "leaf", *settings, "--users-per-file", 2)
    assert f"Exported: {tmp_path / 'leaf'} has digits with 5 clients and 1,797 samples in 9 files" in output
    assert sorted(path.name for path in (tmp_path / "leaf").iterdir()) == ["test", "train", "val"]
    back = load_federation("leaf", {"folder": str(tmp_path / "leaf")})
    assert (back.num_clients, back.num_samples) == (5, 1_797)


def test_refusals(tmp_path: Path) -> None:
    assert "exists; choose another folder, or remove it" in call("digits", tmp_path, code=2)
    assert "no federation called 'digit'" in call("digit", tmp_path / "leaf", code=2)
    assert list(tmp_path.iterdir()) == []
