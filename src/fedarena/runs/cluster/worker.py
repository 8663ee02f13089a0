"""A worker: a process somewhere that has built the same run, and trains and scores what it is sent."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import yaml

from fedarena.core.errors import BadInputError, FedArenaError, NotFiniteError
from fedarena.core.installation import here
from fedarena.core.signs import sees
from fedarena.runs.building import Experiment, prepare
from fedarena.runs.cluster.admission import built
from fedarena.runs.cluster.messages import (
    Message,
    pack_measured,
    pack_result,
    unpack_groups,
    unpack_kept,
    unpack_shard,
)
from fedarena.runs.cluster.shared_states import write_states
from fedarena.runs.cluster.troubles import is_full_disk
from fedarena.runs.config import resolve
from fedarena.runs.observer import Observer
from fedarena.runs.own_source import own_source
from fedarena.train import RayEngine

FETCH_SECONDS = 300  # for what was sent to all


class Silent(Observer):
    """Tells nobody; the driver has said it all."""

    def warned(self, message: str) -> None:
        """The driver has said so."""


class Worker:
    """Does one thing after the other; what goes wrong in what it is sent is part of its answer."""

    def __init__(self) -> None:
        self._experiment: Experiment | None = None
        self._sent: dict[int, Any] = {}  # what was sent to all, by its number, as it was unpacked
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()

    def is_here(self) -> bool:
        """Whether there is room for this worker; where there is none, nobody answers."""
        return True

    def prepare(self, order: Message) -> Message:
        """Builds the run; says where it did so and what came of it."""
        answer = here() | {"pid": os.getpid()}
        self._experiment, self._sent = None, {}  # of another run, before this one takes room
        # Ray asks for as many threads as a worker has cores, which are part of the bits; engines set them themselves.
        torch.set_num_threads(1)
        try:
            for entry in order["path"]:
                if entry not in sys.path and os.path.isdir(entry):
                    sys.path.append(entry)
            if os.path.isdir(order["folder"]):  # files are named from there
                os.chdir(order["folder"])
            config = resolve(yaml.safe_load(order["settings"]))
            experiment = prepare(config, Silent())
            changed = own_source(config).changes_since(order["own_source"])
            if changed:
                raise BadInputError(f"{', '.join(changed)} is not the same there; copy it from the driver's machine")
            answer |= built(experiment)
            self._experiment = experiment
        except Exception as error:
            answer["refused"] = _why_not(error)
        return answer

    def train(self, message: Message) -> Message:
        """Trains a shard, and adds up what it comes to."""

        def do() -> Message:
            path, engine = self._simulation.path, self._engine
            broadcasts = {version: self._unpacked(sent) for version, sent in message["broadcasts"].items()}
            shard = unpack_shard(message["shard"], broadcasts)
            kept = self._unpacked(message["kept"])
            with self._one_at_a_time if engine.trains_one_at_a_time else threading.Lock():
                results = engine.execute([shard], lambda one: path.collect(path.results_of(engine, one), one, kept))
                result = next(iter(results))
            offer = message["state_files"]
            if not sees(offer):
                return pack_result(result)
            if (file := write_states(offer, result.client_states)) is not None:
                result = replace(result, client_states=[], state_file=file)
            return {**pack_result(result), "sees_states": True}

        return self._answer(message, do)

    def measure(self, message: Message) -> Message:
        """Scores a model on some clients."""

        def do() -> Message:
            params = self._unpacked(message["params"])["params"]
            other = self._simulation.triggered_test if message["other"] else None
            arrays = (message["clients"], message["part"], message["blocks"])
            return {"measured": [pack_measured(states) for states in self._engine.measure(params, *arrays, other)]}

        return self._answer(message, do)

    def score_personal(self, message: Message) -> Message:
        """Scores some clients with models of their own."""

        def do() -> Message:
            broadcast, states = self._unpacked(message["broadcast"]), unpack_kept(message["states"])
            arrays = (message["clients"], message["part"], message["round"])
            return {"measured": [pack_measured(self._engine.score_personal(broadcast, states, *arrays))]}

        return self._answer(message, do)

    @property
    def _simulation(self) -> Any:
        assert self._experiment is not None
        return self._experiment.simulation

    @property
    def _engine(self) -> RayEngine:
        engine = self._simulation.engine
        assert isinstance(engine, RayEngine)
        return engine

    def _answer(self, message: Message, do: Callable[[], Message]) -> Message:
        """What came of it, or what went wrong, and how long it took."""
        began = time.perf_counter()
        with self._lock:
            for number in [number for number in self._sent if number not in message["needed"]]:
                del self._sent[number]
        try:
            with torch.no_grad():
                answer = do()
        except NotFiniteError as error:
            answer = {"not_finite": (error.what, error.client)}
        except FedArenaError as error:
            answer = {"bad_input" if isinstance(error, BadInputError) else "failed": str(error)}
        except Exception as error:
            if isinstance(error, MemoryError) or is_full_disk(error):
                raise  # which is this machine's, and not a mistake of somebody
            answer = {"exception": (traceback.format_exc(), f"{type(error).__name__}: {error}")}
        return answer | {"seconds": time.perf_counter() - began}

    def _unpacked(self, sent: tuple[int, Any]) -> Any:
        """What was sent to all under a number: groups, or a list of them; where the engine computes."""
        number, reference = sent
        with self._lock:
            if number not in self._sent:
                packed = fetch(reference)
                place = self._engine.place
                self._sent[number] = (
                    [place(unpack_groups(one)) for one in packed]
                    if isinstance(packed, list)
                    else place(unpack_groups(packed))
                )
            return self._sent[number]


def _why_not(error: Exception) -> str:
    """Why a run cannot be built here."""
    if is_full_disk(error):
        where = str(error).rstrip(".")
        return f"its disk is full ({where}); make room there, or let its FEDARENA_CACHE be a folder with more"
    return str(error) if isinstance(error, FedArenaError) else traceback.format_exception_only(error)[-1]


def fetch(reference: Any) -> Any:
    """What lies in Ray's store under a reference; what travels with a message itself is a list of one."""
    if isinstance(reference, list):
        return reference[0]
    import ray

    return ray.get(reference, timeout=FETCH_SECONDS)
