"""How many devices may be in the group of a secure sum, and how many of them it takes to the end."""

from __future__ import annotations

from fedarena.core.errors import SecureSumError

LEAST_MEMBERS = 3  # of two, each knows the other's vector when it hears the sum
MOST_MEMBERS = 64  # a device makes a mask for every other, and the server two for every pair of which one has left


def usual_threshold(members: int) -> int:
    """More than two thirds, which holds also against a third of the members who help the server."""
    return 2 * members // 3 + 1


def check_threshold(threshold: int, members: int) -> None:
    """Half of a group must not be able to unmask on its own what the other half does not know of."""
    if not members // 2 < threshold <= members:
        raise SecureSumError(
            f"A threshold of {threshold} does not protect a group of {members}: it must be from {members // 2 + 1} to "
            f"{members}"
        )
