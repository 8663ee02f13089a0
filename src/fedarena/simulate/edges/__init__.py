"""Edge servers between clients and the server, one way to group clients per file."""

from fedarena.simulate.edges.base import EDGE_COLUMNS, EDGES, EdgeFacts, EdgeLinks, Edges, NoEdges
from fedarena.simulate.edges.by_attribute import ByAttribute
from fedarena.simulate.edges.by_chance import ByChance

__all__ = ["EDGES", "EDGE_COLUMNS", "ByAttribute", "ByChance", "EdgeFacts", "EdgeLinks", "Edges", "NoEdges"]
