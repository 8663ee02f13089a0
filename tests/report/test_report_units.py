from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.display.drawing.units import (
    ABSENT,
    BYTES,
    FLOPS,
    SECONDS,
    count,
    fitting_unit,
    listing,
    quantity,
    significant,
    spread,
)


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (0, BYTES, "0 B"),
        (999, BYTES, "999 B"),
        (999_499, BYTES, "999 kB"),
        (999_999, BYTES, "1.00 MB"),
        (52_800_000, BYTES, "52.8 MB"),
        (5.2e9, FLOPS, "5.20 GFLOP"),
        (3e21, FLOPS, "3,000 EFLOP"),
        (0.25, SECONDS, "250 ms"),
        (95, SECONDS, "1.58 min"),
        (86_400 * 3, SECONDS, "3.00 d"),
        (None, BYTES, ABSENT),
        (math.nan, BYTES, ABSENT),
        (math.inf, FLOPS, ABSENT),
    ],
)
def test_quantities_read_as_people_write_them(value, scale, text):
    assert quantity(value, scale) == text


@given(st.floats(min_value=1e-3, max_value=1e21), st.sampled_from([BYTES, FLOPS, SECONDS]))
def test_a_quantity_means_its_value_to_three_digits(value, scale):
    number, unit = quantity(value, scale).split(" ")
    factor = {name: factor for factor, name in scale}[unit]
    assert float(number.replace(",", "")) * factor == pytest.approx(value, rel=0.00501)
    assert re.fullmatch(r"[\d,]+(\.\d+)?", number), "no exponent"


@given(st.floats(min_value=1.0, max_value=9.9e17))
def test_a_number_in_its_fitting_unit_is_between_one_and_a_thousand(value):
    factor, _ = fitting_unit(value, FLOPS)
    assert 1 <= float(f"{value:.3g}") / factor < 1000


def test_significant_digits():
    assert [significant(v) for v in (0.012345, 4.5, 36.04, 999.6, 12_345)] == [
        "0.0123",
        "4.50",
        "36.0",
        "1,000",
        "12,300",
    ]


def test_spread_counts_and_lists():
    assert spread(0.43123, 0.0041) == "0.431 ± 0.004"
    assert spread(0.43123, None) == "0.431"
    assert spread(None, None) == spread(math.nan, None) == ABSENT
    assert (count(1, "round"), count(1315, "client"), count(0, "run")) == ("1 round", "1,315 clients", "0 runs")
    assert [listing(w) for w in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
