"""Numbers as people read them: three significant digits and a unit that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from fedarena.core.words import counted

Scale = Sequence[tuple[float, str]]

BYTES: Final[Scale] = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB"))
FLOPS: Final[Scale] = (
    (1.0, "FLOP"),
    (1e3, "kFLOP"),
    (1e6, "MFLOP"),
    (1e9, "GFLOP"),
    (1e12, "TFLOP"),
    (1e15, "PFLOP"),
    (1e18, "EFLOP"),
)
SECONDS: Final[Scale] = ((1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"))
HOURS: Final[Scale] = ((1 / 60, "minutes"), (1.0, "hours"))
BITS_PER_SECOND: Final[Scale] = ((1.0, "bit/s"), (1e3, "kbit/s"), (1e6, "Mbit/s"), (1e9, "Gbit/s"))
JOULES: Final[Scale] = ((1.0, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ"), (1e12, "TJ"))

ABSENT: Final = "–"


def fitting_unit(value: float, scale: Scale) -> tuple[float, str]:
    """The largest unit of `scale` in which `value`, rounded to three digits, is at least one."""
    # Rounding first keeps 999,999 bytes from becoming "1000 kB".
    rounded = float(f"{abs(value):.3g}")
    return max((unit for unit in scale if unit[0] <= rounded), default=scale[0])


def quantity(value: float | None, scale: Scale) -> str:
    """`value` in the unit that fits, such as "12.3 MB"; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return ABSENT
    factor, unit = fitting_unit(value, scale)
    return f"{significant(value / factor)} {unit}"


def significant(value: float | None) -> str:
    """Three significant digits without an exponent, thousands separated: "0.0123", "4.50", "12,300"."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def spread(mean: float | None, std: float | None, decimals: int = 3) -> str:
    """A number over seeds: "0.431 ± 0.004", or the mean alone when there is one seed."""
    if mean is None or not math.isfinite(mean):
        return ABSENT
    return f"{mean:.{decimals}f}" if std is None else f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def count(number: int, noun: str) -> str:
    """A counted noun: "1 round", "1,315 clients"."""
    return counted(number, noun)


def listing(words: Sequence[str]) -> str:
    """Words as a sentence lists them: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
