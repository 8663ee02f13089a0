"""Gradients of convolutions that filter every channel by itself, see `depthwise_kernels`.

The gradient of a pixel and that of a filter come from the same numbers, the slopes of outputs around the pixel. So one
kernel makes both. Gradients of filters are added up in parts and in a fixed order, so that the same numbers give the
same bits.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from fedarena.train.depthwise_kernels import ANY, read, strip, three_filters
from fedarena.train.group_norm_kernels import accurate_type, activated, passed_back

# Of a strip, as for filtering.
_CHANNELS, _COLUMNS, _ROWS = 16, 8, 56
_WARPS = 1
_STAGES = 3
_NOTES, _SUMS, _WARPS_SUMS = 64, 32, 4  # that are added up at once, to so many sums


@triton.jit
def _read_input(
    x: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    pitch: tl.tensor,
    where: tl.tensor,
    inside: tl.tensor,
    center: tl.tensor,
    factor: tl.tensor,
    shift: tl.tensor,
    NORMALIZED: tl.constexpr,
    CEILING: tl.constexpr,
    ACCURATE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """What is filtered, at these places of a row, and how far from their mean numbers were if they are normalized."""
    there = inside & ((row >= first) & (row < end))
    values = tl.load(x + row * pitch + where, mask=there, other=0.0).to(ACCURATE)
    distance = values
    if NORMALIZED:
        distance = values - center
        values = tl.where(there, activated(distance * factor + shift, CEILING), 0.0)
    return values, distance


@triton.jit
def _norm_of(
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    sample: tl.tensor,
    channel: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    NORMALIZED: tl.constexpr,
    ACCURATE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """How every channel is normalized: mean, inverse deviation, by what distances are multiplied, what is added."""
    if NORMALIZED:
        exists = channel < channels
        group = sample * groups + channel // (channels // groups)
        center = tl.load(mean + group, mask=exists, other=0.0)
        scale = tl.load(inverse + group, mask=exists, other=0.0)
        factor = scale * tl.load(weight + channel, mask=exists, other=0.0)
        shift = tl.load(bias + channel, mask=exists, other=0.0)
    else:
        center = tl.zeros_like(channel).to(ACCURATE)
        scale = center
        factor = center
        shift = center
    return center, scale, factor, shift


@triton.jit
def _through_norm(
    slope: tl.tensor,
    value: tl.tensor,
    distance: tl.tensor,
    there: tl.tensor,
    total: tl.tensor,
    of_product: tl.tensor,
    NORMALIZED: tl.constexpr,
    CEILING: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The gradient of normalized numbers, if these are what was filtered, and the sums of it and of products so far."""
    if NORMALIZED:
        slope = tl.where(there, passed_back(slope, value, CEILING), 0.0)
        total += slope
        of_product += slope * distance
    return slope, total, of_product


@triton.jit
def _note(notes: tl.tensor, number: tl.constexpr, found: tl.tensor, channel: tl.tensor, channels: tl.tensor) -> None:
    tl.store(notes + number * channels + channel, tl.sum(found, 0)[None, :], mask=channel < channels)


@triton.jit
def _note_row(
    notes: tl.tensor,
    first: tl.constexpr,
    left: tl.tensor,
    middle: tl.tensor,
    right: tl.tensor,
    channel: tl.tensor,
    channels: tl.tensor,
) -> None:
    """The sums of gradients of a row of filters."""
    _note(notes, first, left, channel, channels)
    _note(notes, first + 1, middle, channel, channels)
    _note(notes, first + 2, right, channel, channels)


@triton.jit
def _note_norm(
    notes: tl.tensor, total: tl.tensor, products: tl.tensor, sample: tl.tensor, channel: tl.tensor, channels: tl.tensor
) -> None:
    """The sums that the gradient of a normalization needs, of gradients and of products."""
    parts = tl.num_programs(1)
    notes += (sample * parts + tl.program_id(1)).to(tl.int64) * channels
    _note(notes, 0, total, channel, channels)
    notes += tl.num_programs(2).to(tl.int64) * parts * channels
    _note(notes, 0, products, channel, channels)


