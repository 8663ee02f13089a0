"""The tables of a run: the one place that says which columns they have, of which types, and what these mean.

The recorder writes by it and refuses what does not fit, readers complete runs of earlier versions by it, and
``docs/runs.md`` shows what it says. Columns of metrics follow from the metrics that a run measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.metrics import PERSONAL, TRAINING_SET, summary_names
from fedarena.metrics.metric import PART

INT, LONG, FLOAT, TEXT, FLAG = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_()


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: pa.DataType
    meaning: str


ROUNDS = (
    Column("round", INT, "number of the round; round 0 is the untrained model"),
    Column("clients", LONG, "clients whose updates were used"),
    Column("samples", LONG, "samples that these clients processed"),
    Column("steps", LONG, "gradient steps that they took"),
    Column(
        "train_loss",
        FLOAT,
        "mean over the processed samples, during local training; of an algorithm with a `train` loop of its own, "
        "of the model that clients begin with",
    ),
    Column("bytes_down", LONG, "what clients downloaded in this round, as it was planned"),
    Column("real_bytes_down", LONG, "what they really downloaded, where downloads are compressed"),
    Column("bytes_up", LONG, "what clients uploaded in this round, as it was planned"),
    Column("real_bytes_up", LONG, "what they really uploaded, where that depends on what they learned"),
    Column(
        "flops",
        FLOAT,
        "operations of the clients' gradients, and of losses alone that they were asked for, as torch's "
        "`FlopCounterMode` counts them: matrix products and convolutions, where a multiplication and an addition are "
        "two",
    ),
    Column("invited", LONG, "jobs that ended in this round"),
    Column("failed", LONG, "how many of them were not used"),
    Column("end_seconds", FLOAT, "the virtual clock at the end of the round; in round 0 at the start of the run"),
    Column("wasted_seconds", FLOAT, "the phones' time for jobs that were not used"),
    Column("wasted_bytes", LONG, "the traffic of jobs that were not used"),
    Column("joules", FLOAT, "energy of the phones, where the fleet's devices tell it"),
    Column("staleness", FLOAT, "steps that the server had made since a client began, mean over the used updates"),
    Column("succeeded", FLAG, "whether the round brought an update"),
    Column("epsilon", FLOAT, "privacy spent so far, for the δ of the run; empty without differential privacy"),
    Column("clip_norm", FLOAT, "the norm that updates were clipped to"),
    Column("clipped_share", FLOAT, "share of the clients whose updates were longer; the simulator sees it, no server"),
    Column("noise_to_signal", FLOAT, "norm of the noise that the server added, relative to what it was added to"),
    Column("corrupted", LONG, "how many of the used updates are of corrupted clients; empty without an attack"),
    Column("rejected", LONG, "used updates of which the aggregator took nothing; empty unless it is a defence"),
    Column("rejected_corrupted", LONG, "how many of those are of corrupted clients"),
    Column("attack_success", FLOAT, "share of the test samples with a backdoor's trigger that get its label"),
    Column("eval_clients", LONG, "on how many clients the model was evaluated"),
    Column("eval_samples", LONG, "on how many of their samples"),
)
CLIENTS = (
    Column("round", INT, "after which the model was evaluated"),
    Column("client", TEXT, "id of the client in the original data"),
    Column("samples", LONG, "samples that the model was evaluated on"),
    Column("predictions", LONG, "predictions for these samples, several a sample in text; they weigh the means"),
)
# A row per class, in runs whose metrics tell of classes.
CLASSES = (
    Column("round", INT, "after which the model was evaluated"),
    Column("index", INT, "number of the class"),
    Column("class", TEXT, "its name, or its number where it has none"),
    Column("train_samples", LONG, "training samples of the federation that have it"),
    Column("samples", LONG, "evaluated predictions for which it is right"),
    Column("clients", LONG, "evaluated clients that have such"),
)
# Real times are kept apart: everything else is the same in every repetition of a run.
TIMINGS = (
    Column("round", INT, "number of the round"),
    Column("train_seconds", FLOAT, "real time of training"),
    Column("evaluate_seconds", FLOAT, "real time of evaluation"),
    Column("clients_per_second", FLOAT, "clients trained per second of real time"),
)
# Virtual time is part of the result. What was not reached or is not known is empty.
JOBS = (
    Column("round", INT, "round in which the job ended"),
    Column("job", LONG, "number of the job, counted over the whole run"),
    Column("client", TEXT, "id of the client in the original data"),
    Column("index", LONG, "number of the client in the federation"),
    Column("start_version", INT, "version of the model that the job began with"),
    Column("staleness", INT, "steps that the server had made since the job began"),
    Column("begin_seconds", FLOAT, "virtual time at which the job began"),
    Column("downloaded_seconds", FLOAT, "virtual time at which the download was complete"),
    Column("trained_seconds", FLOAT, "virtual time at which training was complete"),
    Column("uploaded_seconds", FLOAT, "virtual time at which the upload was complete"),
    Column("end_seconds", FLOAT, "virtual time at which the job ended, one way or the other"),
    Column("worked_seconds", FLOAT, "how long the phone had worked by then, without pauses"),
    Column("outcome", TEXT, "how the job ended, see below"),
    Column("share", FLOAT, "share of a whole job that was to be done; below 1 under methods with partial work"),
    Column("samples", LONG, "samples that were to be processed"),
    Column("loss", FLOAT, "mean training loss of a used update"),
    Column("weight", FLOAT, "what staleness left of a used update"),
    Column("corrupted", FLAG, "whether the client is corrupted and attacks in this round"),
    Column("counted", FLOAT, "how much of a used update a defence took, from 0 (rejected) to 1; empty without one"),
    Column("bytes_down", LONG, "what was downloaded, as far as the job came, as it was planned"),
    Column("real_bytes_down", LONG, "size of a complete download, where downloads are compressed"),
    Column("bytes_up", LONG, "what was uploaded, as far as the job came, as it was planned"),
    Column("real_bytes_up", LONG, "size of a used update, where that depends on what was learned"),
    Column(
        "flops",
        FLOAT,
        "operations of the client's gradients, and of losses alone that it was asked for, as far as the job came",
    ),
    Column("joules", FLOAT, "energy of the phone, as far as the job came"),
)
COLUMNS = {"rounds": ROUNDS, "clients": CLIENTS, "timings": TIMINGS, "jobs": JOBS, "classes": CLASSES}
TABLES = tuple(COLUMNS)
# Those that not every run has: of earlier versions, or for want of anything to tell.
SOME_TABLES = frozenset({"jobs", "classes"})
# What curves and tables of results compute from those of a run, and call so.
DERIVED = frozenset(
    {"method", "seeds", "status", "bytes", "real_bytes", "hours", "virtual_hours", "wall_seconds"}
    | {"attack", "defence", "share"}
)


def table_schemas(metrics: Sequence[str], more: Mapping[str, Sequence[str]] | None = None) -> dict[str, pa.Schema]:
    """Columns of the tables of a run with these metrics, among them those of personal models if clients have such.

    Parts of metrics, whose names have a dot, are told of every client alone. `more` has further columns of numbers, by
    table, for parts of a run that few runs have.
    """
    whole = [metric for metric in metrics if PART not in metric]
    derived = DERIVED | {f"{metric}_std" for metric in whole}
    if taken := next((metric for metric in whole if metric in derived), None):
        raise BadInputError(
            f"A metric cannot be called {taken!r}, as tables of results call something else so; give your metric "
            "another name (its `info`)"
        )
    fields = {table: [(column.name, column.type) for column in columns] for table, columns in COLUMNS.items()}
    fields["rounds"] += [(name, FLOAT) for metric in whole for name in summary_names(metric)]
    fields["rounds"] += [(TRAINING_SET + metric, FLOAT) for metric in whole if not metric.startswith(PERSONAL)]
    fields["clients"] += [(metric, FLOAT) for metric in metrics]
    if any(metric.startswith(PERSONAL) for metric in metrics):
        # On how many clients and samples, which may be fewer than for the global model.
        fields["rounds"] += [(f"{PERSONAL}clients", LONG), (f"{PERSONAL}samples", LONG)]
        fields["clients"] += [(f"{PERSONAL}samples", LONG), (f"{PERSONAL}predictions", LONG)]
    for table, names in (more or {}).items():
        fields[table] += [(name, LONG if name.partition(":")[0] == "arm" else FLOAT) for name in names]
    for columns in fields.values():
        names = [name for name, _ in columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise BadInputError(
                f"The metrics {', '.join(whole)} come to a column {twice!r} that the tables of a run have already; "
                "give your metric another name (its `info`)"
            )
    return {table: pa.schema(columns) for table, columns in fields.items()}


def sent_bytes(table: pa.Table, name: str) -> pa.ChunkedArray:
    """``bytes_up`` or ``bytes_down`` of rounds or jobs: as really sent where that is known, else as planned."""
    real = f"real_{name}"
    return pc.coalesce(table[real], table[name]) if real in table.column_names else table[name]  # runs of before


def unevaluated(tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables of rounds, and of clients and classes, as they would be if the last round had not been evaluated."""
    rounds = tables["rounds"]
    metrics = set(tables["clients"].column_names) - {column.name for column in CLIENTS}
    scored = {"attack_success", "eval_clients", "eval_samples", f"{PERSONAL}clients", f"{PERSONAL}samples"}
    scored.update(name for metric in metrics for name in (*summary_names(metric), TRAINING_SET + metric))
    last = rounds.slice(len(rounds) - 1).to_pylist()[0]
    kept = {name: value for name, value in last.items() if name not in scored}
    row = pa.RecordBatch.from_pylist([kept], schema=rounds.schema)
    scores = {name: table for name, table in tables.items() if name != "rounds"}
    return {
        "rounds": pa.Table.from_batches([*rounds.slice(0, len(rounds) - 1).to_batches(), row]),
        **{name: table.filter(pc.less(table["round"], last["round"])) for name, table in scores.items()},
    }


def batch_of_rows(table: str, schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows of a table; what one of them does not mention is empty."""
    for row in rows:
        _check_known(table, schema, row)
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)


def joined(columns: Sequence[Any]) -> Any:
    """Arrays or lists of the same column, one after the other."""
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(values, np.ndarray) for values in columns):
        return np.concatenate(columns)
    return [value for values in columns for value in values]


def batch_of_columns(table: str, schema: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Rows of a table from all its columns."""
    _check_known(table, schema, columns)
    missing = [name for name in schema.names if name not in columns]
    if missing:
        raise ValueError(f"The table of {table} needs {', '.join(missing)}")
    return pa.record_batch(dict(columns), schema=schema)


def _check_known(table: str, schema: pa.Schema, names: Mapping[str, Any]) -> None:
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise ValueError(f"The table of {table} has no column {', '.join(unknown)}")
