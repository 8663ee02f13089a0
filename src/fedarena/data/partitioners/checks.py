"""What several partitioners must be sure of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.streams import generator
from fedarena.data.store.schema import IntArray

MAX_ATTEMPTS = 1000
Alpha = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Clients = Annotated[int, Field(ge=1)]
MinSamples = Annotated[int, Field(ge=1)]


def check_enough(num_samples: int, clients: int, samples_per_client: int) -> None:
    """Raises unless every client can get `samples_per_client` samples."""
    if clients * samples_per_client > num_samples:
        raise BadInputError(
            f"{num_samples} samples are not enough for {clients} clients with at least {samples_per_client} "
            f"each; at most {num_samples // samples_per_client} clients are possible."
        )


def draw_until_enough(
    draw: Callable[[np.random.Generator], IntArray],
    stream: str,
    seed: int,
    clients: int,
    min_samples: int,
    alpha: float,
) -> IntArray:
    """The client of every sample, drawn again until all have `min_samples`; `alpha` is what the draws depend on."""
    for attempt in range(MAX_ATTEMPTS):
        client_of_sample = draw(generator(seed, stream, attempt))
        if np.bincount(client_of_sample, minlength=clients).min() >= min_samples:
            return client_of_sample
    raise BadInputError(
        f"In {MAX_ATTEMPTS} draws with alpha {alpha:g}, some of {clients} clients always had fewer than "
        f"{min_samples} samples; use a larger alpha, fewer clients or a smaller min_samples."
    )
