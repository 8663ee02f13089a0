"""What a task and a model of somebody's own do with a sample's neighbours in a batch, found out by trying.

Scores of a client must not depend on whose samples happen to be scored with its own, and a batch may be filled up with
samples that do not count. Ours keep to that; others are tried on samples whose neighbours are exchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import torch
from torch import nn

from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own
from fedarena.core.seeding import seeded
from fedarena.metrics.totals import COUNT, value_of
from fedarena.models.copying import copy_of
from fedarena.models.tasks import Task, Tensors

_SAMPLES = 5
_PADDED, _PADDING = 3, 6  # samples of a batch that count, and more others, so that a median is one of these
# How many times as large inputs are as others, and whether a model would have their labels: what a threshold, a maximum
# or a median of a batch makes of ordinary neighbours may be nothing.
_EXTREMES = ((1.0, True), (1.0, False), (100.0, True), (-100.0, False))
_LIBRARIES = ("fedarena.", "torch.", "transformers.")
_ROUNDING = 1e-3  # of the largest number that a model puts out


@contextmanager
def in_mode(task: Task, training: bool) -> Iterator[None]:
    """The model while it is trained or scored; afterwards its layers are in the modes that they were in."""
    modes = {part: part.training for part in task.module.modules()}
    task.module.train(training)
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _sample_and_neighbours(task: Task) -> tuple[Tensors, Tensors]:
    """Two batches that share their first sample alone; labels differ as well."""
    device = next(task.module.parameters()).device
    example = task.batch({name: t.to(device) for name, t in task.example(_SAMPLES).items()})
    one = task.meaningless(example, torch.Generator().manual_seed(1))
    other = task.meaningless(example, torch.Generator().manual_seed(2))
    other["y"] = torch.zeros_like(other["y"]) + (100 if other["y"].is_floating_point() else 0)
    neighbours = {name: torch.cat([values[:1], other[name][1:]]) for name, values in one.items()}
    return one, neighbours


def made_up_batch(task: Task, samples: int, seed: int) -> Tensors:
    """So many samples that mean nothing, as a client has them in a step."""
    device = next(task.module.parameters()).device
    example = task.batch({name: values.to(device) for name, values in task.example(samples).items()})
    key = torch.zeros((), dtype=torch.int64, device=device)
    return {**task.meaningless(example, torch.Generator().manual_seed(seed)), "key": key}


def counts_padding(task: Task) -> bool:
    """Whether the loss of a batch depends on samples that its mask leaves out."""
    one, other = _sample_and_neighbours(task)
    alone = {name: values[:1] for name, values in one.items()}
    params = _drawn(task)
    key = {"key": torch.zeros((), dtype=torch.int64, device=one["y"].device)}
    with in_mode(task, training=True), torch.no_grad():
        losses = []
        for batch in (one, other, alone):
            counting = torch.zeros(_SAMPLES).to(next(iter(params.values())))
            counting[0] = 1
            mask = {} if batch is alone else {"mask": counting}
            with seeded(0):
                losses.append(task.loss(params, {**batch, **mask, **key}))
    together, with_another, by_itself = losses
    if not (torch.equal(together, with_another) and torch.allclose(together, by_itself, rtol=1e-3, atol=1e-5)):
        return True
    return _may_couple_samples(task) and _counts_extreme_padding(task)


def has_own_layers(module: nn.Module) -> bool:
    """Whether a layer of a model is neither ours nor a library's."""
    return any(not type(part).__module__.startswith(_LIBRARIES) for part in module.modules())


def _may_couple_samples(task: Task) -> bool:
    return has_own_layers(task.module) or is_own(type(task))


def _copy_to_try(task: Task) -> tuple[Task, Tensors] | None:
    """A copy, which may remember extreme samples, with parameters to try; None if there can be none.

    It is on the CPU: on a GPU, an index that is too large would end the process.
    """
    try:
        tried = copy.deepcopy(task, {id(task.module): copy_of(task.module).cpu()})
    except Exception:  # somebody's own may hold anything
        return None
    return tried, _drawn(tried)


