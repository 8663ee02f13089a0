"""What both faces, `fedarena profile-device` and `python -m fedarena.profiling`, do with what they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.profiling.server import DEFAULT_PORT, make_server

_UNEVEN = 0.5  # a standard deviation of so much of the mean


def port_of(words: Sequence[str]) -> int:
    """The port that stands after --serve."""
    if not words:
        return DEFAULT_PORT
    if len(words) > 1 or not words[0].isdecimal():
        raise BadInputError(f"After --serve there may be a port, not {' '.join(words)!r}")
    return int(words[0])


def serve(port: int, say: Callable[[str], None]) -> None:
    """Answers devices that measure their network until Ctrl-C."""
    with make_server(port) as server:
        say(
            f"Listening at port {server.server_address[1]}. On the device: "
            f"fedarena profile-device --server http://ADDRESS_OF_THIS_MACHINE:{server.server_address[1]}"
        )
        say("Anybody who reaches this port can send and receive meaningless bytes. Ctrl-C ends it.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Ended.")


def remarks(record: Mapping[str, Any]) -> list[str]:
    """What somebody should know who uses this record."""
    uneven = [
        entry["model"]
        for entry in record["models"]
        if (step := entry["seconds_per_step"])["std"] is not None and step["std"] > _UNEVEN * step["mean"]
    ]
    if not uneven:
        return []
    return [f"Times of {', '.join(uneven)} vary a lot; end other programs, or give fewer --threads, and measure again."]
