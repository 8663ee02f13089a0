"""The simulation loop and its parts."""

from fedarena.simulate.jobs import Jobs, Outcome
from fedarena.simulate.loop import RoundOutcome, simulate
from fedarena.simulate.memories import Memories, MemoryChanges
from fedarena.simulate.memory_log import LogEnd, MemoryLog
from fedarena.simulate.protocols import PROTOCOLS, Clock, Protocol
from fedarena.simulate.selectors import SELECTORS, Feedback, Selector
from fedarena.simulate.simulation import ClockOptions, Simulation, Snapshot

__all__ = [
    "PROTOCOLS",
    "SELECTORS",
    "Clock",
    "ClockOptions",
    "Feedback",
    "Jobs",
    "LogEnd",
    "Memories",
    "MemoryChanges",
    "MemoryLog",
    "Outcome",
    "Protocol",
    "RoundOutcome",
    "Selector",
    "Simulation",
    "Snapshot",
    "simulate",
]
