"""From names and options, which a server sends, to what a device trains with. No code ever comes from the server.

Parts of somebody's own, named ``package.module:Name``, are on the device already, put there by its user; even so they
are used only if that user has allowed their package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.algorithms import ALGORITHMS
from fedarena.client.samples import OwnSamples
from fedarena.client.trust import refuse_files, refuse_other_sources, refuse_parts_of_strangers
from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import make_part, numbered
from fedarena.core.secret_noise import SecretSource
from fedarena.models import DataSpec, InputSpec, Task
from fedarena.models.answers import answers_of, are_alike
from fedarena.models.assembling import assemble_task
from fedarena.models.trainable import constant_tensors
from fedarena.train import Algorithm, LocalTraining, ReferenceEngine
from fedarena.train.examples import example_update
from fedarena.train.own_code import prepare_algorithm
from fedarena.transforms import AGGREGATORS, TRANSFORMS, Aggregator, ClipAndNoise, Transform, UpdatePath
from fedarena.transforms.aggregators import FixedMean
from fedarena.transforms.clip import ClipForSum
from fedarena.transforms.fixed_point import FixedPoint
from fedarena.transforms.local_noise import LocalGaussian, LocalLaplace

# Transforms that privacy mechanisms consist of, as far as a device executes them; they cannot be chosen by themselves.
_OF_PRIVACY: dict[str, Callable[..., Transform]] = {
    "privacy/local_gaussian": LocalGaussian,
    "privacy/local_laplace": LocalLaplace,
    "privacy/clip_for_sum": ClipForSum,
}
_CLIPPING, _FIXED_MEAN = "privacy/clip", "privacy/fixed_mean"


@dataclass(frozen=True)
class DeviceParts:
    """What a device trains with."""

    task: Task
    algorithm: Algorithm
    engine: ReferenceEngine
    path: UpdatePath  # of which the device executes the first half, `send`


def data_spec(settings: Mapping[str, Any]) -> DataSpec:
    """The form of samples that a run is made for."""
    try:
        spec = dict(settings["data"]["spec"])
        spec["inputs"] = tuple(
            InputSpec(one["name"], tuple(one["shape"]), one["values"]) for one in spec.get("inputs", ())
        )
        for name, value in spec.items():
            if isinstance(value, list):
                spec[name] = tuple(value)
        return DataSpec(**spec)
    except (KeyError, TypeError) as error:
        raise _not_understood(error) from error


def column_form(settings: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and the shape of every column of the samples that a run is made for."""
    try:
        columns = settings["data"]["columns"].items()
        return {name: (np.dtype(dtype).name, tuple(map(int, shape))) for name, (dtype, shape) in columns}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _not_understood(error) from error


def described_spec(spec: DataSpec) -> dict[str, Any]:
    """The inverse of `data_spec`, for JSON."""
    return asdict(spec)


def build(
    settings: Mapping[str, Any],
    data: OwnSamples,
    *,
    allow: Sequence[str] = (),
    device: str = "auto",
    threads: int | None = None,
    noise: SecretSource | None = None,
) -> DeviceParts:
    """Everything that a device needs to train, from the settings of a run and its own samples.

    `noise` is where noise comes from that protects this device; None: the seed of the run, as in a simulation.
    """
    refuse_parts_of_strangers(settings, allow)
    try:
        refuse_files(settings)
        parts = _build(settings, data, device, threads, noise)
        refuse_other_sources(settings["sources"])
        return parts
    except FedArenaError:
        raise
    except Exception as error:  # what somebody else sent may fail in any way, and a sentence is all that helps
        raise _not_understood(error) from error


