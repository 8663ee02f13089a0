"""Where published traces lie beside the project, for tests that compare with them; they are no part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data"
FLHETBENCH = FOLDER / "flhetbench_traces"
FEDSCALE = FOLDER / "fedscale_trace_samples"

needs_flhetbench = pytest.mark.skipif(not FLHETBENCH.exists(), reason="FLHetBench's published traces are not here")
needs_fedscale = pytest.mark.skipif(not FEDSCALE.exists(), reason="FedScale's published traces are not here")
