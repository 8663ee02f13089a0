"""What to say when workers fail: which machine, what happened, and what helps."""

from __future__ import annotations

import errno
import re

from fedarena.core.errors import BadInputError, FedArenaError, RunFailedError

MOST_LOST = 3  # workers that a task may end
MOST_UNANSWERED = 3  # workers in a row that end before they have answered


def never_answered(error: BaseException) -> FedArenaError:
    """What to say when one worker after the other ends before it answers."""
    where = re.search(r"\bip=([^,\s)]+)", str(error))
    last = "the last one" if where is None else f"the last one on {where[1]}"
    if "ModuleNotFoundError" in str(error) or "failed to import" in str(error):
        return BadInputError(
            f"{MOST_UNANSWERED} workers could not import FedArena, {last} ({one_line(error)}); install the same "
            "version there, in the Python that Ray was started with"
        )
    return RunFailedError(f"{MOST_UNANSWERED} workers ended before they had built the run, {last}: {one_line(error)}")


def never_began(error: BaseException) -> bool:
    """Whether a worker is gone that had not even begun, as when its machine is: that says nothing about the run.

    Ray tells it in words alone.
    """
    return "never ran" in str(error)


def never_done(about: str, node: str, is_late: bool) -> str:
    """What to say of a task that has ended as many workers as it may."""
    if is_late:
        return (
            f"{about} has kept {MOST_LOST} workers busy for far too long, the last one on {node}; see whether your "
            "own code waits for something there, then go on with fedarena resume; finished rounds are kept"
        )
    return (
        f"{about} ended {MOST_LOST} workers, the last one on {node}, probably for lack of memory; "
        "choose a smaller engine.lanes or fewer workers on a machine; finished rounds are kept"
    )


def one_line(error: BaseException) -> str:
    """What an error comes to, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).partition(" Worker exit type")[0][:300]


def is_full_disk(error: BaseException) -> bool:
    """Whether something failed for want of room on a disk: here, or in a call whose error this is."""
    cause: BaseException | None = getattr(error, "cause", error)
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def full_disk(node: str, error: BaseException) -> str:
    """What to say when it is."""
    return (
        f"The disk of {node} is full ({one_line(error)}); make room there, in /tmp and where the federation lies, "
        "and go on with fedarena resume; finished rounds are kept"
    )
