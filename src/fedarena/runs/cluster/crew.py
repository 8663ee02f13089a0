"""The crew of a run: what it does for the engine, on a Ray cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedarena.core.errors import BadInputError, NotFiniteError, RunFailedError
from fedarena.core.installation import here
from fedarena.core.words import counted, some
from fedarena.metrics.totals import MetricStates
from fedarena.models import Tensors
from fedarena.runs.building import Experiment
from fedarena.runs.cluster.admission import built
from fedarena.runs.cluster.hiring import check_room, hiring_for, order_for, settled
from fedarena.runs.cluster.joining import import_ray, join, leave
from fedarena.runs.cluster.messages import (
    Message,
    pack_groups,
    pack_kept,
    pack_shard,
    unpack_measured,
    unpack_result,
)
from fedarena.runs.cluster.pool import Member, Pool, Task
from fedarena.runs.cluster.shared_states import SharedFolder
from fedarena.runs.cluster.working import WorkerSaysError, work_off
from fedarena.runs.cluster.workplace import Elsewhere, Workplace, workplace_of
from fedarena.simulate import ClientStates
from fedarena.train import Groups, OtherTest, RayEngine, Shard, count_bytes
from fedarena.train.engine import IntArray, Part
from fedarena.transforms import ShardResult

_MOST_TOLD = 4  # workers whose shares are told one by one
_INLINE_BYTES = 1 << 15  # what is smaller travels with every message
_SECONDS_FOR_OTHERS = 10.0  # that the slower workers have to answer before the first round begins


def hire_crew(
    experiment: Experiment,
    note: Callable[[str], None],
    elsewhere: Elsewhere = None,
) -> RayCrew | None:
    """Gives the engine of a run its crew, if it is one that has such; `note` is told what the user should know.

    A run may go on `elsewhere` than its settings say.
    """
    engine = experiment.simulation.engine
    workplace = workplace_of(experiment.config.engine, elsewhere)
    if not isinstance(engine, RayEngine) or workplace is None or workplace.workers == 0:
        return None
    crew = RayCrew(experiment, engine, workplace, note)
    engine.crew = crew
    return crew


class RayCrew:
    """Workers on a Ray cluster (or on this machine alone), at the service of an engine."""

    def __init__(
        self,
        experiment: Experiment,
        engine: RayEngine,
        workplace: Workplace,
        note: Callable[[str], None],
    ):
        import_ray()  # or a sentence, before anything is computed
        self._experiment, self._engine = experiment, engine
        self._triggered_test = experiment.simulation.triggered_test
        self._sent: dict[int, tuple[Any, tuple[int, Any]]] = {}  # by its identity: what was sent to all, and as what
        self._numbers = 0
        self._shared: SharedFolder | None = None
        order = order_for(experiment.config)
        mine = functools.cache(lambda: here() | built(experiment))
        workplace = settled(workplace, engine.hardware.is_gpu)
        self._ray, is_ours = join(workplace.address, (workplace.workers or 1) * workplace.cores)
        try:
            check_room(self._ray, workplace, engine.hardware.is_gpu)
            hiring = hiring_for(self._ray, is_ours, engine, workplace, order, mine)
            self.pool = Pool(self._ray, hiring, note)
            self.pool.open(_SECONDS_FOR_OTHERS, meanwhile=mine)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Sends the workers home and leaves the cluster; the engine goes on alone."""
        self._engine.crew = None
        pool: Pool | None = getattr(self, "pool", None)
        if pool is None or not pool.closed:
            if pool is not None:
                pool.close()
            if self._shared is not None:
                self._shared.close()
            self._sent = {}
            leave()

    # ---- what the engine asks for

    def collect(self, shards: Sequence[Shard], kept: Sequence[Groups]) -> Iterator[ShardResult]:
        """What is left of every shard, in their order."""
        known = {version: groups for shard in shards for version, groups in shard.broadcasts.items()}
        self._forget({id(groups) for groups in known.values()})
        kept_everywhere = self._send([dict(groups) for groups in kept])

        shared = self._shared_folder(shards)
        everybody = max(1, sum(len(shard.jobs) for shard in shards))

        def task(shard: Shard) -> Task:
            def message(member: Member) -> Message:
                broadcasts = {version: self._send(shard.broadcasts[version]) for version in shard.versions}
                needed = {number for number, _ in [*broadcasts.values(), kept_everywhere]}
                needed |= {number for _, (number, _) in self._sent.values()}
                sent = {"broadcasts": broadcasts, "kept": kept_everywhere, "needed": needed}
                offer = None if shared is None else shared.offer(len(shard.jobs) / everybody)
                return {"shard": pack_shard(shard, member.sees_states), "state_files": offer, **sent}

            return Task("train", message, float(max(1, self._engine.count_steps(shard))), lambda: self._whose(shard))

        for answer in self._answers([task(shard) for shard in shards], self._engine.while_crew_works):
            if "not_finite" in answer:
                raise NotFiniteError(*answer["not_finite"])
            yield unpack_result(answer)

    def measures(self, other: OtherTest | None) -> bool:
        """Workers have the test of the run's attack."""
        return other is None or other is self._triggered_test

    def measure(
        self, params: Tensors, clients: IntArray, part: Part, blocks: Sequence[Sequence[tuple[int, int]]], other: bool
    ) -> Iterator[list[MetricStates]]:
        """The states of blocks of clients."""
        sent = self._send({"params": params})

        def task(some_blocks: Sequence[tuple[int, int]]) -> Task:
            first, last = some_blocks[0][0], some_blocks[-1][1]
            inside = [(begin - first, end - first) for begin, end in some_blocks]
            needed = {number for _, (number, _) in self._sent.values()} | {sent[0]}
            asked = {"params": sent, "clients": clients[first:last], "part": part, "blocks": inside, "other": other}
            message = {**asked, "needed": needed}
            return Task("measure", lambda member: message, float(len(inside)), lambda: "Evaluation")

        answers = self._answers([task(some_blocks) for some_blocks in blocks])
        for some_blocks, answer in zip(blocks, answers, strict=True):
            first = some_blocks[0][0]
            measured = [unpack_measured(states) for states in answer["measured"]]
            yield [replace(states, positions=states.positions + first) for states in measured]

    def score_personal(
        self, broadcast: Groups, states: Mapping[int, Groups], chunks: Sequence[IntArray], part: Part, round: int
    ) -> Iterator[MetricStates]:
        """The states of chunks of clients with their own models."""
        sent = self._send(broadcast)

        def task(clients: IntArray) -> Task:
            def message(member: Member) -> Message:
                needed = {number for _, (number, _) in self._sent.values()} | {sent[0]}
                known = pack_kept(states, clients.tolist(), member.sees_states)
                shared = {"broadcast": sent, "states": known, "needed": needed}
                return {"clients": clients, "part": part, "round": round, **shared}

            return Task("score_personal", message, float(len(clients)), lambda: "Evaluation of personal models")

        for answer in self._answers([task(clients) for clients in chunks]):
            yield unpack_measured(answer["measured"][0])

    def describe(self) -> str:
        """How many workers there are, their shares of all the work so far, and how many were lost."""
        shares = sorted((share for _, share in self.pool.shares()), reverse=True)
        said = counted(len(shares), "worker")
        if not any(shares):
            return said
        if 1 < len(shares) <= _MOST_TOLD:
            said += f" ({', '.join(f'{share:.0%}' for share in shares)})"
        elif shares and len(shares) > 1:
            said += f" ({shares[-1]:.1%} to {shares[0]:.1%} each)"
        return said + (f", {self.pool.lost} lost" if self.pool.lost else "")

    def _answers(self, tasks: Sequence[Task], meanwhile: Callable[[], None] | None = None) -> Iterator[Message]:
        try:
            yield from work_off(self.pool, tasks, meanwhile)
        except WorkerSaysError as error:
            raise (BadInputError if error.is_bad_input else RunFailedError)(str(error)) from None

    def _shared_folder(self, shards: Sequence[Shard]) -> SharedFolder | None:
        """Where workers may write what clients keep: beside the files in which the driver does."""
        states = shards[0].states if shards else None
        folder = states.folder if isinstance(states, ClientStates) else None
        if folder is None:
            return None
        if self._shared is None or self._shared.folder != folder:
            self._shared = SharedFolder(folder)
        return self._shared

    # ---- what is sent to all

    def _send(self, groups: Any) -> tuple[int, Any]:
        """What workers get of groups (or a list of them): a number, and where to find them. It is sent once."""
        known = self._sent.get(id(groups))
        if known is not None and known[0] is groups:
            return known[1]
        self._numbers += 1
        several = isinstance(groups, list)
        packed = [pack_groups(one) for one in groups] if several else pack_groups(groups)
        size = sum(count_bytes(one) for one in groups) if several else count_bytes(groups)
        place: Any = [packed] if size < _INLINE_BYTES else self._ray.put(packed)
        self._sent[id(groups)] = groups, (self._numbers, place)
        return self._numbers, place

    def _forget(self, needed: set[int]) -> None:
        """Ray's store has room for what is in use; the workers forget it, too."""
        self._sent = {key: sent for key, sent in self._sent.items() if key in needed}

    def _whose(self, shard: Shard) -> str:
        ids = self._experiment.simulation.client_ids(shard.jobs.clients.tolist())
        return f"The training of {some(ids)}"
