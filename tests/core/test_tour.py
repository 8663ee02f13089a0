"""The notebook of a tour runs from its first cell to its last."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(TOUR, tmp_path)
    notebook = nbformat.read(tmp_path / TOUR.name, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # what it shows depends on who runs it
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    errors = [out for cell in notebook.cells for out in cell.get("outputs", ()) if out.output_type == "error"]
    assert not errors
    assert (tmp_path / "comparison.html").stat().st_size > 100_000
    assert (tmp_path / "runs" / "tracked").is_dir()
