"""Trials with the samples that they train on, in arrays: all that a machine needs which has torch and numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.hpo.lanes.making import TrialSettings, make_trials
from fedarena.hpo.lanes.models import ModelSettings
from fedarena.hpo.lanes.planning import Scene
from fedarena.hpo.lanes.training import LaneTrainer
from fedarena.models import DataSpec, InputSpec, Task, build_model
from fedarena.models.tasks import task_class
from fedarena.simulate.schedules import SCHEDULES
from fedarena.simulate.selectors import SELECTORS
from fedarena.train import LocalTraining
from fedarena.train.engine import Part
from fedarena.train.hardware import DeviceName, DtypeName, Hardware, Precision

AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
NamedPart = Mapping[str, Any]  # its name and options
_ABOUT, _CLIENTS, _OFFSETS, _COLUMN = "about", "clients", "offsets", "column "


@dataclass(frozen=True)
class CarriedSamples:
    """Samples of some clients, one after the other: client i has the rows ``offsets[i]:offsets[i + 1]``."""

    columns: dict[str, AnyArray]
    offsets: IntArray


@dataclass(frozen=True)
class CarriedPart:
    """A part of the samples, and whose they are."""

    clients: IntArray  # ascending
    samples: CarriedSamples


class CarriedData:
    """Where trials get their samples from, in place of a federation."""

    def __init__(self, parts: Mapping[Part, CarriedPart]):
        self.parts = dict(parts)

    def samples(self, clients: IntArray, part: Part) -> CarriedSamples:
        """The samples of these clients, in this order."""
        stored = self.parts[part]
        if np.array_equal(clients, stored.clients):
            return stored.samples
        places = np.searchsorted(stored.clients, clients)
        offsets = stored.samples.offsets
        rows = [np.arange(offsets[place], offsets[place + 1]) for place in places]
        taken = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        ends = np.concatenate([[0], np.cumsum([len(some) for some in rows])]).astype(np.int64)
        return CarriedSamples({name: values[taken] for name, values in stored.samples.columns.items()}, ends)

    def counts(self, clients: IntArray, part: Part) -> IntArray:
        """How many samples these clients have."""
        stored = self.parts[part]
        found: IntArray = np.diff(stored.samples.offsets)[np.searchsorted(stored.clients, clients)]
        return found


@dataclass(frozen=True)
class CarriedTrials:
    """Trials of one federation that can be trained as lanes wherever their own code, if they have some, is found."""

    data: CarriedData
    spec: DataSpec
    task: NamedPart
    selector: NamedPart
    client_lr_schedule: NamedPart
    server_lr_schedule: NamedPart
    rounds: int
    horizon: int
    dtype: DtypeName
    precision: Precision
    settings: Sequence[TrialSettings]

    @property
    def clients(self) -> IntArray:
        """Who trains."""
        return self.data.parts["train"].clients

    def trainer(
        self,
        numbers: Sequence[int],
        note_rounds: IntArray,
        device: DeviceName,
        *,
        best: bool = True,
        precision: Precision | None = None,
        workers: int | None = None,
    ) -> LaneTrainer:
        """What trains the trials with these numbers; in the order given they are its trials 0, 1, …"""
        hardware = Hardware(device, threads=1, dtype=self.dtype, precision=precision or self.precision)
        wanted = [self.settings[number] for number in numbers]
        trials = make_trials(wanted, self._build, len(self.clients), self.horizon)
        return LaneTrainer(self._scene(), trials, hardware, note_rounds, best, workers)

    def arrays(self) -> dict[str, AnyArray]:
        """All of it, to be written to a file."""
        about = {
            "spec": asdict(self.spec),
            "task": dict(self.task),
            "selector": dict(self.selector),
            "client_lr_schedule": dict(self.client_lr_schedule),
            "server_lr_schedule": dict(self.server_lr_schedule),
            "rounds": self.rounds,
            "horizon": self.horizon,
            "dtype": self.dtype,
            "precision": self.precision,
            "settings": [asdict(one) for one in self.settings],
        }
        found: dict[str, AnyArray] = {_ABOUT: np.array(json.dumps(about))}
        for part, stored in self.data.parts.items():
            found[f"{part}/{_CLIENTS}"], found[f"{part}/{_OFFSETS}"] = stored.clients, stored.samples.offsets
            found |= {f"{part}/{_COLUMN}{name}": values for name, values in stored.samples.columns.items()}
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, AnyArray]) -> CarriedTrials:
        """What `arrays` gave."""
        about = json.loads(str(arrays[_ABOUT]))
        parts: dict[Any, CarriedPart] = {}
        for part in ("train", "validation", "test"):
            if f"{part}/{_CLIENTS}" not in arrays:
                continue
            begin = f"{part}/{_COLUMN}"
            columns = {key.removeprefix(begin): arrays[key] for key in arrays if key.startswith(begin)}
            samples = CarriedSamples(columns, arrays[f"{part}/{_OFFSETS}"])
            parts[part] = CarriedPart(arrays[f"{part}/{_CLIENTS}"], samples)
        settings = [
            TrialSettings(**one | {"local": LocalTraining(**one["local"])})  # the rest is as it was
            for one in about.pop("settings")
        ]
        return cls(data=CarriedData(parts), spec=_spec(about.pop("spec")), settings=settings, **about)

    def _build(self, model: ModelSettings, seed: int) -> Task:
        options, task_options = dict(model), dict(self.task)
        kind = task_class(task_options.pop("name"), self.spec)
        spec = kind.model_spec(self.spec)

        def make_task(module: Any) -> Task:
            return kind(module, spec, **task_options)

        return make_task(build_model(options.pop("name"), spec, options, seed, make_task))

    def _scene(self) -> Scene:
        return Scene(
            self.data,
            self.clients,
            {part: stored.clients for part, stored in self.data.parts.items()},
            _make(SELECTORS, self.selector),
            self.rounds,
            self._scale(self.client_lr_schedule),
            self._scale(self.server_lr_schedule),
        )

    def _scale(self, settings: NamedPart) -> Any:
        if settings["name"] == "constant":
            return None
        schedule = _make(SCHEDULES, settings)
        schedule.prepare(self.horizon)
        return schedule.scale


def _make(registry: Any, settings: NamedPart) -> Any:
    options = dict(settings)
    return registry.get(options.pop("name"))(**options)


def _spec(about: dict[str, Any]) -> DataSpec:
    """The form of samples as it was before it was written: JSON has no tuples."""
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in about.items()}
    inputs = tuple(InputSpec(one["name"], tuple(one["shape"]), one["values"]) for one in about["inputs"])
    return DataSpec(**plain | {"inputs": inputs})
