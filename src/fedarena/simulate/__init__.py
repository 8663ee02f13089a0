"""The simulation loop and its parts."""

from fedarena.simulate.loop import RoundOutcome, Simulation, Snapshot, simulate

__all__ = ["RoundOutcome", "Simulation", "Snapshot", "simulate"]
