"""Group normalization of small pictures, of which a processor of a GPU keeps the numbers of some groups near itself.

One kernel goes through a sample's groups until all is known and written, and so does the gradient's; only the first
time numbers come from far away. Beside those for larger pictures, see `group_norm_kernels`, that is half of the reading
and a third of the kernels.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedarena.train.group_norm_kernels import accurate_type, activated, added_up, passed_back

_MOST_PIXELS = 1 << 8
_MOST_NUMBERS = 1 << 16  # of the groups that one program takes
_NUMBERS, _NUMBERS_BACK = 1 << 12, 1 << 11  # that it looks at together
_LEAST_BYTES = 64  # of a pixel, that are read together if possible
_UNIT = 8  # channels; a multiple of it is read faster
_WARPS, _WARPS_BACK = 2, 2
_ANY = ["pixels", "width", "units"]


@triton.jit(do_not_specialize=_ANY)
def _normalize_groups(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    output: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    width: tl.tensor,
    units: tl.tensor,
    EPSILON: tl.constexpr,
    CEILING: tl.constexpr,
    ACCURATE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    UNIT: tl.constexpr,
    GROUPS: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """Normalizes ``GROUPS`` groups of a sample, which have ``units * UNIT`` channels."""
    pixel, channel, exists, of_group = _groups(width, units * UNIT, GROUPS, PIXELS, CHANNELS)
    first = tl.program_id(0).to(tl.int64) * pixels * channels
    x, output = x + first, output + first
    count = (pixels * width).to(ACCURATE)
    place = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * GROUPS + tl.arange(0, GROUPS)
    factor = tl.load(weight + channel, mask=exists, other=0.0)
    shift = tl.load(bias + channel, mask=exists, other=0.0)
    if AT_ONCE:
        inside = (pixel < pixels)[:, None] & exists[None, :]
        where = pixel[:, None] * channels + channel[None, :]
        values = tl.load(x + where, mask=inside, other=0.0).to(ACCURATE)
        center = _over_groups(tl.sum(values, 0), of_group) / count
        distance = tl.where(inside, values - _to_channels(center, of_group)[None, :], 0.0)
        deviation = 1 / tl.sqrt(_over_groups(tl.sum(distance * distance, 0), of_group) / count + EPSILON)
        tl.store(mean + place, center)
        tl.store(inverse + place, deviation)
        result = distance * (_to_channels(deviation, of_group) * factor)[None, :] + shift[None, :]
        tl.store(output + where, activated(result, CEILING), mask=inside)
    else:
        total = tl.zeros([PIXELS, CHANNELS], ACCURATE)
        for begin in range(0, pixels, PIXELS):
            inside = (begin + pixel < pixels)[:, None] & exists[None, :]
            where = (begin + pixel)[:, None] * channels + channel[None, :]
            total += tl.load(x + where, mask=inside, other=0.0).to(ACCURATE)
        center = _over_groups(tl.sum(total, 0), of_group) / count
        middle = _to_channels(center, of_group)
        total = tl.zeros([PIXELS, CHANNELS], ACCURATE)
        for begin in range(0, pixels, PIXELS):
            inside = (begin + pixel < pixels)[:, None] & exists[None, :]
            where = (begin + pixel)[:, None] * channels + channel[None, :]
            values = tl.load(x + where, mask=inside, other=0.0).to(ACCURATE)
            distance = tl.where(inside, values - middle[None, :], 0.0)
            total += distance * distance
        deviation = 1 / tl.sqrt(_over_groups(tl.sum(total, 0), of_group) / count + EPSILON)
        tl.store(mean + place, center)
        tl.store(inverse + place, deviation)
        scale = _to_channels(deviation, of_group) * factor
        for begin in range(0, pixels, PIXELS):
            inside = (begin + pixel < pixels)[:, None] & exists[None, :]
            where = (begin + pixel)[:, None] * channels + channel[None, :]
            values = tl.load(x + where, mask=inside, other=0.0).to(ACCURATE)
            result = (values - middle[None, :]) * scale[None, :] + shift[None, :]
            tl.store(output + where, activated(result, CEILING), mask=inside)


@triton.jit(do_not_specialize=_ANY)
def _gradient_of_groups(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    output: tl.tensor,
    of_samples: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    width: tl.tensor,
    units: tl.tensor,
    CEILING: tl.constexpr,
    ACCURATE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    UNIT: tl.constexpr,
    GROUPS: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """The gradient of these groups' numbers; of every channel, that of its weight and of its bias from this sample."""
    pixel, channel, exists, of_group = _groups(width, units * UNIT, GROUPS, PIXELS, CHANNELS)
    first = tl.program_id(0).to(tl.int64) * pixels * channels
    grad, x, output = grad + first, x + first, output + first
    place = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * GROUPS + tl.arange(0, GROUPS)
    center, scale = _to_channels(tl.load(mean + place), of_group), _to_channels(tl.load(inverse + place), of_group)
    factor = tl.load(weight + channel, mask=exists, other=0.0)
    slant, shift = scale * factor, tl.load(bias + channel, mask=exists, other=0.0)
    inside = (pixel < pixels)[:, None] & exists[None, :]
    where = pixel[:, None] * channels + channel[None, :]
    distance = tl.load(x + where, mask=inside, other=0.0).to(ACCURATE) - center[None, :]
    slope = tl.load(grad + where, mask=inside, other=0.0).to(ACCURATE)
    slope = passed_back(slope, distance * slant[None, :] + shift[None, :], CEILING)
    total = slope
    of_product = slope * distance
    if not AT_ONCE:
        for begin in range(PIXELS, pixels, PIXELS):
            inside = (begin + pixel < pixels)[:, None] & exists[None, :]
            where = (begin + pixel)[:, None] * channels + channel[None, :]
            distance = tl.load(x + where, mask=inside, other=0.0).to(ACCURATE) - center[None, :]
            slope = tl.load(grad + where, mask=inside, other=0.0).to(ACCURATE)
            slope = passed_back(slope, distance * slant[None, :] + shift[None, :], CEILING)
            total += slope
            of_product += slope * distance
    of_bias, of_weight = tl.sum(total, 0), tl.sum(of_product, 0) * scale
    sample = tl.program_id(0) * channels + channel
    tl.store(of_samples + sample, of_weight, mask=exists)
    tl.store(of_samples + tl.num_programs(0) * channels + sample, of_bias, mask=exists)
    count = (pixels * width).to(ACCURATE)
    mean_sum = scale * _to_channels(_over_groups(factor * of_bias, of_group) / count, of_group)
    mean_product = scale * scale * _to_channels(_over_groups(factor * of_weight, of_group) / count, of_group)
    if AT_ONCE:
        result = slope * slant[None, :] - mean_sum[None, :] - distance * mean_product[None, :]
        tl.store(output + where, result, mask=inside)
    else:
        for begin in range(0, pixels, PIXELS):
            inside = (begin + pixel < pixels)[:, None] & exists[None, :]
            where = (begin + pixel)[:, None] * channels + channel[None, :]
            distance = tl.load(x + where, mask=inside, other=0.0).to(ACCURATE) - center[None, :]
            slope = tl.load(grad + where, mask=inside, other=0.0).to(ACCURATE)
            slope = passed_back(slope, distance * slant[None, :] + shift[None, :], CEILING)
            result = slope * slant[None, :] - mean_sum[None, :] - distance * mean_product[None, :]
            tl.store(output + where, result, mask=inside)


