"""The samples of one device, for ``python -m fedarena.client alice.zip --data mydata.py:load``.

`load` may return a pair (x, y), a dictionary of columns, or either of these for "train" and "test" (and "validation").
Here the device has a file of measurements, one per line: 64 numbers and a label.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("samples.csv")
TEST_SHARE = 0.2


def load() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rows = np.loadtxt(FILE, delimiter=",", dtype=np.float32, ndmin=2)
    x, y = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].astype(np.int64)
    tests = int(len(rows) * TEST_SHARE)
    return {"train": (x[tests:], y[tests:]), "test": (x[:tests], y[:tests])}
