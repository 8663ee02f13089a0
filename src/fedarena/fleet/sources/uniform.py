"""The simplest fleet with differences: speeds from ranges, slots of one length."""

from __future__ import annotations

import numpy as np

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet.arrays import FloatArray
from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.registry import FLEETS

_SHARE_TOLERANCE = 0.05  # of what is asked for, because slots and periods are whole seconds
# One number for all phones, or the lowest and the highest of a range.
Range = float | tuple[float, float]


@FLEETS.register("uniform")
def uniform(
    phones: int,
    *,
    seconds_per_sample: Range = 0.1,
    download_bits_per_second: Range = 10e6,
    upload_bits_per_second: Range = 10e6,
    share: float = 1.0,
    slot_seconds: int = 3600,
    seed: int = 0,
) -> Fleet:
    """Phones that are alike, or spread evenly over ranges such as [0.05, 0.2].

    Each is available for `slot_seconds` again and again, the given `share` of the time, from a random moment on, so
    that always about that share of the phones is available. With a share of 1 they never leave.
    """
    devices = Devices.from_columns(
        seconds_per_sample=_spread("seconds_per_sample", seconds_per_sample, phones, seed),
        download_bits_per_second=_spread("download_bits_per_second", download_bits_per_second, phones, seed),
        upload_bits_per_second=_spread("upload_bits_per_second", upload_bits_per_second, phones, seed),
    )
    return Fleet("uniform", devices, _availability(share, slot_seconds, phones, seed), paired=True)


def _spread(name: str, bounds: Range, phones: int, seed: int) -> FloatArray:
    low, high = (bounds, bounds) if isinstance(bounds, float | int) else bounds
    if low > high:
        raise BadInputError(f"fleet.{name} must be a number or a range [low, high], but {low:g} is above {high:g}.")
    if low < 0 or (low == 0 and name != "seconds_per_sample"):
        allowed = "not be negative, but is" if name == "seconds_per_sample" else "be positive, not"
        raise BadInputError(f"fleet.{name} must {allowed} {low:g}.")
    return low + (high - low) * streams.uniform(seed, f"fleet/{name}", np.arange(phones))


def _availability(share: float, slot_seconds: int, phones: int, seed: int) -> Availability:
    if not 0 <= share <= 1:
        raise BadInputError(f"fleet.share must be between 0 and 1, not {share:g}.")
    if slot_seconds < 1:
        raise BadInputError(f"fleet.slot_seconds must be at least 1, not {slot_seconds}.")
    if share == 0:
        return Availability.never(phones)
    if share == 1:
        return Availability.always(phones)
    period = round(slot_seconds / share)
    if abs(slot_seconds / period - share) > _SHARE_TOLERANCE * min(share, 1 - share):
        raise BadInputError(
            f"fleet.share: slots of {slot_seconds} seconds in whole seconds cannot come to a share of {share:g}, "
            f"only to {slot_seconds / period:.3g}; choose longer slots."
        )
    if period > np.iinfo(np.int32).max:
        raise BadInputError(
            f"fleet.share: {share:g} with slots of {slot_seconds} seconds means one slot in {period} seconds; "
            "choose a larger share or shorter slots."
        )
    starts = (streams.uniform(seed, "fleet/phase", np.arange(phones)) * period).astype(np.int64)
    return Availability.from_intervals(
        np.arange(phones), starts, starts + slot_seconds, np.full(phones, period), wrap=True
    )
