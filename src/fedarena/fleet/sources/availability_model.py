"""When people leave their phones alone: availability drawn from distributions.

A phone has a period of whole days, a number of slots in it, and a share of it that they fill. Short slots last seconds
whoever's phone it is; what is left of the share is divided among the long ones. Slots come in bursts: a burst begins at
a time of day that people prefer, and within it slots follow each other after short gaps. A slot that would begin before
the one before it has ended is moved behind it, so slots never overlap and the share is kept to the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedarena.core import streams
from fedarena.fleet.arrays import BoolArray, Int32Array, IntArray
from fedarena.fleet.availability import DAY_SECONDS, Availability
from fedarena.fleet.sources.quantiles import QuantileTable, stratified

# So many phones are made at a time, which bounds the memory that is needed on the way.
BLOCK_DEVICES = 50_000


@dataclass(frozen=True)
class AvailabilityModel:
    """The distributions from which `make_availability` draws."""

    # Probabilities of a period of 1, 2, 3, … days.
    days: tuple[float, ...]
    slots: QuantileTable  # in a period
    share: QuantileTable  # of the period in which the phone is available
    # Of the ranks of phones (as a Gaussian copula): days with slots, days with share, slots with share.
    correlations: tuple[float, float, float]
    short_slots: float  # the share of slots that are short
    short_seconds: QuantileTable
    long_weights: QuantileTable  # lengths of one phone's long slots relative to each other
    bursts: float  # the share of slots that do not begin a burst but follow the one before
    gap_seconds: QuantileTable  # within a burst
    hours: tuple[float, ...]  # how many bursts begin in each hour of the day, relative to each other
    longest_hour: float  # the time of day at which the longest slots begin, and how much that matters
    hour_effect: float


class _Devices(NamedTuple):
    periods: IntArray
    counts: IntArray  # of slots
    available_seconds: IntArray
    offsets: IntArray  # slots of phone i: from offsets[i] to offsets[i + 1]
    owners: IntArray  # the phone of every slot


class _Bursts(NamedTuple):
    begins: BoolArray  # whether a slot begins one
    times: IntArray  # when the burst of a slot begins


def make_availability(model: AvailabilityModel, phones: int, seed: int) -> Availability:
    """An availability for that many phones."""
    if not phones:
        return Availability.never(0)
    blocks = []
    for block in range(-(-phones // BLOCK_DEVICES)):
        random = streams.generator(seed, "fleet/availability", block)
        blocks.append(_make_block(model, min(BLOCK_DEVICES, phones - block * BLOCK_DEVICES), random))
    counts, starts, ends, periods = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return Availability(_offsets(counts), starts, ends, periods)


def _make_block(
    model: AvailabilityModel, number: int, random: np.random.Generator
) -> tuple[IntArray, Int32Array, Int32Array, IntArray]:
    phones = _draw_devices(model, number, random)
    bursts = _draw_bursts(model, phones, random)
    lengths = _draw_lengths(model, phones, bursts, random)
    starts = _place(model, phones, bursts, lengths, random)
    return *_wrapped(phones, starts, starts + lengths), phones.periods


def _draw_devices(model: AvailabilityModel, number: int, random: np.random.Generator) -> _Devices:
    days_slots, days_share, slots_share = model.correlations
    copula = np.array([[1, days_slots, days_share], [days_slots, 1, slots_share], [days_share, slots_share, 1]])
    scores = random.standard_normal((number, 3)) @ np.linalg.cholesky(copula).T
    days, slots, share = (stratified(scores[:, column], random) for column in range(3))
    periods = DAY_SECONDS * (1 + np.searchsorted(np.cumsum(model.days)[:-1], days, side="right"))
    wanted = np.maximum(1, np.rint(model.share.at(share) * periods)).astype(np.int64)
    # Every slot lasts a second at least, and a second without the phone follows.
    counts = np.clip(np.rint(model.slots.at(slots)).astype(np.int64), 1, np.minimum(wanted, periods // 2))
    owners = np.repeat(np.arange(number), counts)
    return _Devices(periods, counts, np.minimum(wanted, periods - counts), _offsets(counts), owners)


def _draw_bursts(model: AvailabilityModel, phones: _Devices, random: np.random.Generator) -> _Bursts:
    """Which slots begin a burst, and at what time: on any day alike, in hours as people prefer them."""
    begins = random.random(len(phones.owners)) >= model.bursts
    begins[phones.offsets[:-1]] = True
    owners = phones.owners[begins]
    day, moment = np.divmod(random.random(len(owners)) * (phones.periods[owners] // DAY_SECONDS), 1.0)
    edges = np.concatenate(([0.0], np.cumsum(model.hours))) / np.sum(model.hours)
    seconds = np.interp(moment, edges, np.linspace(0, DAY_SECONDS, len(edges)))
    times = (day * DAY_SECONDS + seconds).astype(np.int64)
    # Sorted phone by phone, in one go.
    first = owners * int(phones.periods.max())
    return _Bursts(begins, (np.sort(times + first) - first)[np.cumsum(begins) - 1])


def _draw_lengths(model: AvailabilityModel, phones: _Devices, bursts: _Bursts, random: np.random.Generator) -> IntArray:
    """Whole seconds of every slot, which add up to what each phone has."""
    offsets, owners = phones.offsets, phones.owners
    angle = (bursts.times / DAY_SECONDS - model.longest_hour / 24) * 2 * np.pi
    rank = stratified(random.standard_normal(len(owners)) + model.hour_effect * np.cos(angle), random)
    # Every phone has a long slot.
    long_one = offsets[:-1] + (random.random(len(phones.counts)) * phones.counts).astype(np.int64)
    rank[long_one] = model.short_slots + (1 - model.short_slots) * random.random(len(phones.counts))
    is_short = rank < model.short_slots
    spare = phones.available_seconds - phones.counts  # beyond the one second that every slot has
    short = np.zeros(len(owners), dtype=np.int64)
    short[is_short] = np.maximum(0, np.rint(model.short_seconds.at(rank[is_short] / model.short_slots)) - 1)
    # Short slots are cut where they would take more than half of what the phone has.
    taken = _sums(short, offsets)
    part = np.minimum(1.0, spare / 2 / np.maximum(taken, 1))
    cut = part[owners] < 1
    short[cut] = (short[cut] * part[owners][cut]).astype(np.int64)
    spare -= _sums(short, offsets)
    weights = np.zeros(len(owners))
    weights[~is_short] = model.long_weights.at((rank[~is_short] - model.short_slots) / (1 - model.short_slots))
    # Rounding the running sum, not each length, keeps the total.
    running = np.cumsum(weights)
    before = np.concatenate(([0.0], running))[offsets[:-1]]
    fraction = (running - before[owners]) / (running[offsets[1:] - 1] - before)[owners]
    so_far = (fraction * spare[owners]).astype(np.int64)
    so_far[offsets[1:] - 1] = spare
    long = np.diff(so_far, prepend=0)
    long[offsets[:-1]] = so_far[offsets[:-1]]
    return 1 + short + long


def _place(
    model: AvailabilityModel, phones: _Devices, bursts: _Bursts, lengths: IntArray, random: np.random.Generator
) -> IntArray:
    """When slots begin, ascending; those of one phone lie within one period, which may begin later than at 0."""
    offsets, owners = phones.offsets, phones.owners
    gaps = np.maximum(1, np.rint(model.gap_seconds.at(random.random(len(owners))))).astype(np.int64)
    gaps_before = _sums_before(gaps, offsets, owners) + gaps
    available_before = _sums_before(lengths, offsets, owners)
    # On a clock that stands still while the phone is available slots are moments that only must keep their order:
    # each comes after its gap to the one before, and not before its burst begins.
    clock = np.where(bursts.begins, bursts.times - available_before - gaps_before, np.iinfo(np.int64).min // 2)
    # One running maximum for all phones: each is lifted above everything of the phones before it.
    lift = owners * (2 * int(phones.periods.max()) + int(gaps_before.max()) + 1)
    clock = np.maximum.accumulate(clock + lift) - lift + gaps_before
    # All must be over a second before the first slot comes again.
    idle = (phones.periods - phones.available_seconds)[owners]
    remaining = offsets[1:][owners] - np.arange(len(owners))
    latest: IntArray = clock[offsets[:-1]][owners] + idle - remaining
    starts = np.minimum(clock, latest) + available_before
    # Slots were moved to later times only. Each phone begins with another day, so that no day is fuller than others.
    days = phones.periods // DAY_SECONDS
    shift = DAY_SECONDS * (random.random(len(days)) * days).astype(np.int64)
    shift -= np.where(starts[offsets[:-1]] + shift >= phones.periods, phones.periods, 0)
    return starts + shift[owners]


def _wrapped(phones: _Devices, starts: IntArray, ends: IntArray) -> tuple[IntArray, Int32Array, Int32Array]:
    """Counts, starts and ends in [0, period]: what lies beyond the period comes first, one slot may be cut in two."""
    offsets, owners = phones.offsets, phones.owners
    periods = phones.periods[owners]
    beyond = starts >= periods
    over = (ends > periods) & ~beyond
    shifted = _sums(beyond, offsets)
    cut = _sums(over, offsets)
    counts = phones.counts + cut
    new_offsets = _offsets(counts)
    # Slots beyond the period are the last of their phone and become the first ones.
    stay = np.where(beyond, -(phones.counts - shifted)[owners], shifted[owners])
    positions = np.arange(len(owners)) - offsets[owners] + stay + (new_offsets[:-1] + cut)[owners]
    new_starts = np.zeros(new_offsets[-1], dtype=np.int32)
    new_ends = np.zeros(new_offsets[-1], dtype=np.int32)
    new_starts[positions] = starts - np.where(beyond, periods, 0)
    new_ends[positions] = np.where(over, periods, ends - np.where(beyond, periods, 0))
    new_ends[new_offsets[owners[over]]] = ends[over] - periods[over]
    return counts, new_starts, new_ends


def _offsets(counts: IntArray | BoolArray) -> IntArray:
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)))


def _sums(values: IntArray | BoolArray, offsets: IntArray) -> IntArray:
    running = _offsets(values)
    return running[offsets[1:]] - running[offsets[:-1]]


def _sums_before(values: IntArray, offsets: IntArray, owners: IntArray) -> IntArray:
    running = _offsets(values)
    return running[:-1] - running[offsets[:-1]][owners]