def _extreme(task: Task, params: Tensors, batch: Tensors, scale: float, easy: bool) -> Tensors:
    """A batch of larger inputs, whose labels are what the model puts out for them, or what it does least."""
    scaled = {
        name: scale * values if name in task.inputs and values.is_floating_point() else values
        for name, values in batch.items()
    }
    with torch.no_grad(), seeded(0):
        outputs = task.predict(params, scaled)
    y = batch["y"]
    if y.is_floating_point() and outputs.numel() == y.numel():
        scaled["y"] = outputs.view_as(y).to(y) + (0 if easy else 100)
    elif not y.is_floating_point() and outputs.shape[:-1] == y.shape:
        scaled["y"] = (outputs.argmax(-1) if easy else outputs.argmin(-1)).to(y)
    return scaled


def _counts_extreme_padding(task: Task) -> bool:
    """The same for samples of many kinds, and neighbours of many kinds; also of the loss's gradient.

    Whoever cannot compute such samples, or not in finite numbers, says nothing.
    """
    copied = _copy_to_try(task)
    if copied is None:
        return False
    task, params = copied
    params = {name: p.requires_grad_() for name, p in params.items()}
    counting = torch.cat([torch.ones(_PADDED), torch.zeros(_PADDING)]).to(next(iter(params.values())))
    key = torch.zeros((), dtype=torch.int64)

    def made_up(samples: int, seed: int) -> Tensors:
        return task.meaningless(task.batch(task.example(samples)), torch.Generator().manual_seed(seed))

    def loss_and_gradient(batch: Tensors) -> list[torch.Tensor]:
        with torch.enable_grad(), seeded(0):
            loss = task.loss(params, batch)
            gradients = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        return [loss.detach(), *(g for g in gradients if g is not None)]

    with in_mode(task, training=True):
        try:
            kinds = ((1.0, False), (30.0, True), (-30.0, False))
            each = [_extreme(task, params, made_up(1, 10 + n), *kind) for n, kind in enumerate(kinds)]
            samples = {name: torch.cat([one[name] for one in each]) for name in each[0]}
            found = [loss_and_gradient({**samples, "key": key})]
        except Exception:
            return False
        for kind in _EXTREMES:
            try:
                others = _extreme(task, params, made_up(_PADDING, 20), *kind)
                padded = {name: torch.cat([values, others[name]]) for name, values in samples.items()}
                found.append(loss_and_gradient({**padded, "mask": counting, "key": key}))
            except Exception:
                continue
    finite = [numbers for numbers in found if all(bool(t.isfinite().all()) for t in numbers)]
    return any(
        len(numbers) != len(finite[0]) or not all(map(nearly_same, finite[0], numbers)) for numbers in finite[1:]
    )


def _check_batches(task: Task) -> None:
    """Refuses a task of somebody's own whose batches are not what every sample comes to by itself.

    Engines make batches of whom they like: of one client's samples, of many clients', with others that fill it up.
    """
    if not is_own(type(task)):
        return
    device = next(task.module.parameters()).device
    random = torch.Generator().manual_seed(3)
    columns = {name: t.to(device) for name, t in task.drawn_example(_SAMPLES, random).items()}
    if "y" in columns:
        y = columns["y"]
        each = torch.tensor([0, 0, 1, 2, 3], device=device).view(-1, *[1] * (y.dim() - 1))  # the first one has a twin
        classes = 2 if task.predicts == "labels" else max(task.spec.classes, 1)
        columns["y"] = y + each if y.is_floating_point() else (y + each) % classes
    for name in columns.keys() & set(task.inputs):
        if columns[name].is_floating_point():
            columns[name][1:] *= 100  # so that a maximum is a neighbour's

    def made(columns: Tensors, seed: int) -> Tensors:
        with torch.no_grad(), seeded(seed):
            return task.batch({name: values.clone() for name, values in columns.items()})

    together = made(columns, 0)
    for name, values in together.items():
        if values.dim() == 0 or len(values) != _SAMPLES:
            raise BadInputError(
                f"The task {type(task).__name__} makes a batch with {name!r} of shape {list(values.shape)} of "
                f"{_SAMPLES} samples; every tensor in it has a row for each of them"
            )
    again = made(columns, 1)
    if again.keys() != together.keys() or not all(_same(together[name], again[name]) for name in together):
        raise BadInputError(
            f"The task {type(task).__name__} makes another batch of the same samples when it is asked again; what it "
            "draws or remembers would be another one on another engine, so let a loss or an augmentation draw"
        )
    alone = made({name: values[:1] for name, values in columns.items()}, 0)
    turned_round = {
        name: values.flip(0) for name, values in made({n: t.flip(0) for n, t in columns.items()}, 0).items()
    }
    for other in (alone, turned_round):
        if other.keys() != together.keys() or not all(
            nearly_same(together[name][:1], values[:1]) for name, values in other.items()
        ):
            raise BadInputError(
                f"The task {type(task).__name__} makes something else of a sample when others are beside it in a "
                "batch, or elsewhere, so that it would depend on engines; a loss may look at all samples of a step"
            )