def _build(
    settings: Mapping[str, Any], data: OwnSamples, device: str, threads: int | None, noise: SecretSource | None
) -> DeviceParts:
    seed, engine_options = int(settings["seed"]), dict(settings["engine"])
    task = assemble_task(
        data_spec(settings),
        model=settings["model"],
        task=settings["task"],
        augmentation=settings["augmentation"],
        adaptation=settings["adaptation"],
        seed=seed,
        dtype=torch.float64 if engine_options["dtype"] == "float64" else torch.float32,
    )
    local = LocalTraining(**settings["local"])
    algorithm = make_part(ALGORITHMS, settings["algorithm"], Algorithm, "an algorithm", seed)
    prepare_algorithm(algorithm, seed, int(settings["population"]), local, int(settings["horizon"]))
    if threads is not None:
        engine_options["threads"] = threads
    engine = ReferenceEngine(task, algorithm, local, data, seed, device=device, **engine_options)  # type: ignore[arg-type]
    transforms = [make_transform(one, seed, number) for one, number in numbered(settings["transforms"])]
    secure = settings.get("secure")
    aggregator = None if secure is None else _aggregator(secure["aggregator"], seed)
    path = UpdatePath(algorithm, transforms, aggregator, seed=seed, clients_noise=noise)
    if secure is not None:
        example = example_update(algorithm, engine.initial_params())
        path.sum_securely(FixedPoint(**secure["fixed_point"]), example, secure["notes"])
    return DeviceParts(task, algorithm, engine, path)


def _aggregator(settings: Mapping[str, Any], seed: int) -> Aggregator:
    """How updates are added up: what a client adds to a secure sum depends on it."""
    if settings["name"] == _FIXED_MEAN:
        return FixedMean(float(settings["clients"]))
    return make_part(AGGREGATORS, settings, Aggregator, "an aggregator", seed)


def aggregator_settings(aggregator: Aggregator, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse: name and options of the aggregator of a run, which may be that of a privacy mechanism."""
    return {"name": _FIXED_MEAN, "clients": aggregator.clients} if isinstance(aggregator, FixedMean) else dict(chosen)


def put_constants(task: Task, constants: Mapping[str, Tensor], what: str) -> None:
    """Gives a model what is not trained, and thus not in any update: frozen weights and buffers."""
    own = constant_tensors(task.module)
    if own.keys() != constants.keys():
        odd = sorted(own.keys() ^ constants.keys())[0]
        raise BadInputError(f"{what} does not fit the model: {quoted(odd)} is in one of them alone")
    for name, t in constants.items():
        if t.shape != own[name].shape:
            raise BadInputError(f"{what} does not fit the model: {quoted(name)} is of shape {list(t.shape)}")
    with torch.no_grad():
        for name, t in constants.items():
            own[name].copy_(t)


def refuse_another_model(task: Task, settings: Mapping[str, Any]) -> None:
    """Refuses a model that computes something else than at the server, of which sources alone do not tell."""
    expected = settings.get("answers")
    if expected is None:
        return
    try:
        alike = are_alike([float(answer) for answer in expected], answers_of(task))
    except (TypeError, ValueError) as error:
        raise _not_understood(error) from error
    if not alike:
        raise BadInputError(
            f"The model {type(task.module).__name__} computes something else here than at the server, though its "
            "source is the same; it may follow the order of a set of texts, which differs from one Python process to "
            "the next, or an environment variable"
        )


def make_transform(settings: Mapping[str, Any], seed: int, number: int) -> Transform:
    """A transform from its name and options, as at the server; also one that a privacy mechanism brings with it."""
    options = dict(settings)
    name = options.pop("name")
    if name == _CLIPPING:
        error = options.pop("rounding_error", 0.0)
        clip = ClipAndNoise(**options, noise_multiplier=0.0, clients=1.0)  # noise is the server's
        clip.rounding_error = error
        return clip
    if name in _OF_PRIVACY:
        return _OF_PRIVACY[name](**options)
    return make_part(TRANSFORMS, settings, Transform, "a transform", seed, number)


def private_transform_settings(transform: Transform) -> dict[str, Any] | None:
    """Name and options of a transform that a privacy mechanism brings with it; None if devices cannot execute it."""
    if isinstance(transform, ClipAndNoise):
        settings = {"name": _CLIPPING, "norm": transform.norm, "per_layer": transform.per_layer}
        return settings | ({"rounding_error": transform.rounding_error} if transform.rounding_error else {})
    if type(transform) is ClipForSum:
        return {"name": "privacy/clip_for_sum", "bound": transform.bound}
    if type(transform) is LocalGaussian:
        return {"name": "privacy/local_gaussian", "bound": transform.bound, "std": transform.std}
    if type(transform) is LocalLaplace:
        return {"name": "privacy/local_laplace", "bound": transform.bound, "scale": transform.scale}
    return None


def _not_understood(error: Exception) -> BadInputError:
    return BadInputError(f"The server's settings cannot be used here: {quoted(repr(error))}; are both of one version?")
