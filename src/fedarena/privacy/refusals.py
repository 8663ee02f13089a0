"""What would break the guarantee of a central mechanism, and is refused with a sentence that says why.

The argument that must hold: a client's clipped update is a function of its own data and of what was released before;
whether it is drawn depends on nothing but chance; and what other clients send, and whether it counts, does not depend
on it. Then one client changes the sum by at most the clipping norm, with the chance that the accountant knows.

What clients keep between their rounds (control variates, personal models, what compression left over) stays with them.
What they send may depend on it, and so on whether they were drawn before. Drawn by themselves, as with ``poisson``, a
step is a mixture of at most the same distributions whatever they keep, so accounting stays right; or, as with
``shuffled``, it counts on no chance at all. For sets of a fixed size there is no such argument.
"""

from __future__ import annotations

from fedarena.core.errors import BadInputError
from fedarena.privacy.mechanism import RunFacts
from fedarena.simulate.protocols import Deadline, Ideal, Readiness
from fedarena.simulate.selectors import BySize, LeavingSoon, Oort, PowerOfChoice
from fedarena.transforms.aggregators import Mean

_DRAWN = "selector=poisson, uniform or shuffled"
_WHY_NOT_SELECTED = {
    Oort: "invites clients by their losses, so whom it invites tells of their data",
    PowerOfChoice: "invites clients by their losses, so whom it invites tells of their data",
    BySize: "invites clients by how many samples they have, so their chances are not those that are accounted for",
    LeavingSoon: "invites clients by when they leave, so their chances are not those that are accounted for",
}


def check_guarantee(facts: RunFacts, public_timing: bool = False) -> None:
    """Refuses a run in which ε would not hold."""
    for check in (_check_clients, _check_selector, _check_aggregator, _check_attack, _check_states):
        if (why := check(facts)) is not None:
            raise BadInputError(f"Privacy would be broken: {why}")
    if (why := _check_protocol(facts, public_timing)) is not None:
        raise BadInputError(f"Privacy would be broken: {why}")


def _check_clients(facts: RunFacts) -> str | None:
    if facts.training == "centralized":
        return "training=centralized has no clients who could be protected; choose training=natural"
    if facts.training == "iid":
        return (
            "training=iid deals everybody's samples out to made-up clients, who would be protected instead of real "
            "ones; choose training=natural"
        )
    return None


def _check_selector(facts: RunFacts) -> str | None:
    selector = facts.selector
    if selector.sampling is None:
        why = next(
            (reason for kind, reason in _WHY_NOT_SELECTED.items() if isinstance(selector, kind)),
            "does not draw clients in a way that can be accounted for",
        )
        return f"the selector {type(selector).__name__} {why}; choose {_DRAWN}"
    if selector.sampling == "uniform" and facts.phones_leave:
        return (
            "cohorts of a fixed size are drawn among those who are available, which are fewer than the population that "
            "is accounted for; choose selector=poisson, whose chances do not depend on who is available, or "
            "protocol=ideal"
        )
    return None


def _check_aggregator(facts: RunFacts) -> str | None:
    if type(facts.aggregator) is not Mean:
        return (
            f"the aggregator {type(facts.aggregator).__name__} gives one client more influence than its clipped update "
            "divided by the cohort; leave it out"
        )
    return None


def _check_attack(facts: RunFacts) -> str | None:
    if facts.attack.forges_updates and facts.attack.sees != "own":
        return (
            f"corrupted clients of the attack {type(facts.attack).__name__} send what follows from the updates of "
            "others, so one client changes more than its own update; choose an attack whose clients see nothing but "
            "their own, such as sign_flip"
        )
    return None


def _check_states(facts: RunFacts) -> str | None:
    if facts.selector.sampling != "uniform" or facts.cohort == facts.population:
        return None
    keepers = [type(t).__name__ for t in facts.transforms if t.client_init(facts.update)]
    if facts.keeps_states:
        keepers.insert(0, type(facts.algorithm).__name__)
    if keepers:
        return (
            f"with {keepers[0]}, what clients send depends on whether they took part before, which the bound for "
            "cohorts of a fixed size does not cover; choose selector=poisson"
        )
    return None


def _check_protocol(facts: RunFacts, public_timing: bool) -> str | None:
    protocol = facts.protocol
    name = type(protocol).__name__
    if protocol.overlaps:
        return (
            f"with the protocol {name}, which step an update is used in, and who is invited next, depends on how fast "
            "others are, which is not accounted for; choose protocol=ideal, readiness or deadline"
        )
    if facts.ends_by_clock:
        return (
            "clock.hours ends the run at a time that depends on how many samples clients have; give a number of rounds "
            "instead, and clock.hours=null"
        )
    if type(protocol) is Readiness and protocol.share < 1:
        return (
            "with protocol.share below 1, a slow client is replaced by nobody or counted depending on how fast others "
            "are; choose protocol.share=1"
        )
    if type(protocol) is Deadline:
        if protocol.minimum_invited > 1 or protocol.minimum_success_share * facts.cohort > 1:
            return (
                "a round that fails for want of clients throws away what others sent, so one client changes more than "
                "its own update; choose protocol.minimum_invited=1 and protocol.minimum_success_share="
                f"{1 / facts.cohort:g}"
            )
    elif type(protocol) not in (Ideal, Readiness):
        return (
            f"with the protocol {name}, one client who is faster pushes another out of the round, so it changes more "
            "than its own update; choose protocol=ideal, readiness or deadline"
        )
    partial = facts.algorithm.partial_work
    if partial is not None and partial.whole_jobs is not None and protocol.deadline_seconds == float("inf"):
        return (
            f"with {type(facts.algorithm).__name__}, how much a client does depends on how fast others in its cohort "
            "are; choose another algorithm"
        )
    if facts.phones_leave and not public_timing:
        return (
            f"with the protocol {name}, the time that a round takes depends on how many samples clients have, and who "
            "is available for the next one depends on that time; choose protocol=ideal, or privacy.public_timing=true "
            "if sizes of data and times of phones need no protection"
        )
    return None