def check_scores_apart(task: Task) -> None:
    """Refuses a model, a task or a metric whose score of a sample depends on the others in the batch."""
    _check_batches(task)
    one, other = _sample_and_neighbours(task)
    params = _drawn(task)
    with in_mode(task, training=False), torch.no_grad():
        found = []
        for batch in (one, one, other):
            with seeded(0):
                outputs = task.predict(params, batch)
            with seeded(0):
                found.append((outputs, task.measure(params, batch)))
        with seeded(1):
            drawn_anew = task.predict(params, one)
            measured_anew = task.measure(params, one)
        with seeded(0):
            turned_round = task.predict(params, {name: values.flip(0) for name, values in one.items()}).flip(0)
        with seeded(0):
            alone = task.predict(params, {name: values[:1] for name, values in one.items()})
    if not _same_first(found[0][0], found[1][0]):
        raise BadInputError(
            f"The model {type(task.module).__name__} puts out something else when it is called again with the same "
            "samples; what it remembers between calls would leak from one client to the next"
        )
    if not _same_first(found[0][0], drawn_anew):
        raise BadInputError(
            f"The model {type(task.module).__name__} draws random numbers while it is scored, so a score would depend "
            "on what was scored before it; let it draw while it is trained alone (`if self.training`)"
        )
    del found[0]
    outputs = found[0][0]
    # Rows of a product may differ in their last bits, by where they are.
    in_any_order = nearly_same(outputs, turned_round) and nearly_same(outputs[:1], alone)
    companies = list(_in_any_company(task, one)) if _may_couple_samples(task) else []
    in_any_company = all(nearly_same(companies[0][0], others) for others, _ in companies)
    if not _same_first(outputs, found[1][0]) or not in_any_order or not in_any_company:
        raise BadInputError(
            f"What the model {type(task.module).__name__} puts out for a sample depends on the other samples in the "
            "batch, so no client could be scored by itself; normalize within samples (LayerNorm, GroupNorm) instead"
        )
    for name, states in found[0][1].items():
        if states.dim() == 0 or len(states) != _SAMPLES:
            shape = list(states.shape)
            raise BadInputError(
                f"{_of(task, name)} must give a state for each of {_SAMPLES} samples, but gave one of shape {shape}"
            )
        if not _same(states, measured_anew[name]):
            raise BadInputError(
                f"{_of(task, name)} draws random numbers or remembers something, so a score would depend on what was "
                "scored before it; what is measured must follow from outputs and labels"
            )
        in_any_company = all(nearly_same(companies[0][1][name], others[name]) for _, others in companies)
        if not _same_first(states, found[1][1][name]) or not in_any_company:
            raise BadInputError(
                f"{_of(task, name)} gives a sample a state that depends on the other samples in the batch, so no "
                "client could be scored by itself; states are added up over samples for you"
            )
    _check_nothing_is_changed(task, outputs, one)
    _check_values(task, found[0][1])


