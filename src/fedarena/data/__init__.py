"""Federations: datasets split into clients, where they come from, how they are stored and described."""

from fedarena.data import partitioners, sources  # noqa: F401 - importing them fills the registries
from fedarena.data.pooled import PooledFederation
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, cached_source, load_federation
from fedarena.data.statistics.describe import FederationStatistics, describe
from fedarena.data.store.encoding import EncodedRows
from fedarena.data.store.federation import ClientSamples, Federation
from fedarena.data.store.schema import ColumnSpec, SourceSpec, TaskSpec
from fedarena.data.store.writer import FederationWriter

__all__ = [
    "FEDERATIONS",
    "PARTITIONERS",
    "ClientSamples",
    "ColumnSpec",
    "EncodedRows",
    "Federation",
    "FederationStatistics",
    "FederationWriter",
    "PooledFederation",
    "SourceSpec",
    "TaskSpec",
    "cached_source",
    "describe",
    "load_federation",
]
