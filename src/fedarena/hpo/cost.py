"""What a course costs in seconds of a system that is simulated: FedHPO-Bench's system model (section 3.2, appendix E).

With N clients in a round, what one of them downloads and uploads, and c, the mean seconds that a client computes:

    a round  =  download / B_down  +  upload / B_up  +  α(N)  +  c H_N  +  server

Clients' computing times are exponential, so the slowest of N takes c H_N on average, where H_N = 1 + 1/2 + … + 1/N.
α(N) is the time to connect, which grows as the server runs out of connections. The published code has α(N) =
exp(N - 65535), which overflows where there are more clients; here it goes on as a straight line from there, with the
same slope. That code also has, for a server that sends to one client after the other, max(N download / B_server,
download / B_down) in place of the first part: `server_bytes_per_second` is its B_server.

Seconds that an optimizer itself takes are real ones, and never part of this.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundWork:
    """What a round of a course asks of the system; numbers, or arrays with an entry for each of several courses."""

    clients: Any  # in a round
    download_bytes: Any  # of each client
    upload_bytes: Any
    steps: Any  # gradient steps of each client, and a third for every batch of which it computes a loss alone


@dataclass(frozen=True)
class SystemModel:
    """How long rounds take.

    The defaults are the paper's: 0.25 MB a second up and 0.75 MB a second down. The mean time `client_s` that a client
    computes is that of its code where it was not measured, 1 second, whatever the configuration; with `step_s`, every
    local step takes so many seconds on average on top of it.
    """

    upload_bytes_per_second: float = 250_000.0
    download_bytes_per_second: float = 750_000.0
    server_bytes_per_second: float | None = None  # None: the server sends to all clients at once
    client_s: float = 1.0
    step_s: float = 0.0
    server_s: float = 0.0
    connections: int = 65_535  # that a server can have at a time

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None and one.name == "server_bytes_per_second":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                raise BadInputError(f"{one.name} of a system must be a number, not {quoted(value)}")
            must_be_positive = one.name == "connections" or one.name.endswith("_per_second")
            if value < 0 or (must_be_positive and value == 0):
                raise BadInputError(
                    f"{one.name} of a system must be {'above 0' if must_be_positive else '0 or more'}, not {value}"
                )

    def round_s(self, work: RoundWork) -> Any:
        """Expected seconds of a round."""
        clients = np.asarray(work.clients, dtype=np.float64)
        down = np.asarray(work.download_bytes, dtype=np.float64)
        up = np.asarray(work.upload_bytes, dtype=np.float64)
        downloading = down / self.download_bytes_per_second
        if self.server_bytes_per_second is not None:
            downloading = np.maximum(downloading, clients * down / self.server_bytes_per_second)
        sending = downloading + up / self.upload_bytes_per_second + self.connecting_s(clients)
        computing = (self.client_s + self.step_s * np.asarray(work.steps)) * harmonic_number(clients) + self.server_s
        return sending + computing

    def connecting_s(self, clients: Any) -> Any:
        """α(N), the time to connect with so many clients."""
        beyond = np.asarray(clients, dtype=np.float64) - self.connections
        return np.where(beyond <= 0, np.exp(np.minimum(beyond, 0.0)), 1.0 + beyond)


GOOD_NETWORK = SystemModel(upload_bytes_per_second=250e6, download_bytes_per_second=750e6)  # of appendix G
BAD_NETWORK = SystemModel()


def harmonic_number(clients: Any) -> Any:
    """1 + 1/2 + … + 1/N: how many times longer than the mean the slowest of N exponential times is, on average.

    >>> round(float(harmonic_number(5)), 6)
    2.283333
    """
    return digamma(np.asarray(clients, dtype=np.float64) + 1.0) + np.euler_gamma


def system_model(given: SystemModel | dict[str, Any] | None) -> SystemModel:
    """The system that somebody describes by some of its parameters."""
    if given is None:
        return SystemModel()
    if isinstance(given, SystemModel):
        return given
    known = [one.name for one in fields(SystemModel)]
    if not isinstance(given, dict):
        raise BadInputError(f"A system is described by parameters such as {known[0]}, not by {quoted(given)}")
    for name in given:
        if name not in known:
            from fedarena.core.registry import nearest

            raise BadInputError(f"A system has no parameter {quoted(name)}; {nearest(str(name), known)}")
    return SystemModel(**given)
