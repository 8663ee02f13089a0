"""Training at the server: an update from samples that it trusts, to compare those of clients with."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.core.errors import DivergedError
from fedarena.train import Engine, Groups, Job, is_finite, take_row, train_jobs


@dataclass(frozen=True)
class TrustedTraining:
    """The server in the role of a client that takes part for the first time in every step; it takes no virtual time."""

    engine: Engine
    client: int  # that holds the samples, in the engine's data

    def update(self, broadcast: Groups, version: int, round: int, lr_scale: float | None = None) -> Groups:
        """What it would send after training from this model."""
        job = Job(self.client, version + 1, version=version, lr_scale=lr_scale)
        (result,) = train_jobs(self.engine, [job], {version: broadcast}, {})
        update = take_row(result.update, 0)
        if not is_finite(update):
            raise DivergedError("The update that the server trained itself is not finite", round, None)
        return update
