"""How products of convolutions are divided among a GPU's processors; the kernels themselves need Triton."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.train import convolution_kernels
from fedarena.train.convolution_kernels import bias_tiles, gradient_tiles, tiles

# Bytes of a processor's own memory: H100 and H200, A100, most others.
PROCESSORS = [232_448, 166_912, 101_376]
forms = {
    "channels": st.sampled_from([1, 3, 32, 64, 96, 128, 256, 512]),
    "outputs": st.integers(1, 512),
    "rows": st.integers(1, 100_000),
    "lanes": st.integers(1, 512),
}


@pytest.mark.parametrize("of_processor", PROCESSORS)
@given(**forms)
def test_a_part_of_a_product_fits_into_a_processor(of_processor, channels, outputs, rows, lanes) -> None:
    t = tiles(channels, outputs, rows, lanes)
    stages = convolution_kernels._stages_with_room(t, of_processor)
    assert 2 <= stages <= t["num_stages"]  # with a single one, nothing would be read ahead
    assert stages * t["DEPTH"] * (t["ROWS"] + t["COLUMNS"]) * 4 <= of_processor
    if of_processor == max(PROCESSORS):
        assert stages == t["num_stages"]


@given(**forms, kernel=st.integers(1, 7))
def test_sums_in_parts_have_rows_for_all_of_them(channels, outputs, rows, lanes, kernel) -> None:
    t = gradient_tiles(channels, outputs, (kernel, kernel), rows, lanes)
    assert t["PARTS"] == 1 or t["PARTS"] * t["ROWS"] <= rows
    of_biases = bias_tiles(outputs, rows, lanes)
    assert of_biases["PARTS"] == 1 or (of_biases["PARTS"] - 1) * of_biases["ROWS"] < rows


@given(**forms)
def test_fewer_lanes_have_no_larger_parts(channels, outputs, rows, lanes) -> None:
    few, many = tiles(channels, outputs, rows, 1), tiles(channels, outputs, rows, lanes)
    assert few["ROWS"] * few["COLUMNS"] <= many["ROWS"] * many["COLUMNS"]
