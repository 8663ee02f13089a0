"""A graph cut into subgraphs by its communities, as FederatedScope-GNN does (Wang et al., KDD 2022).

Communities are those of the Louvain method (Blondel et al., 2008). Larger ones than a client has room for are cut;
then, the largest first, they are dealt out to clients in turn, each to the next one with room for it. So a client's
nodes know each other, and clients have about as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.later import later
from fedarena.data.store.schema import IntArray

if TYPE_CHECKING:
    import networkx
else:
    networkx = later("networkx")

_TOLERANCE = 20  # nodes that a client may have more than its share, as in FederatedScope …
_LARGEST_TOLERANCE = 0.1  # … but no more of its share, as graphs may be small


def owners_by_community(edges: IntArray, nodes: int, clients: int, seed: int) -> IntArray:
    """The client of every node."""
    if nodes < clients:
        raise BadInputError(f"A graph of {nodes:,} nodes cannot be cut into {clients:,} subgraphs")
    owners = np.empty(nodes, dtype=np.int64)
    for client, members in enumerate(dealt_out(communities(edges, nodes, seed), clients)):
        owners[members] = client
    return owners


def communities(edges: IntArray, nodes: int, seed: int) -> list[IntArray]:
    """The communities that the Louvain method finds, each sorted; the largest first."""
    graph = networkx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(edges.tolist())
    found = [np.array(sorted(members)) for members in networkx.community.louvain_communities(graph, seed=seed)]
    return sorted(found, key=lambda members: (-len(members), int(members[0])))


def dealt_out(groups: Sequence[IntArray], clients: int) -> list[IntArray]:
    """The members of groups for each of so many clients, about as many for each."""
    share = sum(map(len, groups)) // clients
    tolerance = min(_TOLERANCE, int(_LARGEST_TOLERANCE * share))
    most_of_a_piece = max(1, share - tolerance)
    pieces = [
        members[start : start + most_of_a_piece]
        for members in groups
        for start in range(0, len(members), most_of_a_piece)
    ]
    sizes: IntArray = np.zeros(clients, dtype=np.int64)
    dealt: list[list[IntArray]] = [[] for _ in range(clients)]
    turn = 0
    for piece in sorted(pieces, key=len, reverse=True):
        in_turn = (turn + np.arange(clients)) % clients
        with_room = in_turn[sizes[in_turn] + len(piece) <= share + tolerance]
        client = int(with_room[0]) if len(with_room) else int(np.argmin(sizes))
        dealt[client].append(piece)
        sizes[client] += len(piece)
        turn = (client + 1) % clients
    return [np.sort(np.concatenate(some)) for some in dealt]
