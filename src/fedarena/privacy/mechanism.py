"""The interface of a privacy mechanism: what it does to a run, and which ε that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedarena.core.registry import Registry
from fedarena.privacy.accounting import Sampled
from fedarena.simulate import Protocol, Selector
from fedarena.simulate.participation import Participation
from fedarena.simulate.selectors import Cyclic
from fedarena.simulate.selectors.shuffled import rounds_per_pass
from fedarena.train import Algorithm, Groups
from fedarena.train.engine import IntArray
from fedarena.train.own_code import has_own_code
from fedarena.transforms import Aggregator, Attack, Transform


@dataclass(frozen=True)
class RunFacts:
    """What a mechanism is told about the run that it is part of."""

    population: int  # clients who may be invited
    cohort: int  # whose updates a round wants
    rounds: int  # that the run is meant to have; each makes one step of the server
    training: str  # who holds the samples: natural, iid or centralized
    algorithm: Algorithm
    update: Groups  # what one client of that algorithm sends, to see its form
    protocol: Protocol
    selector: Selector
    transforms: Sequence[Transform]  # those of the configuration
    aggregator: Aggregator  # the one of the configuration
    attack: Attack  # of its corrupted clients
    keeps_states: bool = False  # whether clients keep something between their rounds for the algorithm
    phones_leave: bool = False  # whether it matters to whom the server can turn at what time
    samples: IntArray | None = None  # how many training samples every client has who may be invited
    ends_by_clock: bool = False  # whether virtual time may end the run


def most_invitations(facts: RunFacts, rounds: int) -> int:
    """How often the run's selector may invite a client in the first rounds."""
    # Nobody knows how many somebody's own protocol invites, on which it depends how long a pass over everybody takes.
    if facts.selector.sampling == "shuffled" and not has_own_code(facts.protocol):
        return -(-rounds // rounds_per_pass(facts.population, facts.protocol.most_invited()))
    if isinstance(facts.selector, Cyclic) and facts.selector.chooses_as(Cyclic):
        return -(-rounds // facts.selector.groups)
    return rounds


class Mechanism:
    """Protects nobody; every mechanism overrides what it does. Keyword-only constructor arguments are its settings.

    A mechanism compiles into parts of the update's way: `transforms` come after those of the run, so they are the last
    thing at the client and the first at the server. What it says about ε holds after so many steps of the server.
    """

    always_steps = False  # whether the server makes a step in every round, also when nobody's update came
    budget: float | None = None  # the ε that must not be exceeded
    covers_all_that_is_sent = False  # whether it makes everything private that a client sends, not the model alone
    audit: int | None = None  # canaries that are planted to find out how much of a client can be seen
    audited_norm: float = 1.0  # to which the mechanism shortens what a client sends
    participation: Participation | None = None  # counts who is invited, where ε depends on it
    delta: float | None = None  # the probability that ε does not hold; known once the mechanism is prepared
    simulates = False  # whether its ε is that of a training which does not take place

    def prepare(self, facts: RunFacts) -> None:
        """Told once, before the run: solves for what was not given, and refuses what would break the guarantee."""

    def check_goes_on(self, former: Mechanism) -> None:
        """Refuses to go on in a fork or a longer run where that would change what holds for the rounds of `former`."""

    def wrapped(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm as clients run it; called before anything else is built."""
        return algorithm

    def transforms(self) -> tuple[Transform, ...]:
        """What happens to updates after the run's own transforms."""
        return ()

    def aggregator(self, chosen: Aggregator) -> Aggregator:
        """What adds updates up; `chosen` is that of the configuration."""
        return chosen

    def epsilon(self, steps: int) -> float | None:
        """The ε for `delta` that so many steps of the server have spent; None if there is none to tell. It is cheap."""
        return None

    @property
    def sampled(self) -> Sampled | None:
        """What its steps are, where all are Gaussian noise on sums over cohorts, so that runs can be composed."""
        return None

    def choices(self) -> dict[str, Any]:
        """Settings that were solved for, by the names of options; they are written into the run's configuration."""
        return {}

    def notes(self) -> list[str]:
        """What the user should know."""
        return []

    def summary(self, steps: int) -> dict[str, Any] | None:
        """What the summary of a run says about its privacy after so many steps; None: nothing."""
        return None


MECHANISMS: Registry[type[Mechanism]] = Registry("privacy mechanism", base=Mechanism, takes=())


@MECHANISMS.register("none")
class NoPrivacy(Mechanism):
    """Updates arrive as they are."""
