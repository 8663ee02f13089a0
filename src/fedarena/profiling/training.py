"""Timing training steps: which data a model is measured on, and what one step of it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from fedarena.core.errors import BadInputError, FedArenaError, RunFailedError
from fedarena.core.streams import torch_seed
from fedarena.models import MODELS, DataSpec, InputSpec, Task, build_model, make_task, trainable_parameters
from fedarena.models.sizes import USUAL_DATA
from fedarena.profiling.memory import MemoryWatch
from fedarena.profiling.power import PowerMeter
from fedarena.profiling.statistics import Clock, summarize, time_calls
from fedarena.train import LocalTraining, count_training_flops
from fedarena.train.optimizers import optimizer_init, optimizer_step

# FEMNIST's, CIFAR-10's, LEAF's Shakespeare's and Sent140's.
HANDWRITING = DataSpec("classification", classes=62, input_shape=(1, 28, 28))
PHOTOS = DataSpec("classification", classes=10, input_shape=(3, 32, 32))
TEXT = DataSpec("next_token", classes=80, input_shape=(80,))
TWEETS = DataSpec("classification", classes=2, input_shape=(25,), padding=0, unknown=1, tokens=10_000)
RATINGS = DataSpec(  # MovieLens 100K's
    "rating", 1, (), inputs=(InputSpec("user", (), 943), InputSpec("item", (), 1682)), value_range=(1.0, 5.0)
)
MOLECULES = DataSpec(  # MUTAG's
    "classification", 2, (), inputs=(InputSpec("x", (28, 7)), InputSpec("edges", (61, 2), 29))
)
_FOR_PHOTOS = ("resnet", "mobilenet", "shufflenet", "vit")  # how their names begin
_SEED = 0
# So small that no weights grow beyond bounds, whatever the model: labels are drawn, there is nothing to learn.
_TRAINING = LocalTraining(lr=1e-4)

Progress = Callable[[str, int, int], None]


def data_for(model: str) -> DataSpec:
    """The form of the samples that a model is measured on: photos, or the first of handwriting and texts that fits.

    Models for other data have the form that they are usually used on.
    """
    MODELS.get(model)
    specs = [HANDWRITING, TEXT, PHOTOS, TWEETS, RATINGS, MOLECULES]
    if model.startswith(_FOR_PHOTOS):
        specs.insert(0, PHOTOS)
    if model in USUAL_DATA:
        specs.append(USUAL_DATA[model])
    refusals = []
    for spec in specs:
        try:
            build_model(model, spec, {}, _SEED)
        except BadInputError as error:
            refusals.append(error)
        else:
            return spec
    raise refusals[0]


def measure_model(
    model: str,
    spec: DataSpec,
    *,
    device: torch.device,
    batch_size: int,
    warmup: int,
    iterations: int,
    meter: PowerMeter | None,
    meter_seconds: float,
    progress: Progress,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """What the record says about one model on data of this form.

    Steps are timed first. If there is a meter, more of them follow for `meter_seconds`, because it tells nothing about
    moments and reading it may slow a step down.
    """
    memory = MemoryWatch()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        task = make_task(build_model(model, spec, {}, _SEED).to(device), spec)
        step = training_step(task, random_batch(task, spec, batch_size, device), device)
        for done in range(warmup):
            progress(f"{model}: warming up", done, warmup)
            step()
        seconds: list[float] = []
        while len(seconds) < iterations:
            progress(f"{model}: training steps", len(seconds), iterations)
            seconds += time_calls(step, 1, clock)
        grown = memory.growth_bytes()
        watts = None if meter is None else _load_watts(step, meter, meter_seconds, clock, progress, model)
        flops = _counted_flops(task)
    except FedArenaError:
        raise
    except (RuntimeError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunFailedError(
            f"The model {model!r} cannot be trained here with a batch size of {batch_size}: {reason:.200}"
        ) from error
    per_sample = summarize([value / batch_size for value in seconds])
    mean = per_sample["mean"]
    assert mean is not None
    return {
        "model": model,
        "data": {"kind": spec.kind, "classes": spec.classes, "input_shape": list(spec.input_shape)},
        "parameters": sum(p.numel() for p in task.module.parameters()),
        "batch_size": batch_size,
        "warmup": warmup,
        "iterations": iterations,
        "seconds_per_step": summarize(seconds),
        "seconds_per_sample": per_sample,
        "flops_per_sample": flops,
        "flops_per_second": flops / mean if flops and mean else None,
        "memory_growth_bytes": grown,
        "gpu_memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "watts": watts,
        "joules_per_sample": None if watts is None else watts * mean,
    }


def _counted_flops(task: Task) -> float | None:
    """Operations per sample; counting loads parts of torch that need packages which phones may not have."""
    try:
        return count_training_flops(task)
    except ImportError:
        return None


def random_batch(task: Task, spec: DataSpec, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Inputs and labels that are drawn: zeros would cost a GPU less power."""
    batch = task.batch(task.example(batch_size))
    random = torch.Generator().manual_seed(torch_seed(_SEED, "profiling"))
    drawn = task.meaningless(batch, random)
    if not drawn["y"].is_floating_point():
        drawn["y"] = torch.randint(spec.classes, drawn["y"].shape, generator=random)
    return {name: values.to(device) for name, values in drawn.items()} | {"key": torch.tensor(_SEED, device=device)}


def training_step(task: Task, batch: dict[str, torch.Tensor], device: torch.device) -> Callable[[], None]:
    """A step as a client takes it: loss, gradient, SGD; done when the device is done."""
    params = {name: p.detach().clone() for name, p in trainable_parameters(task.module).items()}
    state = optimizer_init(_TRAINING, params)
    task.module.train()
    number = 0

    def step() -> None:
        nonlocal params, state, number
        number += 1
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        loss = task.loss(leaves, batch)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        named = dict(zip(leaves, gradients, strict=True))
        with torch.no_grad():
            params, state = optimizer_step(_TRAINING, params, named, state, number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def _load_watts(
    step: Callable[[], None], meter: PowerMeter, seconds: float, clock: Clock, progress: Progress, model: str
) -> float | None:
    end = clock() + seconds
    meter.start()
    try:
        while (left := end - clock()) > 0:
            progress(f"{model}: measuring power", round(seconds - left), round(seconds))
            step()
    finally:
        watts = meter.stop()
    return watts
