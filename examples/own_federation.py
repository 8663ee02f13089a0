"""A federation from one's own data: write a store once, then use it by its folder.

python examples/own_federation.py
fedarena describe stores/sensors
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

import fedarena
from fedarena.data import ColumnSpec, FederationWriter, TaskSpec


def write_store(path: Path, clients: int = 40) -> None:
    generator = np.random.default_rng(0)
    with FederationWriter(
        path,
        name="sensors",
        task=TaskSpec(kind="classification", classes=3, label_names=("still", "walking", "running")),
        columns={"x": ColumnSpec(dtype="float32", shape=(6,)), "y": ColumnSpec(dtype="int64", shape=())},
        attributes={"phone": "string"},
    ) as writer:
        for number in range(clients):
            samples = int(generator.integers(8, 60))
            y = generator.integers(3, size=samples)
            x = (generator.normal(size=(samples, 6)) + y[:, None]).astype(np.float32)
            held_out = samples // 4
            writer.add_client(
                f"user {number}",
                train={"x": x[held_out:], "y": y[held_out:]},
                test={"x": x[:held_out], "y": y[:held_out]},
                attributes={"phone": "old" if number % 3 else "new"},
            )


if __name__ == "__main__":
    store = Path("stores/sensors")
    shutil.rmtree(store, ignore_errors=True)  # a store is never overwritten
    write_store(store)
    result = fedarena.run(federation=store, rounds=10, cohort=10)
    print(result.rounds.to_pandas()[["round", "accuracy"]].dropna())
