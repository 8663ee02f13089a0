"""What both faces, `fedarena profile-device` and `python -m fedarena.profiling`, do with what they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedarena.errors import BadInputError
from fedarena.profiling.server import DEFAULT_PORT, make_server

MODELS_HELP = "Models to measure, for example: cnn resnet18. With --serve, the port to listen at."


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