@triton.jit
def _groups(
    width: tl.tensor, span: tl.tensor, GROUPS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The first pixels; the channels of this program's groups, which of them exist, and which is of which group."""
    inner = tl.arange(0, CHANNELS)
    exists = inner < span
    of_group = ((inner // width)[:, None] == tl.arange(0, GROUPS)[None, :]) & exists[:, None]
    return tl.arange(0, PIXELS), tl.program_id(1) * span + inner, exists, of_group


@triton.jit
def _over_groups(of_channels: tl.tensor, of_group: tl.tensor) -> tl.tensor:
    return tl.sum(tl.where(of_group, of_channels[:, None], 0.0), 0)


@triton.jit
def _to_channels(of_groups: tl.tensor, of_group: tl.tensor) -> tl.tensor:
    return tl.sum(tl.where(of_group, of_groups[None, :], 0.0), 1)


def normalized(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, epsilon: float, ceiling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalized pictures ``[samples, pixels, channels]``, means, and inverse deviations."""
    samples = len(x)
    grid, sizes, form = _division(x, groups, weight, _NUMBERS)
    mean, inverse = weight.new_empty(2, samples, groups).unbind()
    output = torch.empty_like(x)
    known = (x, weight, bias, mean, inverse, output, *sizes)
    _normalize_groups[grid](*known, EPSILON=epsilon, CEILING=ceiling, num_warps=_WARPS, **form)
    return output, mean, inverse


def gradients(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor, ceiling: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of pictures, weight and bias."""
    samples, _, channels = x.shape
    grid, sizes, form = _division(x, mean.shape[1], weight, _NUMBERS_BACK)
    of_samples, of_x = weight.new_empty(2, samples, channels), torch.empty_like(x)
    known = (weight, bias, mean, inverse)
    _gradient_of_groups[grid](
        *(grad, x, *known, of_x, of_samples, *sizes), CEILING=ceiling, num_warps=_WARPS_BACK, **form
    )
    return of_x, *added_up(of_samples)


def fit(x: Tensor, groups: int) -> bool:
    """Whether pictures are small enough."""
    _, pixels, channels = x.shape
    return pixels <= _MOST_PIXELS and pixels * channels // groups * _together(x, groups) <= _MOST_NUMBERS


def _together(x: Tensor, groups: int) -> int:
    """How many groups one program takes, a power of two: narrow ones are read faster beside each other."""
    width, together = x.shape[2] // groups, 1

    def is_read_fast() -> bool:
        return together * width * x.element_size() >= _LEAST_BYTES and together * width % _UNIT == 0

    while not is_read_fast() and groups % (2 * together) == 0:
        together *= 2
    return together


def _division(
    x: Tensor, groups: int, weight: Tensor, numbers: int
) -> tuple[tuple[int, int], tuple[int, int, int, int], dict[str, object]]:
    """How many programs there are, and what they must know, if they look at so many numbers at once."""
    samples, pixels, channels = x.shape
    together, width = _together(x, groups), channels // groups
    span = together * width
    unit = _UNIT if span % _UNIT == 0 else 1
    most_channels = triton.next_power_of_2(span)
    most_pixels = min(triton.next_power_of_2(pixels), max(numbers // most_channels, 1))
    return (
        (samples, groups // together),
        (pixels, channels, width, span // unit),
        {
            "ACCURATE": accurate_type(weight),
            "AT_ONCE": most_pixels >= pixels,
            "UNIT": unit,
            "GROUPS": together,
            "PIXELS": most_pixels,
            "CHANNELS": most_channels,
        },
    )
