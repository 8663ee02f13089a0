"""Bringing an optimizer to where another one was, without having saved anything of it."""

from __future__ import annotations

from collections.abc import Iterable

from fedarena.core.errors import BadInputError
from fedarena.hpo.optimizers.optimizer import Optimizer, Proposal


def replay(optimizer: Optimizer, history: Iterable[tuple[Proposal, float]]) -> None:
    """Asks and tells a new optimizer all over again; it then goes on as the one whose history this is would have.

    Optimizers are deterministic, so they ask for the same again. Where one does not, because its options, its seed, the
    space or the version of a library differ, that is said, and the search has to begin anew.
    """
    for number, (proposal, value) in enumerate(history, start=1):
        asked = optimizer.ask()
        if asked != proposal:
            raise BadInputError(
                f"The search cannot go on: proposal {number} was {_described(proposal)}, but now the optimizer asks "
                f"for {_described(asked)}; its options, its seed, the space or a library must have changed"
            )
        optimizer.tell(asked, value)


def _described(proposal: Proposal) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in proposal.configuration.items())
    return f"{proposal.rounds} rounds of course {proposal.course} ({settings})"
