"""The notebook of a tour runs from its first cell to its last."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest

LEARNING_RATE = '"local.lr": 0.1,'  # a setting of all runs of its comparison
SHORT = ' "local.steps": 2, "cohort": 5,'  # what they show of learning is not what is tested here
TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


@pytest.mark.slow
def test_the_tour_runs(tmp_path: Path) -> None:
    shutil.copy(TOUR, tmp_path)
    notebook = nbformat.read(tmp_path / TOUR.name, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # what it shows depends on who runs it
    (shared,) = (cell for cell in notebook.cells if LEARNING_RATE in cell.source)
    shared.source = shared.source.replace(LEARNING_RATE, LEARNING_RATE + SHORT)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    errors = [out for cell in notebook.cells for out in cell.get("outputs", ()) if out.output_type == "error"]
    assert not errors
    assert (tmp_path / "comparison.html").stat().st_size > 100_000
    assert (tmp_path / "runs" / "tracked").is_dir()
