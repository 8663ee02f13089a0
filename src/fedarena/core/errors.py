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


class CannotReadError(FedArenaError):
    """A file cannot be read now, for lack of memory, file descriptors or permission; it may be as good as ever."""


class SecureSumError(FedArenaError):
    """A secure sum cannot go on: too few of its members are left, or a message is not what it must be."""


class RunFailedError(FedArenaError):
    """A run had to stop (disk full, folder not writable). Finished rounds are intact."""


class DivergedError(RunFailedError):
    """A number of a run is not finite; `round` and, if it began at one, `client` say where."""

    def __init__(self, what: str, round: int, client: str | None):
        self.round, self.client = round, client
        where = f"in round {round}" + (f" at client {client!r}" if client is not None else "")
        super().__init__(f"{what} {where}. A smaller learning rate usually helps.")


class NotFiniteError(Exception):
    """What a client computed is not finite. Whoever knows the round and the client's name makes a sentence of it."""

    def __init__(self, what: str, client: int):
        self.what, self.client = what, client
        super().__init__(what)


class TrainingStuckError(RunFailedError):
    """Training cannot go on: nobody comes, nobody finishes, or a selector or the clock makes no sense any more."""
