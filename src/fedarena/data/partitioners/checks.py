"""What several partitioners must be sure of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedarena.core.errors import BadInputError

Clients = Annotated[int, Field(ge=1)]
MinSamples = Annotated[int, Field(ge=1)]


def check_enough(num_samples: int, clients: int, samples_per_client: int) -> None:
    """Raises unless every client can get `samples_per_client` samples."""
    if clients * samples_per_client > num_samples:
        raise BadInputError(
            f"{num_samples} samples are not enough for {clients} clients with at least {samples_per_client} "
            f"each; at most {num_samples // samples_per_client} clients are possible."
        )
