"""Matrix products by MKL and by oneDNN on one core of this machine, in turn, and whether FedArena uses the latter here.

    python benchmarks/wide_products.py [--repetitions 15]

Sizes are those of the speed benchmark's steps: rows, terms and columns of a product. On most processors both libraries
are about as fast; FedArena asks oneDNN on those where it uses wider instructions (see `fedarena.train.wide_products`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedarena.train import wide_products

SIZES = {
    "a step of the MLP's first layer": (10, 784, 200),
    "all samples of some clients in it": (480, 784, 200),
    "the mean of their updates": (200, 480, 784),
    "scores of 640 characters": (640, 128, 98),
    "their gradient": (98, 640, 128),
    "a table of characters": (98, 16, 1024),
    "a small layer": (10, 200, 62),
    "a large square": (1024, 1024, 1024),
}
SECONDS = 0.02  # of a measurement


def seconds_of(multiply: Callable[[Tensor, Tensor], Tensor], left: Tensor, right: Tensor) -> float:
    """What a product takes."""
    done, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < SECONDS or not done:
        multiply(left, right)
        done += 1
    return taken / done


def main() -> None:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15, help="of which the median counts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        for what, (rows, terms, columns) in SIZES.items():
            left, right = torch.randn(rows, terms), torch.randn(terms, columns)
            ways = torch.mm, wide_products._wide
            found = [[seconds_of(way, left, right) for way in ways] for _ in range(given.repetitions)]
            mkl, onednn = (statistics.median(seconds) for seconds in zip(*found, strict=True))
            told = f"MKL {mkl * 1e6:,.0f} µs, oneDNN {onednn * 1e6:,.0f} µs, {mkl / onednn:.2f} times as fast"
            print(f"{what} ({rows} x {terms} x {columns}): {told}")
    used = "uses" if wide_products.are_faster_here() else "does not use"
    print(f"On this machine FedArena {used} oneDNN for products of {wide_products.FEWEST / 1e6:.1f} million and more.")


if __name__ == "__main__":
    main()
