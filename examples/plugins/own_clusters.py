"""Clusters of one's own: edge servers between clients and the server, with links of different speeds.

python examples/plugins/own_clusters.py
"""

from __future__ import annotations

import numpy as np

import fedarena
from fedarena.simulate.edges import Edges


class Towns(Edges):
    """Ten clients with neighbouring numbers are a town; every other town is far away."""

    def edge_of(self, clients):
        return clients // 10

    def link_seconds(self, edges, size_bytes):
        return np.where(edges % 2, 4.0, 1.0) * super().link_seconds(edges, size_bytes)


SETTINGS = {
    "fleet": "fedscale",
    "protocol": "synchronous",
    "edges": {"name": Towns, "bits_per_second": 1e6, "rounds": 2},
}

if __name__ == "__main__":
    print(fedarena.run(SETTINGS, federation="digits", rounds=20, cohort=5).summary["final"]["accuracy"])
