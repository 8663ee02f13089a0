"""Whether our kernels for CPUs compute here what plain operations do, told before anybody uses them."""

from __future__ import annotations

import torch

from fedarena.train.native.lstm import lstm_steps, lstm_steps_back
from fedarena.train.native.products import products_of_lanes, subtract_products
from fedarena.train.recurrence import plain_lstm_steps, plain_lstm_steps_back

_WIDTHS = (1, 16, 70)  # with and without what fills no vector


def largest_difference() -> float:
    """The largest difference of any number, in small layers of several forms; infinite if there is none at all."""
    random, largest = torch.Generator().manual_seed(0), 0.0

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    with torch.no_grad():
        for width in _WIDTHS:
            lanes, length, samples = 2, 3, 7
            weight = drawn(lanes, 4 * width, width) / width**0.5
            first = drawn(lanes, samples, width), drawn(lanes, samples, width)
            given = (drawn(lanes, length, samples, 4 * width), weight, *first)
            states, *kept = plain_lstm_steps(*given)
            grads = drawn(*states.shape), drawn(lanes, samples, width)
            expected = [states, *kept, *plain_lstm_steps_back(*grads, weight, *kept)]
            found = [*lstm_steps(*given), *lstm_steps_back(*grads, weight, *kept)]
            rows, columns = drawn(lanes, samples, 40 * width), drawn(lanes, 40 * width, width) / (40 * width)
            for left, right in ((rows, columns), (rows, columns.mT.contiguous().mT), (columns.mT, rows.mT)):
                expected.append(left @ right)
                found.append(products_of_lanes(left, right))
            left, right = drawn(lanes, width, samples), drawn(lanes, samples, width)
            expected.append(weight[:, :width] - 0.1 * (left @ right))
            found.append(weight[:, :width].clone())
            subtract_products(found[-1], left, right, 0.1)
            for one, other in zip(found, expected, strict=True):
                difference = float((one - other).abs().max())
                largest = max(largest, difference) if difference == difference else float("inf")
    return largest
