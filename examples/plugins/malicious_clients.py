"""Malicious clients, and what stands them, as FedScale's Fig. 19: permuted labels, and updates that are clipped.

python examples/plugins/malicious_clients.py
"""

from __future__ import annotations

import numpy as np

import fedarena
from fedarena.transforms import Attack


class PermutedLabels(Attack):
    """They train on samples whose labels are permuted."""

    def poison(self, samples):
        order = np.random.default_rng(0).permutation(10)
        return {"y": order[samples.columns["y"]]}


SETTINGS = {"attack": {"name": PermutedLabels, "share": 0.2}, "transforms": [{"name": "clip", "bound": 0.3}]}

if __name__ == "__main__":
    print(fedarena.run(SETTINGS, federation="digits", rounds=20, cohort=10).summary["final"]["accuracy"])
