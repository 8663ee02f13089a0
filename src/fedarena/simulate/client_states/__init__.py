"""What clients keep between their rounds: for those who took part, in RAM up to a limit, and on disk."""

from fedarena.simulate.client_states.log import ClientStateLog, LogEnd, StatePlace, write_part
from fedarena.simulate.client_states.store import DEFAULT_RAM_BYTES, ClientStateChanges, ClientStates, packed_states

__all__ = [
    "DEFAULT_RAM_BYTES",
    "ClientStateChanges",
    "ClientStateLog",
    "ClientStates",
    "LogEnd",
    "StatePlace",
    "packed_states",
    "write_part",
]
