"""How a device's bytes reach its server: gRPC, or HTTPS by the standard library alone. The invitation says which.

Both carry the same messages, and fail in the same few ways. What is done about a failure is up to the link.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterator
from typing import Protocol

from fedarena.client.identity import GRPC, Invitation
from fedarena.core.errors import BadInputError

SILENCE_SECONDS = 60.0  # after which a transfer that does not go on is begun again
MOST_BYTES = 1 << 21  # of a message


Failure = enum.Enum("Failure", ["NOT_WANTED", "GONE", "NOT_UNDERSTOOD", "NO_CONNECTION", "NO_ANSWER"])


class CallFailedError(Exception):
    """A call without an answer; `details` are the server's words, if it said any."""

    def __init__(self, failure: Failure, details: str = ""):
        self.failure, self.details = failure, details
        super().__init__(failure, details)


class Transport(Protocol):
    """Makes calls. Several threads may use it at once; each method may raise `CallFailedError`."""

    def ask(self, name: str, message: bytes, seconds: float) -> bytes:
        """The answer to a message."""

    def download(self, message: bytes) -> Generator[bytes, None, None]:
        """What the server has to send, piece by piece; closing it ends the call."""

    def upload(self, head: bytes, pieces: Iterator[bytes], packs: bool) -> bytes:
        """The answer to a message and the pieces that follow it; not all of them may be taken.

        `packs` says that they get much smaller by packing, for who can do that.
        """

    def close(self) -> None:
        """Ends all calls."""


def open_transport(invitation: Invitation) -> Transport:
    """The one that the server of an invitation speaks."""
    if invitation.transport != GRPC:
        from fedarena.client.https_transport import HttpsTransport

        return HttpsTransport(invitation)
    try:
        from fedarena.client.grpc_transport import GrpcTransport
    except ImportError as error:
        raise BadInputError(
            f"grpcio is missing ({error}); install it with: pip install grpcio, or in Termux: pkg install python-grpcio"
        ) from None
    return GrpcTransport(invitation)
