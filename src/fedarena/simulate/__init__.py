"""The simulation loop and its parts."""

from fedarena.simulate.client_states import ClientStateChanges, ClientStateLog, ClientStates, LogEnd
from fedarena.simulate.jobs import Jobs, Outcome
from fedarena.simulate.loop import RoundOutcome, evaluate_now, simulate
from fedarena.simulate.protocols import PROTOCOLS, Clock, Protocol
from fedarena.simulate.selectors import SELECTORS, Feedback, Selector
from fedarena.simulate.simulation import ClockOptions, Simulation, Snapshot

__all__ = [
    "PROTOCOLS",
    "SELECTORS",
    "ClientStateChanges",
    "ClientStateLog",
    "ClientStates",
    "Clock",
    "ClockOptions",
    "Feedback",
    "Jobs",
    "LogEnd",
    "Outcome",
    "Protocol",
    "RoundOutcome",
    "Selector",
    "Simulation",
    "Snapshot",
    "evaluate_now",
    "simulate",
]