@triton.jit(do_not_specialize=ANY)
def _gradient_at_each_pixel(
    grad: tl.tensor,
    x: tl.tensor,
    filters: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    output: tl.tensor,
    notes: tl.tensor,
    norm_notes: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    NORMALIZED: tl.constexpr,
    CEILING: tl.constexpr,
    ACCURATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """The gradient of what was filtered in steps of one pixel; of filters, from this program's pixels."""
    column, channel, begin, end = strip(height, width, ROWS, COLUMNS, CHANNELS)
    sample = tl.program_id(2)
    first = sample.to(tl.int64) * height * width * channels
    x, grad, output = x + first, grad + first, output + first
    center, scale, factor, shift = _norm_of(
        weight, bias, mean, inverse, sample, channel, channels, groups, NORMALIZED, ACCURATE
    )
    nothing = tl.zeros([COLUMNS, CHANNELS], ACCURATE)
    total, of_product = nothing, nothing
    upper_left, upper, upper_right = three_filters(filters, channel, channels)
    on_left, middle, on_right = three_filters(filters + 3, channel, channels)
    lower_left, lower, lower_right = three_filters(filters + 6, channel, channels)
    pitch, where, exists = width * channels, column * channels + channel, channel < channels
    in_left, inside = exists & (column > 0) & (column <= width), exists & (column < width)
    in_right = exists & (column + 1 < width)
    # The gradient of the row above and of this one, as far as it is known.
    of_above, of_here = nothing, nothing
    of_upper_left, of_upper, of_upper_right = nothing, nothing, nothing
    of_left, of_middle, of_right = nothing, nothing, nothing
    of_lower_left, of_lower, of_lower_right = nothing, nothing, nothing
    above = tl.zeros([COLUMNS, CHANNELS], ACCURATE)
    here = tl.zeros([COLUMNS, CHANNELS], ACCURATE)
    distance_above = tl.zeros([COLUMNS, CHANNELS], ACCURATE)
    distance_here = tl.zeros([COLUMNS, CHANNELS], ACCURATE)
    for row in tl.range(begin - 1, end + 1, num_stages=STAGES):
        a = read(grad, row, 0, height, pitch, where - channels, in_left, ACCURATE)
        b = read(grad, row, 0, height, pitch, where, inside, ACCURATE)
        c = read(grad, row, 0, height, pitch, where + channels, in_right, ACCURATE)
        below, distance = _read_input(
            x, row + 1, begin, end, pitch, where, inside, center, factor, shift, NORMALIZED, CEILING, ACCURATE
        )
        slope = of_above + (c * upper_left + b * upper + a * upper_right)
        is_known = inside & (row > begin)
        slope, total, of_product = _through_norm(
            slope, above, distance_above, is_known, total, of_product, NORMALIZED, CEILING
        )
        if NORMALIZED:
            distance_above = distance_here
            distance_here = distance
        tl.store(output + (row - 1) * pitch + where, slope, mask=is_known)
        of_above = of_here + (c * on_left + b * middle + a * on_right)
        of_here = c * lower_left + b * lower + a * lower_right
        of_upper_left += above * c
        of_upper += above * b
        of_upper_right += above * a
        of_left += here * c
        of_middle += here * b
        of_right += here * a
        of_lower_left += below * c
        of_lower += below * b
        of_lower_right += below * a
        above = here
        here = below
    if NORMALIZED:
        _note_norm(norm_notes, total, of_product * scale, sample, channel, channels)
    notes += (sample * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * 9 * channels
    _note_row(notes, 0, of_upper_left, of_upper, of_upper_right, channel, channels)
    _note_row(notes, 3, of_left, of_middle, of_right, channel, channels)
    _note_row(notes, 6, of_lower_left, of_lower, of_lower_right, channel, channels)


@triton.jit(do_not_specialize=ANY)
def _gradient_at_every_other(
    grad: tl.tensor,
    x: tl.tensor,
    filters: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    inverse: tl.tensor,
    output: tl.tensor,
    notes: tl.tensor,
    norm_notes: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    NORMALIZED: tl.constexpr,
    CEILING: tl.constexpr,
    ACCURATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """The same for steps of two pixels: every slope has two rows and two columns of pixels for its own."""
    column, channel, begin, end = strip(rows, columns, ROWS, COLUMNS, CHANNELS)
    sample = tl.program_id(2)
    x += sample.to(tl.int64) * height * width * channels
    output += sample.to(tl.int64) * height * width * channels
    grad += sample.to(tl.int64) * rows * columns * channels
    center, scale, factor, shift = _norm_of(
        weight, bias, mean, inverse, sample, channel, channels, groups, NORMALIZED, ACCURATE
    )
    nothing = tl.zeros([COLUMNS, CHANNELS], ACCURATE)
    total, of_product = nothing, nothing
    upper_left, upper, upper_right = three_filters(filters, channel, channels)
    on_left, middle, on_right = three_filters(filters + 3, channel, channels)
    lower_left, lower, lower_right = three_filters(filters + 6, channel, channels)
    pitch, across, exists = width * channels, column * 2, channel < channels
    where, pitch_of_slopes = column * channels + channel, columns * channels
    has_slope, has_next = exists & (column < columns), exists & (column + 1 < columns)
    at_even, at_odd = across * channels + channel, (across + 1) * channels + channel
    is_even, is_odd = exists & (across < width), exists & (across + 1 < width)
    of_upper_left, of_upper, of_upper_right = nothing, nothing, nothing
    of_left, of_middle, of_right = nothing, nothing, nothing
    of_lower_left, of_lower, of_lower_right = nothing, nothing, nothing
    own = read(grad, begin, 0, rows, pitch_of_slopes, where, has_slope, ACCURATE)
    next_one = read(grad, begin, 0, rows, pitch_of_slopes, where + channels, has_next, ACCURATE)
    for row in tl.range(begin, end, num_stages=STAGES):
        below = read(grad, row + 1, 0, rows, pitch_of_slopes, where, has_slope, ACCURATE)
        diagonal = read(grad, row + 1, 0, rows, pitch_of_slopes, where + channels, has_next, ACCURATE)
        value, distance = _read_input(
            x, row * 2, 0, height, pitch, at_even, is_even, center, factor, shift, NORMALIZED, CEILING, ACCURATE
        )
        slope = own * middle
        slope, total, of_product = _through_norm(
            slope, value, distance, is_even, total, of_product, NORMALIZED, CEILING
        )
        tl.store(output + row * 2 * pitch + at_even, slope, mask=is_even)
        of_middle += value * own
        value, distance = _read_input(
            x, row * 2, 0, height, pitch, at_odd, is_odd, center, factor, shift, NORMALIZED, CEILING, ACCURATE
        )
        slope = next_one * on_left + own * on_right
        slope, total, of_product = _through_norm(slope, value, distance, is_odd, total, of_product, NORMALIZED, CEILING)
        tl.store(output + row * 2 * pitch + at_odd, slope, mask=is_odd)
        of_left += value * next_one
        of_right += value * own
        lower_row = row * 2 + 1
        there = lower_row < height
        value, distance = _read_input(
            x, lower_row, 0, height, pitch, at_even, is_even, center, factor, shift, NORMALIZED, CEILING, ACCURATE
        )
        slope = below * upper + own * lower
        slope, total, of_product = _through_norm(
            slope, value, distance, is_even & there, total, of_product, NORMALIZED, CEILING
        )
        tl.store(output + lower_row * pitch + at_even, slope, mask=is_even & there)
        of_upper += value * below
        of_lower += value * own
        value, distance = _read_input(
            x, lower_row, 0, height, pitch, at_odd, is_odd, center, factor, shift, NORMALIZED, CEILING, ACCURATE
        )
        slope = diagonal * upper_left + below * upper_right + next_one * lower_left + own * lower_right
        slope, total, of_product = _through_norm(
            slope, value, distance, is_odd & there, total, of_product, NORMALIZED, CEILING
        )
        tl.store(output + lower_row * pitch + at_odd, slope, mask=is_odd & there)
        of_upper_left += value * diagonal
        of_upper_right += value * below
        of_lower_left += value * next_one
        of_lower_right += value * own
        own = below
        next_one = diagonal
    if NORMALIZED:
        _note_norm(norm_notes, total, of_product * scale, sample, channel, channels)
    notes += (sample * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * 9 * channels
    _note_row(notes, 0, of_upper_left, of_upper, of_upper_right, channel, channels)
    _note_row(notes, 3, of_left, of_middle, of_right, channel, channels)
    _note_row(notes, 6, of_lower_left, of_lower, of_lower_right, channel, channels)


@triton.jit(do_not_specialize=["number"])
def _add_notes(
    notes: tl.tensor,
    sums: tl.tensor,
    number: tl.tensor,
    channels: tl.tensor,
    ACCURATE: tl.constexpr,
    NOTES: tl.constexpr,
    SUMS: tl.constexpr,
) -> None:
    """The sums over so many notes, of which each has those of all nine numbers of a filter, channel by channel."""
    place = tl.program_id(0) * SUMS + tl.arange(0, SUMS)
    exists = place < 9 * channels
    total = tl.zeros([NOTES, SUMS], ACCURATE)
    for begin in range(0, number, NOTES):
        note = begin + tl.arange(0, NOTES)
        inside = (note < number)[:, None] & exists[None, :]
        total += tl.load(notes + note[:, None] * 9 * channels + place[None, :], mask=inside, other=0.0)
    tl.store(sums + place % channels * 9 + place // channels, tl.sum(total, 0), mask=exists)


@dataclass(frozen=True)
class Norm:
    """How what is filtered is normalized before, and the ceiling of the ReLU in between (0: it has none)."""

    weight: Tensor
    bias: Tensor
    mean: Tensor  # of the groups of every sample
    inverse: Tensor
    ceiling: float


def gradients(
    grad: Tensor, x: Tensor, filters: Tensor, stride: int, norm: Norm | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of what was filtered and of filters.

    Of what was normalized before it is that of normalized numbers, and there are sums of it over parts, from which
    `group_norm_kernels` finds the rest.
    """
    samples, height, width, channels = x.shape
    rows, columns = grad.shape[1:3]
    at_once = min(_COLUMNS, triton.next_power_of_2(columns))
    parts = triton.cdiv(columns, at_once) * triton.cdiv(rows, _ROWS)
    output = x.new_empty(x.shape)
    notes = filters.new_empty(samples * parts, 9, channels)
    norm_notes = None if norm is None else filters.new_empty(2, samples, parts, channels)
    tensors, groups, form = _given(norm, filters)
    kernel = _gradient_at_each_pixel if stride == 1 else _gradient_at_every_other
    kernel[triton.cdiv(channels, _CHANNELS), parts, samples](
        *(grad, x, filters, *tensors, output, notes, notes if norm_notes is None else norm_notes),
        *(height, width, rows, columns, channels, groups),
        ACCURATE=accurate_type(filters),
        ROWS=_ROWS,
        COLUMNS=at_once,
        CHANNELS=_CHANNELS,
        STAGES=_STAGES,
        num_warps=_WARPS,
        **form,
    )
    return output, _added_up(notes), norm_notes


def _given(norm: Norm | None, filters: Tensor) -> tuple[tuple[Tensor, ...], int, dict[str, object]]:
    """What kernels must know of a norm; tensors they do not look at, if there is none."""
    if norm is None:
        return (filters,) * 4, 1, {"NORMALIZED": False, "CEILING": None}
    tensors = (norm.weight, norm.bias, norm.mean, norm.inverse)
    return tensors, norm.mean.shape[1], {"NORMALIZED": True, "CEILING": norm.ceiling}


def _added_up(notes: Tensor) -> Tensor:
    """The sums of notes ``[number, 9, channels]``, as filters are."""
    number, _, channels = notes.shape
    sums = notes.new_empty(channels, 9)
    _add_notes[(triton.cdiv(9 * channels, _SUMS),)](
        *(notes, sums, number, channels), ACCURATE=accurate_type(notes), NOTES=_NOTES, SUMS=_SUMS, num_warps=_WARPS_SUMS
    )
    return sums
