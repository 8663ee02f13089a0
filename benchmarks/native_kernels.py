"""Our own kernels for CPUs beside torch's libraries on one core of this machine, in turn.

    python benchmarks/native_kernels.py [--repetitions 9]

Products are those of the speed benchmark's steps, with what is turned as it comes from training (`left'`, `right'`).
LSTM layers are whole steps of training, with the products of their inputs and of their weights' gradients; beside them
is the library that FedArena takes without such kernels (see `fedarena.train.native`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedarena.train import wide_products
from fedarena.train.graphs import separate_updates
from fedarena.train.native import why_absent
from fedarena.train.native.products import products_of_lanes
from fedarena.train.program import record
from fedarena.train.recurrent import RecurrentLayers
from fedarena.train.scripts import Script

# Rows, terms, columns; which of the factors are turned.
PRODUCTS = {
    "ten samples in the MLP's first layer": (10, 784, 200, "right"),
    "the gradient of its weights": (200, 10, 784, "left"),
    "the gradient of what goes into such a layer": (10, 200, 784, ""),
    "a small layer": (10, 200, 62, "right"),
    "scores of 640 characters": (640, 64, 98, "right"),
    "the gradient of their weights": (98, 640, 64, "left"),
    "the gradient of an LSTM's weights": (256, 640, 64, "left"),
}
# Length, samples, inputs, width.
LAYERS = {"small": (64, 10, 16, 64), "LEAF's second": (80, 10, 256, 256), "tiny": (20, 10, 16, 16)}
SECONDS = 0.05  # of a measurement


def seconds_of(work: Callable[[], Any]) -> float:
    """What a piece of work takes."""
    done, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < SECONDS or not done:
        work()
        done += 1
    return taken / done


def layer_step(length: int, samples: int, inputs: int, width: int, natively: bool) -> Callable[[], None]:
    """A step of gradient descent of a layer, as a program of the engine."""
    layer = torch.nn.LSTM(inputs, width)
    names = [name for name, _ in layer.named_parameters()]
    params = [p.detach().unsqueeze(0).clone() for p in layer.parameters()]
    x = torch.randn(1, length, samples, inputs)

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, params, (x,))[0].square().mean()

    def step(tensors: list[Tensor]) -> list[Tensor]:
        *now, x = tensors
        with RecurrentLayers(natively=natively):
            found = vmap(grad(loss))(dict(zip(names, now, strict=True)), x)
        return [p - 0.01 * found[name] for name, p in zip(names, now, strict=True)]

    pure, updates = separate_updates(record(step, [*params, x]), len(params))
    script = Script(pure, updates, [*params, x], natively=natively)
    return lambda: script(*params, x)


def measured(ways: list[Callable[[], Any]], repetitions: int) -> list[float]:
    """Medians of what each way takes, in seconds; they take turns."""
    for way in ways:
        way()
    found = [[seconds_of(way) for way in ways] for _ in range(repetitions)]
    return [statistics.median(seconds) for seconds in zip(*found, strict=True)]


def main() -> None:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=9, help="of which the median counts")
    given = parser.parse_args()
    if reason := why_absent():
        raise SystemExit(f"There are no such kernels on this machine: {reason}")
    torch.set_num_threads(1)
    for what, (rows, terms, columns, turned) in PRODUCTS.items():
        left = torch.randn(1, terms, rows).mT if turned == "left" else torch.randn(1, rows, terms)
        right = torch.randn(1, columns, terms).mT if turned == "right" else torch.randn(1, terms, columns)
        with torch.inference_mode():
            ways = [
                lambda left=left, right=right: torch.bmm(left, right),
                lambda left=left, right=right: wide_products._products_of_lanes(left, right, fewest=1),
                lambda left=left, right=right: products_of_lanes(left, right),
            ]
            mkl, onednn, own = measured(ways, given.repetitions)
        told = f"MKL {mkl * 1e6:,.0f} µs, oneDNN {onednn * 1e6:,.0f} µs, our own {own * 1e6:,.0f} µs"
        print(
            f"{what} ({rows} x {terms} x {columns}{', ' if turned else ''}{turned}{chr(39) if turned else ''}): {told}"
        )
    for what, sizes in LAYERS.items():
        library, own = measured([layer_step(*sizes, natively) for natively in (False, True)], given.repetitions)
        told = f"library {library * 1e6:,.0f} µs, our own {own * 1e6:,.0f} µs, {library / own:.2f} times as fast"
        print(f"a step of an LSTM, {what} ({' x '.join(map(str, sizes))}): {told}")


if __name__ == "__main__":
    main()
