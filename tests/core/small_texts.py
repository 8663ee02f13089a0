"""A federation of a few short texts, for runs that take no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec

CLIENTS, TEXTS, LENGTH, TOKENS = 12, 6, 13, 9


def write_texts(folder: Path) -> Federation:
    """Everybody writes other tokens, of which the first is padding and the second one that is unknown."""
    random = np.random.default_rng(0)
    task = TaskSpec(kind="next_token", classes=TOKENS, padding=0, unknown=1)
    columns = {"tokens": ColumnSpec(dtype="uint8", shape=(LENGTH,))}
    with FederationWriter(folder, name="texts", task=task, columns=columns) as writer:
        for client in range(CLIENTS):
            parts = [
                {"tokens": random.integers(2 + client % 3, TOKENS, (TEXTS, LENGTH)).astype(np.uint8)} for _ in range(2)
            ]
            writer.add_client(f"client {client}", train=parts[0], test=parts[1])
    return Federation.open(folder)
