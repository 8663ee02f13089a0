"""A compression of one's own, as FedScale's Fig. 18: clients send the largest tenth of what they have learned.

python examples/plugins/own_compression.py
"""

from __future__ import annotations

import fedarena
from fedarena.transforms.compressor import Compressor, length_of
from fedarena.transforms.encodings import Values
from fedarena.transforms.wire import common_type


class LargestTenth(Compressor):
    """All but the largest tenth of an update becomes zero, and zeros are not sent."""

    def compress(self, vectors, rows, kept):
        least = vectors.abs().topk(vectors.shape[1] // 10).values[:, -1:]
        return {"values": vectors * (vectors.abs() >= least)}, {}

    def restore(self, messages, form):
        return messages["values"]

    def encoding(self, form):
        return Values(length_of(form), common_type(form))

    def values_left(self, values: int, form) -> int:
        return length_of(form) // 10


SETTINGS = {"transforms": [LargestTenth]}

if __name__ == "__main__":
    print(fedarena.run(SETTINGS, federation="digits", rounds=20, cohort=10).summary["final"]["accuracy"])
