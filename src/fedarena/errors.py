"""The errors a user can meet. Each carries one sentence that says what is wrong and what would be right."""

from __future__ import annotations


class FedArenaError(Exception):
    """An error with a sentence for the user; `exit_code` is what the command line returns."""

    exit_code = 1


class BadInputError(FedArenaError):
    """What the user gave cannot be used: a setting, a file, a name. Nothing was changed."""

    exit_code = 2


class DamagedFileError(BadInputError):
    """A store or checkpoint on disk is incomplete or corrupt. The sentence names the file."""


class RunFailedError(FedArenaError):
    """A run had to stop (disk full, folder not writable). Finished rounds are intact."""


class DivergedError(RunFailedError):
    """Training produced a loss that is not finite; `round` and `client` say where it began."""

    def __init__(self, round: int, client: str, value: float):
        self.round, self.client, self.value = round, client, value
        super().__init__(
            f"The training loss became {value} in round {round} at client {client!r}. "
            "A smaller learning rate (local.lr) usually helps."
        )
