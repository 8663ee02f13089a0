"""Group normalization of pictures whose channels are innermost in memory, as kernels for a GPU.

Pictures are ``[samples, pixels, channels]`` here. Plain operations would go through memory a dozen times, and small
clients would wait for how many operations there are. Here, pixels are divided into parts: of every part and channel
mean and spread are noted, then those of groups follow from them, and a last kernel reads and writes every number once.
The gradient takes the same three steps. All sums have a fixed order, so that the same numbers give the same bits.

A ReLU that follows is applied at once: ``CEILING`` is None where there is none, 0 if it has no ceiling. Pictures that
are small enough need a single kernel, see `small_group_norm_kernels`.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHANNELS = 32  # of a block: as many as memory gives at once
_PIXELS = 32
_PIXELS_NOTED, _BLOCKS_NOTED = 16, 16  # of a part, of which notes are made: fewer at once, as sums need room
_NOTES = 256  # of parts, that are read at once
_BLOCKS = 64
_SAMPLES = 32
_WARPS = 1
_STAGES = 3  # blocks that are on their way from memory
# Numbers for which no kernels of their own are made. That there are 16 channels or a multiple makes reading faster.
_ANY = ["pixels", "groups", "blocks"]


@triton.jit
def activated(values: tl.tensor, CEILING: tl.constexpr) -> tl.tensor:
    """The ReLU of values; what is not a number stays none."""
    if CEILING is not None:
        values = tl.where(values < 0, 0.0, values)
        if CEILING > 0:
            values = tl.where(values > CEILING, CEILING, values)
    return values


@triton.jit
def passed_back(slope: tl.tensor, values: tl.tensor, CEILING: tl.constexpr) -> tl.tensor:
    """The gradient of values, from that of their ReLU."""
    if CEILING is not None:
        slope = tl.where(values <= 0, 0.0, slope)
        if CEILING > 0:
            slope = tl.where(values >= CEILING, 0.0, slope)
    return slope


@triton.jit
def _block(
    pixels: tl.tensor, channels: tl.tensor, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The sample of this program's block, where in it the numbers ``[pixels, channels]`` lie, which exist; channels.

    Programs that start one after the other take neighbouring channels, so that lines of memory are read once.
    """
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    return tl.program_id(2), pixel[:, None] * channels + channel[None, :], inside, channel


