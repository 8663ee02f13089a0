"""Rows of the tables of a run, of several finished rounds at once, which costs little more than those of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.metrics import PERSONAL
from fedarena.simulate import RoundOutcome
from fedarena.storage.checkpoint import snapshot_groups
from fedarena.storage.tables import FLOAT, batch_of_columns, batch_of_rows, joined
from fedarena.train import ClientScores, count_bytes

Schemas = Mapping[str, pa.Schema]

# Rounds wait no longer when their rows are so many, or the server's tensors after them so large.
_MOST_WAITING_ROWS, _MOST_WAITING_BYTES = 4096, 1 << 26


class FinishedRound:
    """What is to be recorded of a round."""

    def __init__(self, outcome: RoundOutcome, client_ids: Sequence[str]):
        self.snapshot, self.round = outcome.snapshot, outcome.snapshot.round
        self.row, self.jobs, self.classes = outcome.row, outcome.jobs, outcome.classes
        self.scores, self.personal, self.client_ids = outcome.scores, outcome.personal_scores, client_ids
        clients = outcome.row.get("clients", 0)
        self.timing = {
            "round": self.round,
            "train_seconds": outcome.train_seconds,
            "evaluate_seconds": outcome.evaluate_seconds,
            "clients_per_second": clients / outcome.train_seconds if clients else None,
        }
        self.rows = 1 + len(client_ids) + (len(outcome.jobs["round"]) if outcome.jobs else 0)
        self.bytes = count_bytes(snapshot_groups(self.snapshot))


def are_many(waiting: Sequence[FinishedRound]) -> bool:
    """Whether it is time to make the rows of rounds that wait for it."""
    rows, bytes = sum(finished.rows for finished in waiting), sum(finished.bytes for finished in waiting)
    return rows > _MOST_WAITING_ROWS or bytes > _MOST_WAITING_BYTES


def rows_of_rounds(finished: Sequence[FinishedRound], schemas: Schemas) -> list[tuple[str, pa.RecordBatch]]:
    """Tables, and what is to be added to them."""
    batches = [("rounds", batch_of_rows("rounds", schemas["rounds"], [one.row for one in finished]))]
    for one in finished:
        if one.scores is not None:
            batches.append(("clients", batch_of_scores(one, schemas)))
        if one.classes:
            batches.append(("classes", batch_of_classes(one, schemas)))
    if with_jobs := [one.jobs for one in finished if one.jobs]:
        jobs = {
            name: _reached(joined([columns[name] for columns in with_jobs]), schemas["jobs"].field(name).type)
            for name in with_jobs[0]
        }
        batches.append(("jobs", batch_of_columns("jobs", schemas["jobs"], jobs)))
    return [*batches, ("timings", batch_of_rows("timings", schemas["timings"], [one.timing for one in finished]))]


def batch_of_scores(finished: FinishedRound, schemas: Schemas) -> pa.RecordBatch:
    """Rows of the table of clients."""
    scores = finished.scores
    assert scores is not None
    columns = {
        "round": np.full(len(scores.clients), finished.round),
        "client": list(finished.client_ids),
        "samples": scores.samples,
        "predictions": scores.counts,
        **{name: _reached(values, FLOAT) for name, values in scores.columns().items()},
        **_personal_columns(scores, finished.personal),
    }
    return batch_of_columns("clients", schemas["clients"], columns)


def batch_of_classes(finished: FinishedRound, schemas: Schemas) -> pa.RecordBatch:
    """Rows of the table of classes."""
    rounds = np.full(len(finished.classes["index"]), finished.round)
    columns = {name: _reached(values, FLOAT) for name, values in finished.classes.items()}
    return batch_of_columns("classes", schemas["classes"], {"round": rounds, **columns})


def _personal_columns(scores: ClientScores, personal: ClientScores | None) -> dict[str, Any]:
    """Columns about clients with their own models; empty for a client that has nothing left to be scored on."""
    if personal is None:
        return {}
    place = np.searchsorted(personal.clients, scores.clients).clip(max=len(personal.clients) - 1)
    missing = personal.clients[place] != scores.clients
    sizes = {"samples": personal.samples, "predictions": personal.counts}
    columns = {**sizes, **personal.columns()}
    return {PERSONAL + name: pa.array(v[place], mask=missing | ~np.isfinite(v[place])) for name, v in columns.items()}


def _reached(values: Any, type: pa.DataType) -> Any:
    """A column in which infinite and undefined numbers, for what never happened, are missing."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        missing = ~np.isfinite(values)
        return pa.array(np.where(missing, 0, values), type=type, mask=missing, safe=False)
    return values
