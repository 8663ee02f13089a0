"""Small runs with parts that tell about privacy, attacks and defences, and made-up runs that tell the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import fedarena
from fedarena.storage.run_data import RunData
from fedarena.train import map_groups
from fedarena.transforms import Attack, Defence, Transform

PRIVACY = {"name": "gaussian", "epsilon": 2.0, "delta": 1e-5, "accountant": "pld"}


class Flip(Attack):
    """Corrupted clients send the opposite of what they learned."""

    def forge(self, rows, seen):
        return map_groups(lambda t: -5 * t, rows.update)


class LargestAreWrong(Defence):
    """A mean without the two longest updates: it rejects about as many corrupted ones as honest ones."""

    def weigh(self, updates):
        squares = sum(torch.cat(parts).flatten(1).square().sum(1) for _, _, parts in updates.tensors())
        weights = np.ones(len(updates))
        weights[squares.argsort(descending=True)[:2].numpy()] = 0
        return weights


class Spends(Transform):
    """Tells what a private mechanism would, without being one."""

    def server_init(self, update):
        return {"spent": {"rounds": torch.zeros(())}}

    def at_server(self, update, server, context):
        return update, {"spent": {"rounds": server["spent"]["rounds"] + 1}}

    def observe(self, before, after):
        return {"clients": len(before), "clipped": len(before) // 2}

    def measure(self, server, observed):
        rounds = float(server["spent"]["rounds"])
        return {
            "epsilon": 0.4 * rounds**0.5,
            "clip_norm": 1.0 / rounds,
            "clipped_share": observed["clipped"] / observed["clients"],
            "noise_to_signal": 0.5,
        }


def real_run(folder: Path, **settings: Any) -> RunData:
    """A short run on little data."""
    return fedarena.run(
        federation="digits",
        model="logistic_regression",
        rounds=4,
        cohort=10,
        evaluation={"every": 2},
        runs_folder=folder,
        **{"progress": False, **settings},
    )


def with_columns(run: RunData, **columns: np.ndarray | list[Any]) -> RunData:
    """The same run with columns of its table of rounds replaced."""
    rounds = run.rounds
    for name, values in columns.items():
        place = rounds.schema.get_field_index(name)
        field = rounds.schema.field(name)
        rounds = rounds.set_column(place, field, pa.array(values, field.type, from_pandas=True))
    return replace(run, rounds=rounds)


def with_privacy(run: RunData, scale: float = 1.0, audit: dict[str, Any] | None = None, **settings: Any) -> RunData:
    """The same run with a made-up mechanism: ε grows, the clipping norm adapts."""
    rounds = np.arange(len(run.rounds), dtype=np.float64)
    known = np.where(rounds > 0, rounds, np.nan)
    random = np.random.default_rng(len(run.label))
    private = with_columns(
        run,
        epsilon=scale * 0.2 * np.sqrt(known),
        clip_norm=0.5 + 1 / known,
        clipped_share=np.clip(0.5 + random.normal(0, 0.1, rounds.size) + 0 * known, 0, 1),
        noise_to_signal=scale * 0.1 * np.sqrt(known),
    )
    return replace(
        private,
        config={**run.config, "privacy": PRIVACY | settings},
        summary=run.summary | ({} if audit is None else {"audit": audit}),
    )


def with_attack(
    run: RunData,
    name: str = "backdoor",
    share: float = 0.2,
    defence: str = "mean",
    success: float | None = 0.6,
    caught: float | None = None,
    false_alarms: float = 0.05,
    **options: Any,
) -> RunData:
    """The same run under a made-up attack by a `share` of its clients; a defence catches some of them."""
    random = np.random.default_rng(len(run.label))
    clients = run.rounds["clients"].to_numpy()
    corrupted = random.binomial(clients, share) if name != "none" else None
    columns: dict[str, Any] = {}
    if corrupted is not None:
        columns["corrupted"] = corrupted
    if caught is not None:
        found = random.binomial(np.zeros_like(clients) if corrupted is None else corrupted, caught)
        honest = clients if corrupted is None else clients - corrupted
        columns |= {"rejected": found + random.binomial(honest, false_alarms), "rejected_corrupted": found}
    if success is not None and name != "none":
        evaluated = run.rounds["eval_clients"].is_valid().to_numpy()
        rounds = np.arange(len(run.rounds))
        columns["attack_success"] = np.where(evaluated, success * (1 - np.exp(-rounds / 10)), np.nan)
    attack = {"name": name} if name == "none" else {"name": name, "share": share, "from_round": 1, **options}
    config = {**run.config, "attack": attack, "aggregator": {"name": defence}}
    return replace(with_columns(run, **columns), config=config)
