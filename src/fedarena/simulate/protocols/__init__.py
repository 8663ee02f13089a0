"""Protocols, one per file: whom the server waits for."""

from fedarena.simulate.protocols.asynchronous import Asynchronous
from fedarena.simulate.protocols.base import PROTOCOLS, Clock, Protocol, RoundPlan
from fedarena.simulate.protocols.buffered import Buffered
from fedarena.simulate.protocols.deadline import Deadline
from fedarena.simulate.protocols.ideal import Ideal
from fedarena.simulate.protocols.readiness import Readiness
from fedarena.simulate.protocols.staleness_aware import StalenessAware
from fedarena.simulate.protocols.synchronous import Synchronous

__all__ = [
    "PROTOCOLS",
    "Asynchronous",
    "Buffered",
    "Clock",
    "Deadline",
    "Ideal",
    "Protocol",
    "Readiness",
    "RoundPlan",
    "StalenessAware",
    "Synchronous",
]
