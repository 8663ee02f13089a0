"""What came out of the jobs of a round, and how that is told in the run's tables."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedarena.metrics import OUTCOMES
from fedarena.simulate.jobs import FloatArray, Jobs
from fedarena.simulate.policies.columns import VALIDATION_CHANGE, VALIDATION_LOSS, policy_job_columns
from fedarena.simulate.protocols import RoundPlan
from fedarena.simulate.scoring import SCORED_SAMPLES
from fedarena.simulate.secure_aggregation.rounds import secure_row
from fedarena.simulate.selectors import Feedback
from fedarena.simulate.server import Server
from fedarena.simulate.simulation import Simulation
from fedarena.simulate.world import World
from fedarena.train.engine import IntArray
from fedarena.train.late import Numbers
from fedarena.transforms import ShardResult


class Tally:
    """Counts what the engine found out; arrays have an entry per job that ended in the round."""

    def __init__(self, simulation: Simulation, plan: RoundPlan):
        self._plan, self._sent_bytes = plan, simulation.sent_bytes
        used = np.flatnonzero(plan.steps >= 0)
        self._by_client = used[np.argsort(plan.ended.clients[used], kind="stable")]
        self._losses: list[tuple[IntArray, Numbers]] = []  # which may not be there yet
        self.uploaded_bytes = np.full(len(plan.ended), np.nan)  # where that is known only afterwards
        self.steps = 0  # gradient steps of all clients
        self.validation_losses, self.validation_changes = (np.full(len(plan.ended), np.nan) for _ in range(2))

    def count(self, result: ShardResult) -> None:
        """Notes what a shard found out."""
        positions = self._by_client[np.searchsorted(self._plan.ended.clients[self._by_client], result.clients)]
        self._losses.append((positions, result.losses))
        if result.uploaded_bytes is not None:
            self.uploaded_bytes[positions] = [self._sent_bytes(size) for size in result.uploaded_bytes.tolist()]
        self.steps += result.steps
        if result.validated is not None:
            self.validation_losses[positions] = result.validated.after
            self.validation_changes[positions] = result.validated.after - result.validated.before

    @cached_property
    def losses(self) -> FloatArray:
        """What clients' losses were in training, as soon as that is known; to be asked when all are counted."""
        losses, times = np.zeros((2, len(self._plan.ended)))
        for positions, found in self._losses:  # several of a job with several rounds of its edge, alike in samples
            losses[positions] += np.asarray(found)
            times[positions] += 1
        means: FloatArray = np.divide(losses, times, out=np.full(len(losses), np.nan), where=times > 0)
        return means

    def feedback(self) -> Feedback:
        """What the selector is told."""
        jobs = self._plan.ended
        held = np.where(np.isfinite(jobs.downloaded), jobs.versions, -1)
        return Feedback(jobs.clients, self._plan.steps >= 0, self.losses, jobs.end - jobs.begin, jobs.samples, held)


