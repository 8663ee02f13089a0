"""One round of training on a federation by both engines, which must agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fedarena
from fedarena.data import Federation


def agree(federation: Federation, folder: Path, rtol: float = 1e-10, **settings: object) -> dict[str, float]:
    """Trains with the reference and the cohort engine in float64; what was measured, the same of both."""
    found: dict[str, dict[str, float]] = {}
    for engine in ("reference", "cohort"):
        given = {
            "cohort": 3,
            "local": {"steps": 2, "batch_size": 4, "lr": 0.01, "epochs": None},
            **settings,
        }
        with fedarena.open(
            federation=federation,
            engine={"name": engine, "dtype": "float64"},
            rounds=1,
            name=f"{federation.name}-{engine}",
            runs_folder=folder,
            **given,
        ) as run:
            last = run.advance().rounds.to_pylist()[-1]
        found[engine] = {name: value for name, value in last.items() if isinstance(value, float)}
    reference, cohort = found["reference"], found["cohort"]
    assert reference.keys() == cohort.keys()
    for name, value in reference.items():
        np.testing.assert_allclose(cohort[name], value, rtol=rtol, err_msg=name)
    assert np.isfinite(reference["loss"])
    return reference