@triton.jit(do_not_specialize=_ANY)
def _note_parts(
    x: tl.tensor,
    means: tl.tensor,
    spreads: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    ACCURATE: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Mean and squared distances from it, of every channel of a part, which has some blocks.

    What is added up are distances from the mean of the first block, so that large numbers do not cancel each other.
    """
    sample, part = tl.program_id(2), tl.program_id(1)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    exists, begin = channel < channels, part * PIXELS * BLOCKS
    x += sample.to(tl.int64) * pixels * channels
    pixel = begin + tl.arange(0, PIXELS)
    inside = (pixel < pixels)[:, None] & exists[None, :]
    values = tl.load(x + pixel[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(ACCURATE)
    middle = tl.sum(values, 0) / tl.minimum(pixels - begin, PIXELS)
    total = tl.where(inside, values - middle[None, :], 0.0)
    squares = total * total
    for block in tl.range(begin + PIXELS, tl.minimum(begin + PIXELS * BLOCKS, pixels), PIXELS, num_stages=STAGES):
        pixel = block + tl.arange(0, PIXELS)
        inside = (pixel < pixels)[:, None] & exists[None, :]
        values = tl.load(x + pixel[:, None] * channels + channel[None, :], mask=inside, other=0.0).to(ACCURATE)
        distance = tl.where(inside, values - middle[None, :], 0.0)
        total += distance
        squares += distance * distance
    count = tl.minimum(pixels - begin, PIXELS * BLOCKS)
    beside = tl.sum(total, 0) / count
    spread = tl.sum(squares, 0) - count * beside * beside
    note = (sample * tl.num_programs(1) + part) * channels + channel
    tl.store(means + note, middle + beside, mask=exists)
    tl.store(spreads + note, tl.where(spread < 0, 0.0, spread), mask=exists)


@triton.jit(do_not_specialize=_ANY)
def _join_parts(
    means: tl.tensor,
    spreads: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    blocks: tl.tensor,
    EPSILON: tl.constexpr,
    ACCURATE: tl.constexpr,
    PIXELS: tl.constexpr,
    NOTES: tl.constexpr,
) -> None:
    """Mean and inverse deviation of a sample's group, from those of its parts and channels."""
    sample, group = tl.program_id(0), tl.program_id(1)
    width = channels // groups
    first = sample * blocks * channels + group * width
    count = pixels * width
    total = tl.zeros([NOTES], ACCURATE)
    for begin in range(0, blocks * width, NOTES):
        number = begin + tl.arange(0, NOTES)
        block = number // width
        exists = number < blocks * width
        weight = tl.minimum(pixels - block * PIXELS, PIXELS)
        found = tl.load(means + first + block * channels + number % width, mask=exists, other=0.0)
        total += tl.where(exists, weight * found, 0.0)
    center = tl.sum(total, 0) / count
    spread = tl.zeros([NOTES], ACCURATE)
    for begin in range(0, blocks * width, NOTES):
        number = begin + tl.arange(0, NOTES)
        block = number // width
        exists = number < blocks * width
        weight = tl.minimum(pixels - block * PIXELS, PIXELS)
        note = first + block * channels + number % width
        distance = tl.load(means + note, mask=exists, other=0.0) - center
        within = tl.load(spreads + note, mask=exists, other=0.0)
        spread += tl.where(exists, within + weight * distance * distance, 0.0)
    place = sample * groups + group
    tl.store(mean + place, center)
    tl.store(inverse + place, 1 / tl.sqrt(tl.sum(spread, 0) / count + EPSILON))


@triton.jit(do_not_specialize=_ANY)
def _normalize(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    output: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    CEILING: tl.constexpr,
    ACCURATE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    sample, where, inside, channel = _block(pixels, channels, PIXELS, CHANNELS)
    begin = sample.to(tl.int64) * pixels * channels
    exists = channel < channels
    group = sample * groups + channel // (channels // groups)
    center = tl.load(mean + group, mask=exists, other=0.0)
    scale = tl.load(inverse + group, mask=exists, other=0.0) * tl.load(weight + channel, mask=exists, other=0.0)
    shift = tl.load(bias + channel, mask=exists, other=0.0)
    values = tl.load(x + begin + where, mask=inside, other=0.0).to(ACCURATE)
    result = (values - center[None, :]) * scale[None, :] + shift[None, :]
    tl.store(output + begin + where, activated(result, CEILING), mask=inside)


@triton.jit(do_not_specialize=_ANY)
def _note_gradients(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    sums: tl.tensor,
    products: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    CEILING: tl.constexpr,
    ACCURATE: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Of every channel of a part, the sum of gradients and of their products with what was normalized."""
    sample, part = tl.program_id(2), tl.program_id(1)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    exists, begin = channel < channels, part * PIXELS * BLOCKS
    x += sample.to(tl.int64) * pixels * channels
    grad += sample.to(tl.int64) * pixels * channels
    group = sample * groups + channel // (channels // groups)
    center = tl.load(mean + group, mask=exists, other=0.0)
    scale = tl.load(inverse + group, mask=exists, other=0.0)
    factor = scale * tl.load(weight + channel, mask=exists, other=0.0)
    shift = tl.load(bias + channel, mask=exists, other=0.0)
    total = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    of_product = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    for block in tl.range(begin, tl.minimum(begin + PIXELS * BLOCKS, pixels), PIXELS, num_stages=STAGES):
        pixel = block + tl.arange(0, PIXELS)
        inside = (pixel < pixels)[:, None] & exists[None, :]
        where = pixel[:, None] * channels + channel[None, :]
        distance = tl.load(x + where, mask=inside, other=0.0).to(ACCURATE) - center[None, :]
        slope = tl.load(grad + where, mask=inside, other=0.0).to(ACCURATE)
        slope = passed_back(slope, distance * factor[None, :] + shift[None, :], CEILING)
        total += slope
        of_product += slope * distance
    note = (sample * tl.num_programs(1) + part) * channels + channel
    tl.store(sums + note, tl.sum(total, 0), mask=exists)
    tl.store(products + note, tl.sum(of_product, 0) * scale, mask=exists)


@triton.jit(do_not_specialize=_ANY)
def _join_gradients(
    sums: tl.tensor,
    products: tl.tensor,
    weight: tl.tensor,
    of_samples: tl.tensor,
    of_groups: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    blocks: tl.tensor,
    ACCURATE: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """The same of all parts together, for every channel of a sample; and their weighted means over its group."""
    samples = tl.num_programs(0)
    sample, group = tl.program_id(0), tl.program_id(1)
    width = channels // groups
    mean_sum = tl.zeros([CHANNELS], ACCURATE)
    mean_product = tl.zeros([CHANNELS], ACCURATE)
    for begin in range(0, width, CHANNELS):
        inner = begin + tl.arange(0, CHANNELS)
        exists = inner < width
        channel = group * width + inner
        total = tl.zeros([BLOCKS, CHANNELS], ACCURATE)
        of_product = tl.zeros([BLOCKS, CHANNELS], ACCURATE)
        for first in range(0, blocks, BLOCKS):
            block = first + tl.arange(0, BLOCKS)
            inside = (block < blocks)[:, None] & exists[None, :]
            note = (sample * blocks + block[:, None]) * channels + channel[None, :]
            total += tl.load(sums + note, mask=inside, other=0.0)
            of_product += tl.load(products + note, mask=inside, other=0.0)
        channel_sum, channel_product = tl.sum(total, 0), tl.sum(of_product, 0)
        place = sample * channels + channel
        tl.store(of_samples + place, channel_product, mask=exists)
        tl.store(of_samples + samples * channels + place, channel_sum, mask=exists)
        factor = tl.load(weight + channel, mask=exists, other=0.0)
        mean_sum += factor * channel_sum
        mean_product += factor * channel_product
    place = sample * groups + group
    tl.store(of_groups + place, tl.sum(mean_sum, 0) / (pixels * width))
    tl.store(of_groups + samples * groups + place, tl.sum(mean_product, 0) / (pixels * width))


@triton.jit(do_not_specialize=["samples"])
def _add_samples(
    of_samples: tl.tensor,
    sums: tl.tensor,
    samples: tl.tensor,
    channels: tl.tensor,
    ACCURATE: tl.constexpr,
    SAMPLES: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """The sums over samples, of gradients and of products."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    kind = tl.program_id(1)
    total = tl.zeros([SAMPLES, CHANNELS], ACCURATE)
    for first in range(0, samples, SAMPLES):
        sample = first + tl.arange(0, SAMPLES)
        inside = (sample < samples)[:, None] & exists[None, :]
        place = (kind * samples + sample[:, None]) * channels + channel[None, :]
        total += tl.load(of_samples + place, mask=inside, other=0.0)
    tl.store(sums + kind * channels + channel, tl.sum(total, 0), mask=exists)


@triton.jit(do_not_specialize=_ANY)
def _gradient(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    of_groups: tl.tensor,
    output: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    CEILING: tl.constexpr,
    ACCURATE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    sample, where, inside, channel = _block(pixels, channels, PIXELS, CHANNELS)
    begin = sample.to(tl.int64) * pixels * channels
    exists = channel < channels
    group = sample * groups + channel // (channels // groups)
    center = tl.load(mean + group, mask=exists, other=0.0)
    scale = tl.load(inverse + group, mask=exists, other=0.0)
    mean_sum = scale * tl.load(of_groups + group, mask=exists, other=0.0)
    mean_product = scale * scale * tl.load(of_groups + tl.num_programs(2) * groups + group, mask=exists, other=0.0)
    factor = scale * tl.load(weight + channel, mask=exists, other=0.0)
    distance = tl.load(x + begin + where, mask=inside, other=0.0).to(ACCURATE) - center[None, :]
    slope = tl.load(grad + begin + where, mask=inside, other=0.0).to(ACCURATE)
    if CEILING is not None:
        shift = tl.load(bias + channel, mask=exists, other=0.0)
        slope = passed_back(slope, distance * factor[None, :] + shift[None, :], CEILING)
    result = slope * factor[None, :] - mean_sum[None, :] - distance * mean_product[None, :]
    tl.store(output + begin + where, result, mask=inside)


def normalized(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, epsilon: float, ceiling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalized pictures ``[samples, pixels, channels]``, means, and inverse deviations."""
    _, pixels, channels = x.shape
    mean, inverse = statistics(x, groups, weight, epsilon)
    output = torch.empty_like(x)
    grid, form = _division(x, _PIXELS)
    known = (x, weight, bias, mean, inverse, output, pixels, channels, groups)
    _normalize[grid](*known, CEILING=ceiling, ACCURATE=accurate_type(weight), PIXELS=_PIXELS, **form)
    return output, mean, inverse


def statistics(x: Tensor, groups: int, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Means and inverse deviations of the groups of every sample, as exact as weights."""
    samples, pixels, channels = x.shape
    accurate = accurate_type(weight)
    grid, form = _division(x, _PIXELS_NOTED * _BLOCKS_NOTED)
    parts = grid[1]
    notes = weight.new_empty(2, samples, parts, channels)
    mean, inverse = weight.new_empty(2, samples, groups).unbind()
    _note_parts[grid](
        *(x, notes[0], notes[1], pixels, channels),
        ACCURATE=accurate,
        PIXELS=_PIXELS_NOTED,
        BLOCKS=_BLOCKS_NOTED,
        STAGES=_STAGES,
        **form,
    )
    _join_parts[samples, groups](
        *(notes[0], notes[1], mean, inverse, pixels, channels, groups, parts),
        EPSILON=epsilon,
        ACCURATE=accurate,
        PIXELS=_PIXELS_NOTED * _BLOCKS_NOTED,
        NOTES=_NOTES,
    )
    return mean, inverse


def gradients(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor, ceiling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of pictures, weight and bias."""
    samples, pixels, channels = x.shape
    grid, form = _division(x, _PIXELS_NOTED * _BLOCKS_NOTED)
    notes = weight.new_empty(2, samples, grid[1], channels)
    _note_gradients[grid](
        *(grad, x, weight, bias, mean, inverse, notes[0], notes[1], pixels, channels, mean.shape[1]),
        CEILING=ceiling,
        ACCURATE=accurate_type(weight),
        PIXELS=_PIXELS_NOTED,
        BLOCKS=_BLOCKS_NOTED,
        STAGES=_STAGES,
        **form,
    )
    return gradients_from_notes(notes, grad, x, weight, bias, mean, inverse, ceiling)


def gradients_from_notes(
    notes: Tensor,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
    ceiling: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, where sums over parts are known: ``[2, samples, parts, channels]``, of gradients and of products."""
    _, samples, parts, channels = notes.shape
    pixels, groups, accurate = x.shape[1], mean.shape[1], accurate_type(weight)
    of_samples, of_groups = weight.new_empty(2, samples, channels), weight.new_empty(2, samples, groups)
    of_x = torch.empty_like(x)
    _join_gradients[samples, groups](
        *(notes[0], notes[1], weight, of_samples, of_groups, pixels, channels, groups, parts),
        ACCURATE=accurate,
        BLOCKS=_BLOCKS,
        CHANNELS=_CHANNELS,
    )
    grid, form = _division(x, _PIXELS)
    given = (grad, x, weight, bias, mean, inverse, of_groups, of_x, pixels, channels, groups)
    _gradient[grid](*given, CEILING=ceiling, ACCURATE=accurate, PIXELS=_PIXELS, **form)
    return of_x, *added_up(of_samples)


def added_up(of_samples: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over samples of ``[2, samples, channels]``."""
    _, samples, channels = of_samples.shape
    sums = of_samples.new_empty(2, channels)
    _add_samples[triton.cdiv(channels, _CHANNELS), 2](
        *(of_samples, sums, samples, channels),
        ACCURATE=accurate_type(of_samples),
        SAMPLES=_SAMPLES,
        CHANNELS=_CHANNELS,
    )
    return sums[0], sums[1]


def try_out() -> None:
    """Makes and runs kernels, to see whether that is possible here."""
    ones = torch.ones(16, device="cuda")
    normalized(ones.view(1, 1, -1), 1, ones, ones, 1e-5, None)


def accurate_type(weight: Tensor) -> tl.dtype:
    """In which kernels compute: as exactly as weights are kept, however pictures are rounded."""
    return tl.float64 if weight.dtype == torch.float64 else tl.float32


def _division(x: Tensor, most_pixels: int) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Into how many parts of so many pixels pictures are divided, and what kernels must know about that."""
    samples, pixels, channels = x.shape
    grid = (triton.cdiv(channels, _CHANNELS), triton.cdiv(pixels, most_pixels), samples)
    return grid, {"CHANNELS": _CHANNELS, "num_warps": _WARPS}
