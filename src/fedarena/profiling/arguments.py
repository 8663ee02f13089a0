"""What both faces, `fedarena profile-device` and `python -m fedarena.profiling`, do with what they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.profiling.server import DEFAULT_PORT, make_server

_UNEVEN = 0.5  # a standard deviation of so much of the mean
_MOST_DIGITS = 9


def port_of(words: Sequence[str]) -> int:
    """The port that stands after --serve."""
    if not words:
        return DEFAULT_PORT
    if len(words) > 1 or not words[0].isdecimal() or len(words[0]) > _MOST_DIGITS:
        raise BadInputError(f"After --serve there may be a port, not {quoted(' '.join(words))}")
    return int(words[0])


def serve(port: int, address: str, say: Callable[[str], None]) -> None:
    """Answers devices that measure their network until Ctrl-C."""
    with make_server(port, address) as server:
        host, port = server.server_address[:2]
        say(f"Listening at {host!s}, port {port}. Ctrl-C ends it.")
        if ip_address(str(host)).is_loopback:
            say("Only this machine can reach it. For other devices: --address and an address of this machine.")
        else:
            say(f"On the device: fedarena profile-device --server http://ADDRESS_OF_THIS_MACHINE:{port}")
            say("Anybody who reaches this port can send and receive meaningless bytes.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Ended.")


def notes_on(record: Mapping[str, Any]) -> list[str]:
    """What somebody should know who uses this record."""
    uneven = [
        entry["model"]
        for entry in record["models"]
        if (step := entry["seconds_per_step"])["std"] is not None and step["std"] > _UNEVEN * step["mean"]
    ]
    if not uneven:
        return []
    return [f"Times of {', '.join(uneven)} vary a lot; end other programs, or give fewer --threads, and measure again."]
