"""The server's part of a round: have the updates that it uses computed, add them up, and take its steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch

from fedarena.core.errors import DivergedError
from fedarena.simulate.aggregation import WeightedMean, weighted_sum
from fedarena.simulate.jobs import FloatArray, Jobs
from fedarena.simulate.memories import Memories, MemoryChanges
from fedarena.simulate.merging import merge_by_age
from fedarena.simulate.protocols import RoundPlan
from fedarena.simulate.simulation import Simulation, Snapshot
from fedarena.train import COVERAGE, Groups, Job, JobResults, finite_rows, is_finite, take_row
from fedarena.train.engine import IntArray
from fedarena.train.versions import VersionedTraining


@dataclass(frozen=True)
class _Change:
    """A sum of changes of the model."""

    sum: Groups  # weighted and shrunk by age
    weight: float
    clients: int


@dataclass(frozen=True)
class _Contribution:
    """What is left of some clients' results when their updates are added up."""

    clients: IntArray
    changes: dict[int, _Change]  # by age, if the protocol merges those of different age in another way than by adding
    other_sum: Groups  # of everything else that clients send, weighted
    other_weight: float
    memory: Groups
    steps: int
    losses: FloatArray


class Server:
    """Uses the updates of one round."""

    def __init__(self, simulation: Simulation, training: VersionedTraining, before: Snapshot, plan: RoundPlan):
        self._simulation, self._training, self._before, self._plan = simulation, training, before, plan
        self._round = before.round + 1
        self._version = before.clock.version
        self._changes = MemoryChanges(before.memories)
        self.state = before.state
        self.broadcasts = {**before.broadcasts, self._version: simulation.algorithm.broadcast(before.state)}
        self.losses = np.full(len(plan.ended), np.nan)
        self.steps = 0  # gradient steps of all clients

    def run(self) -> None:
        """Trains the clients whose updates are used, and takes the server's steps."""
        used = np.flatnonzero(self._plan.steps >= 0)
        if not len(used):
            return
        if self._simulation.protocol.mixes_models:
            self._take_many_steps(used)
        else:
            self._take_one_step(used)

    def memories(self) -> Memories:
        """What clients remember after the round."""
        return self._changes.memories()

    def older_broadcasts(self) -> dict[int, Groups]:
        """Those from which jobs are still training whose updates may be used one day."""
        clock = self._plan.clock
        needed = {int(version) for version in clock.running.versions} - {clock.version}
        oldest = self._simulation.protocol.oldest_useful(clock.version)
        return {version: self.broadcasts[version] for version in sorted(needed) if version >= oldest}

    def _take_one_step(self, used: IntArray) -> None:
        """A step with the mean of all updates, whichever versions they began with."""
        jobs, changes, others = (
            self._plan.ended.take(used),
            defaultdict[int, WeightedMean](WeightedMean),
            WeightedMean(),
        )
        ages = self._ages()
        by_client = used[np.argsort(jobs.clients)]
        clients = self._plan.ended.clients[by_client]

        def contribute(results: JobResults) -> _Contribution:
            positions = by_client[np.searchsorted(clients, results.clients)]
            return self._contribution(results, self._plan.factors[positions], ages[positions])

        for part in self._training.train_and(contribute, *self._jobs_of(jobs), self.broadcasts, self._before.memories):
            for age, change in part.changes.items():
                changes[age].add(change.sum, change.weight, change.clients)
            others.add(part.other_sum, part.other_weight, len(part.clients))
            self._changes.add(part.clients, part.memory)
            self.steps += part.steps
            self.losses[by_client[np.searchsorted(clients, part.clients)]] = part.losses
        means = {age: _over_those_who_trained(mean.mean()) for age, mean in changes.items()}
        self._step(self.state, {**others.mean(), **self._merged(means)})

    def _ages(self) -> IntArray:
        """What updates are told apart by when they are added up; one entry per job."""
        merging = self._simulation.protocol.merging
        if merging == "surgery":
            return self._plan.staleness
        return np.minimum(self._plan.staleness, 1) if merging == "sum" else np.zeros_like(self._plan.staleness)

    def _merged(self, means: dict[int, Groups]) -> Groups:
        merging = self._simulation.protocol.merging
        return means[0] if merging == "shrink" else merge_by_age(means)

    def _take_many_steps(self, used: IntArray) -> None:
        """A step towards each client's model, one after the other.

        What is needed for a step is computed together with everything else that can be computed by then.
        """
        results: dict[int, JobResults] = {}
        for place, position in enumerate(used.tolist()):
            job = self._plan.ended.take([position])
            client = int(job.clients[0])
            if client not in results:
                waiting = self._plan.ended.take(used[place:])
                ready = waiting.take(waiting.versions <= self._version)
                results |= self._train_each(ready)
            result = results.pop(client)
            self.losses[position] = result.losses[0]
            self.steps += int(result.work.steps.sum())
            self._changes.add(result.clients, result.memory)
            now, start = self.state["params"], self.broadcasts[int(job.versions[0])]["params"]
            cohort = {"clients": torch.tensor(1.0, dtype=torch.float64)}
            # What the client's model comes to is the algorithm's business: a step from where the client began.
            update = take_row(result.update, 0)
            coverage = update.pop(COVERAGE, {})
            self._step({**self.state, "params": start}, {**update, "cohort": cohort})
            there, share = self.state["params"], float(self._plan.factors[position])
            mixed = {name: now[name] + share * coverage.get(name, 1.0) * (there[name] - now[name]) for name in now}
            self.state = {**self.state, "params": mixed}
            self.broadcasts[self._version] = self._simulation.algorithm.broadcast(self.state)

    def _train_each(self, jobs: Jobs) -> dict[int, JobResults]:
        """The results of every client by itself."""
        found: dict[int, JobResults] = {}
        arguments = (*self._jobs_of(jobs), self.broadcasts, self._before.memories)
        for results in self._training.train_and(lambda results: results, *arguments):
            self._check_finite(results)
            found |= {int(client): results.row(row) for row, client in enumerate(results.clients)}
        return found

    def _jobs_of(self, jobs: Jobs) -> tuple[list[Job], list[int]]:
        """The jobs for the engine, and which version each starts from."""
        # Where jobs overlap with rounds, a client may begin twice in the same one.
        rounds = jobs.numbers if self._simulation.protocol.overlaps else np.full(len(jobs), self._round)
        each = [Job(*job) for job in zip(jobs.clients.tolist(), rounds.tolist(), jobs.shares.tolist(), strict=True)]
        return each, jobs.versions.tolist()

    def _step(self, state: Groups, mean_update: Groups) -> None:
        algorithm = self._simulation.algorithm
        self.state = algorithm.server_step(state, mean_update, self._round)
        if not is_finite(self.state):
            raise DivergedError("The server's state became infinite or undefined", self._round, None)
        self._version += 1
        self.broadcasts[self._version] = algorithm.broadcast(self.state)

    def _contribution(self, results: JobResults, factors: FloatArray, ages: IntArray) -> _Contribution:
        """Adds up the updates; done by whichever worker computed them."""
        algorithm = self._simulation.algorithm
        weights = np.asarray(algorithm.client_weight(results.work), dtype=np.float64)
        scaled = weights * factors
        # Age takes away from how far the model moves, not from what clients and server know of each other.
        update = dict(results.update)
        coverage = {COVERAGE: update.pop(COVERAGE)} if COVERAGE in update else {}
        moving = {group: update.pop(group) for group in algorithm.change_groups if group in update}
        counted = scaled if self._simulation.protocol.rescales else weights
        changes = {
            int(age): _Change(
                weighted_sum(moving, np.where(ages == age, scaled, 0.0))
                | weighted_sum(coverage, np.where(ages == age, counted, 0.0)),
                float(counted[ages == age].sum()),
                int((ages == age).sum()),
            )
            for age in np.unique(ages)
        }
        other_sum = weighted_sum(update, weights)
        # A sum shows whether all terms are finite, and there is less of it to look at.
        sums_are_finite = is_finite(other_sum) and all(is_finite(change.sum) for change in changes.values())
        if not (np.isfinite(results.losses).all() and sums_are_finite):
            self._check_finite(results)
        return _Contribution(
            clients=results.clients,
            changes=changes,
            other_sum=other_sum,
            other_weight=float(weights.sum()),
            memory=results.memory,
            steps=int(results.work.steps.sum()),
            losses=results.losses,
        )

    def _check_finite(self, results: JobResults) -> None:
        finite = np.isfinite(results.losses) & finite_rows(results.update, len(results.clients))
        if not finite.all():
            first = int(np.argmin(finite))
            loss = results.losses[first]
            what = "An update is not finite" if np.isfinite(loss) else f"The training loss became {loss}"
            client = self._simulation.client_ids([int(results.clients[first])])[0]
            raise DivergedError(what, self._round, client)


def _over_those_who_trained(mean: Groups) -> Groups:
    """A mean change of the model, in which every parameter's is the mean over the clients who trained it."""
    change = {group: tensors for group, tensors in mean.items() if group not in ("cohort", COVERAGE)}
    if COVERAGE not in mean:
        return change
    covered = mean[COVERAGE]
    tiny = torch.finfo(torch.float32).tiny  # where nobody did, the change is 0
    return {
        group: {name: t / covered[name].clamp(min=tiny) for name, t in tensors.items()}
        for group, tensors in change.items()
    }
