"""How long phones take for one sample, by their models: lists of latencies, and matching phones to them.

Two lists are known. FLHetBench's ``training_latency.json`` has milliseconds per sample of a ResNet and, for a few
phones, of a ViT; they are times of inference, and 0 means not measured. AI-Benchmark's list has scores, of which
``CPU_F_AI_Score`` is about inversely proportional to the latency of the ResNet: over the 137 phones that are in both
lists the correlation of their logarithms is -0.95, and the median of score times milliseconds is `SCORE_MILLISECONDS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet.arrays import FloatArray
from fedarena.fleet.reading.traces import (
    Places,
    as_shown,
    entries,
    naming,
    numbers,
    read_json,
    records_in_list,
    report,
)

SCORE_COLUMN = "CPU_F_AI_Score"
SCORE_MILLISECONDS = 367_824.0
MODEL_COLUMN = "Phone Model"
_LEADING_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)(?:\s.*)?", re.DOTALL)
_SPACES = re.compile(r"[\s_]+")

# How much longer it takes to train on a sample than to infer it; 3 as in FedScale: one pass forward, two backward.
TrainingFactor = Annotated[float, Field(gt=0)]
Network = Literal["ResNet", "ViT"]
# What phones get whose model is not in the list: the latency of one that is, drawn by seed, or the mean of all.
Unmatched = Literal["draw", "mean"]


@dataclass(frozen=True)
class Latencies:
    """Seconds to infer one sample, one row for every phone that was measured."""

    models: list[str]
    seconds: FloatArray


def read_latencies(path: str | Path, network: Network = "ResNet") -> Latencies:
    """Latencies of a file like ``training_latency.json`` or AI-Benchmark's list of scores, whichever it is."""
    records = records_in_list(read_json(path), path)
    with naming(path):
        if MODEL_COLUMN not in records[0] and SCORE_COLUMN in records[0]:
            return _from_scores(records, network)
        return _from_latencies(records, network)


def _from_latencies(records: list[dict[str, Any]], network: Network) -> Latencies:
    column = {"ResNet": "ResNet Latency", "ViT": "Vit Latency"}[network]
    places = Places("record", range(1, len(records) + 1))
    models = _texts(entries(records, MODEL_COLUMN, places), MODEL_COLUMN, places)
    # Nearly all phones were measured with the ResNet alone.
    values = [record.get(column, 0) for record in records] if network == "ViT" else entries(records, column, places)
    milliseconds = numbers(values, column, places)
    wrong = np.flatnonzero(milliseconds < 0)
    if len(wrong):
        raise BadInputError(f"{column!r} of {places[wrong[0]]} must not be negative, but it is {values[wrong[0]]!r}")
    measured = milliseconds > 0
    if not measured.any():
        raise BadInputError(f"No phone has a {column!r} above 0")
    return Latencies([models[row] for row in np.flatnonzero(measured)], milliseconds[measured] / 1000)


def _from_scores(records: list[dict[str, Any]], network: Network) -> Latencies:
    if network != "ResNet":
        raise BadInputError(f"AI-Benchmark's scores tell the latency of a ResNet, not of a {network}")
    places = Places("record", range(1, len(records) + 1))
    models = _texts(entries(records, "Model", places), "Model", places)
    scores = []
    for position, value in enumerate(entries(records, SCORE_COLUMN, places)):
        # Numbers of footnotes may follow the score.
        found = _LEADING_NUMBER.fullmatch(str(value))
        if not found:
            raise BadInputError(f"{SCORE_COLUMN!r} of {places[position]} must be a number, not {as_shown(value)}")
        scores.append(float(found[1]))
    return Latencies(models, SCORE_MILLISECONDS / numbers(scores, SCORE_COLUMN, places, above=0) / 1000)


def _texts(values: Sequence[Any], key: str, places: Places) -> list[str]:
    for position, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            raise BadInputError(f"{key!r} of {places[position]} must be a text, not {as_shown(value)}")
    return list(values)


def read_model_names(path: str | Path) -> dict[str, str]:
    """A file like FLASH's ``real2benchmark.json``: what the list of latencies calls a model."""
    value = read_json(path)
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value.values()):
        raise BadInputError(f"{path} must hold a name for every model of a phone, such as {{'SM-A205F': 'Galaxy A20'}}")
    return {_plain(model): name for model, name in value.items()}


def seconds_of_models(
    phones: Sequence[tuple[str, str]],
    path: str | Path,
    names_path: str | Path | None,
    *,
    network: Network,
    unmatched: Unmatched,
    seed: int,
) -> FloatArray:
    """Seconds to infer a sample for phones of these manufacturers and models.

    A model is looked for by its name, alone and after its manufacturer's, and by the name that the file `names_path`
    has for it; if it was measured several times, the median counts. Phones of the same model get the same latency, also
    if it is drawn; those without a model (an empty text) are not in any list, and draw one each.
    """
    latencies = read_latencies(path, network)
    names = {} if names_path is None else read_model_names(names_path)
    by_model: dict[str, list[float]] = {}
    for model, seconds in zip(latencies.models, latencies.seconds.tolist(), strict=True):
        by_model.setdefault(_plain(model), []).append(seconds)
    result, missing = np.empty(len(phones)), 0
    for row, (manufacturer, model) in enumerate(phones):
        candidates = (_plain(model), _plain(f"{manufacturer} {model}"), _plain(names.get(_plain(model), "")))
        known = has_model(model)
        measured = next((by_model[name] for name in candidates if known and name in by_model), None)
        if measured is not None:
            result[row] = np.median(measured)
            continue
        missing += 1
        if unmatched == "mean":
            result[row] = latencies.seconds.mean()
        else:
            key = hashlib.blake2b((candidates[1] if known else str(row)).encode(), digest_size=7).digest()
            chosen = streams.bits(seed, "fleet/latency", int.from_bytes(key, "little")) % len(latencies.seconds)
            result[row] = latencies.seconds[int(chosen)]
    how = "got the latency of one that is, drawn by seed" if unmatched == "draw" else "got the mean latency"
    report(path, missing, f"of {len(phones):,} phones are of models that are not in this list and {how}")
    return result


def has_model(model: str | None) -> bool:
    """Whether a record tells the model of its phone."""
    return bool(model and model.strip())


def _plain(name: str) -> str:
    """The name of a model without the differences that mean nothing."""
    return _SPACES.sub(" ", name).strip().lower()