def _in_any_company(task: Task, batch: Tensors) -> Iterator[tuple[torch.Tensor, Tensors]]:
    """What is put out and measured for the first sample of a batch, beside its neighbours and beside extreme ones.

    Whoever cannot compute such samples says nothing.
    """
    copied = _copy_to_try(task)
    if copied is None:
        return
    task, params = copied
    batch = {name: values.cpu() for name, values in batch.items()}
    scales = (1.0,) if task.spec.is_image or task.spec.is_audio else (1.0, 100.0)  # numbers of media are small
    for kind in (None, *product(scales, (True, False))):
        try:
            with in_mode(task, training=False), torch.no_grad():
                other = batch if kind is None else _extreme(task, params, batch, *kind)
                mixed = {name: torch.cat([values[:1], other[name][1:]]) for name, values in batch.items()}
                with seeded(0):
                    outputs = task.predict(params, mixed)
                with seeded(0):
                    measured = task.measure(params, mixed)
            found = outputs[:1], {name: states[:1] for name, states in measured.items()}
        except Exception:
            continue
        yield found


def _check_nothing_is_changed(task: Task, outputs: torch.Tensor, batch: Tensors) -> None:
    """Refuses a metric that changes in place what others see as well."""
    for metric in task.metrics:
        seen = outputs.clone()
        with torch.no_grad():
            task.assess(seen, {name: values.clone() for name, values in batch.items()}, [metric])
        if not _same(seen, outputs):
            raise BadInputError(
                f"The metric {type(metric).__name__} changes what the model puts out in place, which other metrics see "
                "as well; make a new tensor instead"
            )


def _check_values(task: Task, measured: Tensors) -> None:
    """Refuses a metric that does not make one value of every sum of states, by itself.

    With as many clients as a state has numbers, one that takes them for each other would not be noticed in a run.
    """
    measured = {name: torch.nan_to_num(states.detach().double().cpu()) for name, states in measured.items()}
    for metric in task.metrics:
        if metric.name not in measured:  # it ranks all samples
            continue
        state, count = measured[metric.name], measured[COUNT]
        clients = next(number for number in range(2, 99) if number not in state.shape[1:])
        more = torch.arange(1, clients + 1, dtype=torch.float64)  # so often the first sample is there; the second once
        states = (state[0] * more.reshape(-1, *[1] * (state.dim() - 1)) + state[1]).numpy()
        counts = (count[0] * more + count[1]).numpy()
        try:
            with np.errstate(all="ignore"):
                together = value_of(metric, states, counts)
                alone = value_of(metric, states[0], counts[0])
        except (IndexError, ValueError, TypeError) as error:
            raise BadInputError(
                f"{_of(task, metric.name)} cannot make values of states of the shapes {list(states.shape)} and "
                f"{list(states.shape[1:])}, of {clients} clients and of all together ({error}); take the numbers of a "
                "state from its last axes (state[..., 0])"
            ) from error
        if not np.allclose(together[0], alone, rtol=1e-4, equal_nan=True):
            raise BadInputError(
                f"{_of(task, metric.name)} makes another value of a client's state when there are others beside it, so "
                "no client could be scored by itself; `value` gets the states of many clients, a row for each"
            )


def _drawn(task: Task) -> Tensors:
    """Parameters near those that the model begins with: large ones would saturate, and zeros hide what comes before."""
    with seeded(0):
        return {name: p.detach() + 0.1 * torch.randn_like(p) for name, p in task.module.named_parameters()}


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _same_first(one: torch.Tensor, other: torch.Tensor) -> bool:
    return _same(one[:1], other[:1])


def nearly_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they differ by no more than rounding does."""
    if one.shape != other.shape:
        return False
    first, second = (torch.nan_to_num(t.double()) for t in (one, other))
    return bool((first - second).abs().max() <= _ROUNDING * first.abs().max().clamp(min=1e-30)) if one.numel() else True


def _of(task: Task, state: str) -> str:
    metric = next((metric for metric in task.metrics if metric.info.name == state), None)
    return f"The task {type(task).__name__}" if metric is None else f"The metric {type(metric).__name__}"
