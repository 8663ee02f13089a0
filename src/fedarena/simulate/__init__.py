"""The simulation loop and its parts."""

from fedarena.simulate.loop import RoundOutcome, Simulation, Snapshot, simulate
from fedarena.simulate.memories import Memories, MemoryChanges
from fedarena.simulate.memory_log import LogEnd, MemoryLog

__all__ = [
    "LogEnd",
    "Memories",
    "MemoryChanges",
    "MemoryLog",
    "RoundOutcome",
    "Simulation",
    "Snapshot",
    "simulate",
]
