"""Rounds with secure aggregation in virtual time: who is in which group, what that takes, and whose updates are lost.

As in Bonawitz et al., "Towards Federated Learning at Scale", MLSys 2019, it belongs to the reporting of a round: when
the protocol does not wait any more for those who train, those who are done and still there form groups, exchange keys
and shares, send their masked updates, and help to take the masks off the sum. In every one of these five trips a group
waits for its slowest member. Who leaves before its masked update is there is missing in the sum; if too many have left
before the end, the group's sum cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedarena.client.secure_limits import LEAST_MEMBERS
from fedarena.core import streams
from fedarena.simulate.jobs import BoolArray, FloatArray, Jobs, Outcome
from fedarena.simulate.phones import Phones
from fedarena.simulate.protocols import RoundPlan
from fedarena.simulate.secure_aggregation.base import SECURE_COLUMNS, SecureAggregation
from fedarena.train.engine import IntArray


@dataclass(frozen=True)
class _Times:
    """What a secure sum takes; arrays have an entry per member."""

    bytes_down: IntArray
    bytes_up: IntArray
    keys_down: IntArray  # the part of these before masked updates are sent
    keys_up: IntArray
    down: FloatArray  # seconds that a byte takes on its own link
    up: FloatArray
    keys: FloatArray  # when the group's keys are exchanged, counted from the beginning
    masked: FloatArray  # when its masked updates are all there
    end: FloatArray  # when masks are off

    def cut_short(self, gone: BoolArray, sending_seconds: FloatArray, update_bytes: int) -> _Times:
        """The same, but for those who were gone only keys and what they sent of their updates in so many seconds."""
        whole = update_bytes * self.up
        shares = np.divide(sending_seconds, whole, out=np.zeros_like(whole), where=whole > 0)
        has_keys = sending_seconds > 0
        sent = has_keys * (self.keys_up + np.floor(np.clip(shares, 0, 1) * update_bytes).astype(np.int64))
        return replace(
            self,
            bytes_down=np.where(gone, has_keys * self.keys_down, self.bytes_down),
            bytes_up=np.where(gone, sent, self.bytes_up),
        )


@dataclass(frozen=True)
class SecureRounds:
    """Secure aggregation in the rounds of a run."""

    secure: SecureAggregation
    seed: int
    update_bytes: int  # of a masked update

    def groups(self, clients: IntArray, round: int) -> IntArray:
        """The number of the group that each of these is in: by chance, and about as many in each."""
        number = -(-len(clients) // self.secure.group)
        ranks = np.argsort(np.argsort(streams.uniform(self.seed, "secure group", round, clients), kind="stable"))
        return ranks * number // max(len(clients), 1)

    def closed(self, plan: RoundPlan, phones: Phones, round: int) -> RoundPlan:
        """The round with what comes behind it: secure sums of the groups of which enough is left."""
        begin, jobs = plan.clock.time, plan.ended
        used = np.flatnonzero(plan.steps >= 0)
        if not len(used):
            return plan
        members = used[phones.stays(jobs.clients[used], jobs.end[used], begin)]
        clients, since = jobs.clients[members], jobs.end[members]
        groups = self.groups(clients, round)
        times = self._times(clients, jobs.numbers[members], groups, phones)
        arrives = phones.stays(clients, since, begin + times.masked)
        left = phones.leaving_at(clients, since, begin + times.masked)
        sending = phones.seconds_there(clients, begin + times.keys, left)
        times = times.cut_short(~arrives, sending, self.update_bytes)
        remains = arrives & phones.stays(clients, since, begin + times.end)
        summed = arrives & self._is_enough(groups, remains)
        outcomes, steps = jobs.outcomes.copy(), plan.steps.copy()
        uploaded, end = jobs.uploaded.copy(), jobs.end.copy()
        outcomes[used], steps[used], uploaded[used] = int(Outcome.LEFT_UPLOADING), -1, np.inf
        outcomes[members[arrives]] = int(Outcome.LOST_WITH_ITS_GROUP)
        outcomes[members[summed]], steps[members[summed]] = int(Outcome.USED), plan.steps[members[summed]]
        end[used] = phones.leaving_at(jobs.clients[used], jobs.end[used], begin)
        end[members] = left
        uploaded[members[arrives]] = end[members[arrives]] = begin + times.masked[arrives]
        of_group = np.full(len(jobs), -1)
        of_group[members] = groups
        return replace(
            plan,
            ended=replace(_with_traffic(jobs, members, times), outcomes=outcomes, uploaded=uploaded, end=end),
            steps=steps,
            clock=replace(
                plan.clock,
                time=begin + float(times.end.max(initial=0.0)),
                version=plan.clock.version - int(not summed.any()),
            ),
            secure_groups=of_group,
        )

    def _is_enough(self, groups: IntArray, remains: BoolArray) -> BoolArray:
        """Whether enough of the group of each member remains."""
        if not len(groups):
            return remains
        sizes = np.bincount(groups)
        left = np.bincount(groups[remains], minlength=len(sizes))
        needed = [self.secure.threshold(size) if size >= LEAST_MEMBERS else np.inf for size in sizes.tolist()]
        return np.asarray(left >= np.array(needed))[groups]

    def _times(self, clients: IntArray, numbers: IntArray, groups: IntArray, phones: Phones) -> _Times:
        """What messages of the real encodings take on the links of these phones."""
        down, up = phones.byte_seconds(clients, numbers)
        if not len(clients):
            return _Times(groups, groups, groups, groups, down, up, down, down, down)
        traffic = [self.secure.traffic(int(size)) for size in np.bincount(groups)]

        def sizes(name: str) -> IntArray:
            return np.array([getattr(of_group, name) for of_group in traffic], dtype=np.int64)[groups]

        keys_down, keys_up, last_down, last_up = map(sizes, ("keys_down", "keys_up", "unmasking_down", "unmasking_up"))
        trip = 0.0 if phones.fleet is None else self.secure.trip_seconds
        keys = _slowest(keys_down * down + keys_up * up, groups) + self.secure.trips_before * trip
        masked = keys + _slowest(self.update_bytes * up, groups) + trip
        end = masked + _slowest(last_down * down + last_up * up, groups) + self.secure.trips_after * trip
        bytes_down, bytes_up = keys_down + last_down, keys_up + self.update_bytes + last_up
        return _Times(bytes_down, bytes_up, keys_down, keys_up, down, up, keys, masked, end)


def secure_row(plan: RoundPlan) -> dict[str, float]:
    """What the table of rounds says: of how many groups there are sums, and of how many too few were left."""
    groups, lost = plan.secure_groups, plan.ended.outcomes == Outcome.LOST_WITH_ITS_GROUP
    if groups is None:
        return dict.fromkeys(SECURE_COLUMNS[:2], 0.0)
    counts = (len(np.unique(groups[which])) for which in (plan.steps >= 0, lost))
    return dict(zip(SECURE_COLUMNS[:2], map(float, counts), strict=True))


def _with_traffic(jobs: Jobs, members: IntArray, times: _Times) -> Jobs:
    """Jobs of which some are also of a secure sum."""
    more = {
        "download_bytes": times.bytes_down,
        "upload_bytes": times.bytes_up,
        "download_seconds": times.bytes_down * times.down,
        "upload_seconds": times.bytes_up * times.up,
    }
    changed = {}
    for name, added in more.items():
        changed[name] = getattr(jobs, name).copy()
        changed[name][members] += added
    return replace(jobs, **changed)


def _slowest(seconds: FloatArray, groups: IntArray) -> FloatArray:
    """The longest of these in the group of each."""
    longest = np.zeros(groups.max() + 1)
    np.maximum.at(longest, groups, seconds)
    found: FloatArray = longest[groups]
    return found