def describe_round(
    simulation: Simulation,
    world: World,
    plan: RoundPlan,
    tally: Tally,
    server: Server,
    round: int,
    real_bytes_down: FloatArray | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a round, and the columns of the jobs that ended in it."""
    jobs, used = plan.ended, plan.steps >= 0
    done = world.phones.done(jobs)
    samples = jobs.samples[used]
    corrupted = simulation.are_corrupted(jobs.clients, round)
    counted = _counted(plan, server)
    rejected = used & (counted == 0)
    has_energy = simulation.fleet is not None and simulation.fleet.fleet.devices.knows_energy
    row = {
        "clients": int(used.sum()),
        "samples": int(samples.sum()),
        "steps": tally.steps,
        "train_loss": _mean_loss(tally.losses[used], samples),
        "bytes_down": int(done.bytes_down.sum()),
        "real_bytes_down": _real_bytes(done.bytes_down, real_bytes_down),
        "bytes_up": int(done.bytes_up.sum()),
        "real_bytes_up": _real_bytes(done.bytes_up, np.where(used, tally.uploaded_bytes, np.nan)),
        "flops": float(done.flops.sum()),
        "invited": len(jobs),
        "failed": int((~used).sum()),
        "end_seconds": plan.clock.time,
        "wasted_seconds": float(done.seconds[~used].sum()),
        "wasted_bytes": int((done.bytes_down + done.bytes_up)[~used].sum()),
        "joules": float(done.joules.sum()) if has_energy else None,
        "staleness": float(plan.staleness[used].mean()) if used.any() else None,
        "succeeded": plan.succeeded and server.steps_left_out < plan.server_steps,
        "epsilon": simulation.epsilon(plan.clock.version),
        **server.measure(),
    }
    if simulation.edge_links is not None:
        row |= simulation.edge_links.row(plan)
    if simulation.secure_rounds is not None:
        row |= secure_row(plan)
    if len(simulation.corrupted_clients):
        row["corrupted"] = int((corrupted & used).sum())
    if server.verdicts:
        row |= {"rejected": int(rejected.sum()), "rejected_corrupted": int((rejected & corrupted).sum())}
    columns = {
        "round": np.full(len(jobs), round),
        "job": jobs.numbers,
        "client": simulation.client_ids(jobs.clients.tolist()),
        "index": jobs.clients,
        "start_version": jobs.versions,
        "staleness": plan.staleness,
        "begin_seconds": jobs.begin,
        "downloaded_seconds": jobs.downloaded,
        "trained_seconds": jobs.trained,
        "uploaded_seconds": jobs.uploaded,
        "end_seconds": jobs.end,
        "worked_seconds": done.seconds,
        "outcome": [OUTCOMES[outcome] for outcome in jobs.outcomes.tolist()],
        "share": jobs.shares,
        "samples": jobs.samples,
        "loss": tally.losses,
        "weight": np.where(used, simulation.path.aggregator.factors(plan.staleness), np.nan),
        "corrupted": corrupted,
        "counted": counted,
        "bytes_down": done.bytes_down,
        "real_bytes_down": np.full(len(jobs), np.nan) if real_bytes_down is None else real_bytes_down,
        "bytes_up": done.bytes_up,
        "real_bytes_up": tally.uploaded_bytes,
        "flops": done.flops,
        "joules": done.joules,
    }
    if world.phones.load.scored_samples is not None:
        columns[SCORED_SAMPLES] = world.phones.scored_samples(jobs.clients)
    return row, columns | _decided(simulation, jobs, tally)


def _decided(simulation: Simulation, jobs: Jobs, tally: Tally) -> dict[str, Any]:
    """With which hyperparameters jobs trained, and how well that went, where a policy decides about them."""
    policy = simulation.policy
    if policy is None:
        return {}
    decisions = jobs.decisions
    if decisions is None:  # there were no jobs
        return {name: np.empty(0) for name in policy_job_columns(policy)}
    return {
        **policy.job_columns(decisions),
        **policy.hyperparameters(decisions),
        VALIDATION_LOSS: tally.validation_losses,
        VALIDATION_CHANGE: tally.validation_changes,
    }


def _counted(plan: RoundPlan, server: Server) -> FloatArray:
    """How much a defence took of the updates of all jobs; NaN where none judged."""
    counted = np.full(len(plan.ended), np.nan)
    for step, verdict in server.verdicts.items():
        of_step = np.flatnonzero(plan.steps == step)
        of_step = of_step[np.argsort(plan.ended.clients[of_step], kind="stable")]
        judged = np.argsort(verdict["clients"].cpu().numpy(), kind="stable")
        counted[of_step] = verdict["counted"].cpu().numpy()[judged]
    return counted


def _real_bytes(planned: IntArray, real: FloatArray | None) -> int | None:
    """All that was sent in a round, where what clients really sent or got differs from what was planned."""
    known = np.zeros(len(planned), dtype=np.bool_) if real is None else np.isfinite(real)
    if real is None or not known.any():
        return None
    return int(planned[~known].sum() + real[known].sum())


def _mean_loss(losses: FloatArray, samples: IntArray) -> float | None:
    """Over the samples of those who have a loss; who diverged under a policy has none."""
    known = ~np.isnan(losses)
    if not known.all():
        losses, samples = losses[known], samples[known]
    return float((losses * samples).sum() / samples.sum()) if len(samples) else None
