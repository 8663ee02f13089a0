"""The crew of a run: what it does for the engine, on a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedarena.core.errors import BadInputError, NotFiniteError, RunFailedError
from fedarena.core.words import counted, some
from fedarena.metrics.totals import MetricStates
from fedarena.models import Tensors
from fedarena.runs.building import Experiment
from fedarena.runs.cluster.joining import from_bench, import_ray, join, leave, take_seat
from fedarena.runs.cluster.messages import (
    Message,
    pack_groups,
    pack_shard,
    pack_states,
    unpack_measured,
    unpack_result,
)
from fedarena.runs.cluster.pool import Hiring, Patience, Pool, Task, WorkerSaysError
from fedarena.runs.cluster.probe import fingerprint_of_bits
from fedarena.runs.cluster.worker import Worker, here
from fedarena.runs.cluster.workplace import Elsewhere, Workplace, workplace_of
from fedarena.runs.config import RunConfig
from fedarena.runs.own_source import own_source
from fedarena.train import Groups, OtherTest, RayEngine, Shard, count_bytes
from fedarena.train.engine import IntArray, Part
from fedarena.train.execution import available_cores
from fedarena.transforms import ShardResult

_MOST_TOLD = 4  # workers whose shares are told one by one
_INLINE_BYTES = 1 << 15  # what is smaller travels with every message
_SECONDS_FOR_OTHERS = 10.0  # that the slower workers have to answer before the first round begins


def hire_crew(
    experiment: Experiment,
    note: Callable[[str], None],
    elsewhere: Elsewhere = None,
    patience: Patience | None = None,
) -> RayCrew | None:
    """Gives the engine of a run its crew, if it is one that has such; `note` is told what the user should know.

    A run may go on `elsewhere` than its settings say.
    """
    engine = experiment.simulation.engine
    workplace = workplace_of(engine, elsewhere)
    if not isinstance(engine, RayEngine) or workplace is None or workplace.workers == 0:
        return None
    crew = RayCrew(experiment, engine, workplace, note, patience)
    engine.crew = crew
    return crew


def worker_settings(config: RunConfig) -> RunConfig:
    """What a worker builds: the same run without what only its driver needs."""
    engine = config.engine | {"address": None, "workers": 0}
    only_here: dict[str, Any] = {"fleet": {"name": "ideal"}, "callbacks": [], "track": [], "engine": engine}
    return config.model_copy(update=only_here)


class RayCrew:
    """Workers on a Ray cluster (or on this machine alone), at the service of an engine."""

    def __init__(
        self,
        experiment: Experiment,
        engine: RayEngine,
        workplace: Workplace,
        note: Callable[[str], None],
        patience: Patience | None = None,
    ):
        import_ray()  # or a sentence, before anything is computed
        self._experiment, self._engine = experiment, engine
        self._triggered_test = experiment.simulation.triggered_test
        self._sent: dict[int, tuple[Any, tuple[int, Any]]] = {}  # by its identity: what was sent to all, and as what
        self._numbers = 0
        settings = worker_settings(experiment.config)
        source = own_source(settings)
        if definitions := [*source.unknown, *(name for name in source.fingerprints if ":" in name)]:
            raise BadInputError(
                f"Workers cannot find {some(definitions)}, which is not in a file that can be imported; put it into "
                "one, or choose engine=cohort"
            )
        self._driver = here() | {
            "federation": experiment.federation.fingerprint,
            "weights": experiment.weights_fingerprint,
            "bits": fingerprint_of_bits(experiment.simulation),
            "device": engine.hardware.device.type,
        }
        wanted = workplace.workers
        on_gpu = engine.hardware.is_gpu
        local = workplace.address is None
        if local and wanted is None:
            wanted = _gpus_here() if on_gpu else max(1, available_cores() // workplace.cores)
        self._ray, is_ours = join(workplace.address, (wanted or 1) * workplace.cores)
        try:
            needs: dict[str, float] = {"num_gpus": 1.0} if on_gpu else {}
            self._check_room(workplace, on_gpu)
            at_once = 1 if on_gpu or engine.trains_one_at_a_time else workplace.cores
            needs["num_cpus"] = 0 if is_ours or on_gpu else workplace.cores
            kind = (at_once, tuple(sorted(needs.items())))
            remote = self._ray.remote(Worker).options(
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=at_once,
                scheduling_strategy="SPREAD",
                **needs,
            )
            order = self._ray.put(
                {
                    "settings": settings.to_yaml(),
                    "own_source": source.to_json(),
                    "path": [entry or os.getcwd() for entry in sys.path],
                    "folder": os.getcwd(),
                }
            )
            hiring = Hiring(
                start=lambda: from_bench(kind) or remote.remote(),
                retire=lambda actor: take_seat(kind, actor),
                begun=lambda actor: actor.is_here.remote(),
                ask=lambda actor: actor.prepare.remote(order),
                check=lambda answer: why_refused(answer, self._driver, engine.mixed_hardware),
                room=lambda: self._room(workplace, on_gpu),
                wanted=wanted,
                at_once=at_once,
            )
            self.pool = Pool(self._ray, hiring, note, patience)
            self.pool.refusal = BadInputError
            self.pool.open(_SECONDS_FOR_OTHERS)
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
            self._sent = {}
            leave()

    # ---- what the engine asks for

    def collect(self, shards: Sequence[Shard], kept: Sequence[Groups]) -> Iterator[ShardResult]:
        """What is left of every shard, in their order."""
        known = {version: groups for shard in shards for version, groups in shard.broadcasts.items()}
        self._forget({id(groups) for groups in known.values()})
        kept_everywhere = self._send([dict(groups) for groups in kept])

        def task(shard: Shard) -> Task:
            def message() -> Message:
                broadcasts = {version: self._send(shard.broadcasts[version]) for version in shard.versions}
                needed = {number for number, _ in [*broadcasts.values(), kept_everywhere]}
                needed |= {number for _, (number, _) in self._sent.values()}
                shared = {"broadcasts": broadcasts, "kept": kept_everywhere, "needed": needed}
                return {"shard": pack_shard(shard), **shared}

            return Task("train", message, float(max(1, self._engine.count_steps(shard))), lambda: self._whose(shard))

        for answer in self._answers([task(shard) for shard in shards]):
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
            return Task("measure", lambda: message, float(len(inside)), lambda: "Evaluation")

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
            def message() -> Message:
                needed = {number for _, (number, _) in self._sent.values()} | {sent[0]}
                known = pack_states(states, clients.tolist())
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

    def _answers(self, tasks: Sequence[Task]) -> Iterator[Message]:
        try:
            yield from self.pool.work(tasks)
        except WorkerSaysError as error:
            raise (BadInputError if error.is_bad_input else RunFailedError)(str(error)) from None

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

    # ---- whom to hire

    def _check_room(self, workplace: Workplace, on_gpu: bool) -> None:
        there = self._ray.cluster_resources()
        if on_gpu and not there.get("GPU"):
            raise BadInputError(
                "No machine of the Ray cluster has a GPU, and engine.device is cuda; start its nodes with "
                "ray start --num-gpus, or choose engine.device=cpu"
            )
        if not on_gpu and workplace.address is not None and not self._largest_node() >= workplace.cores:
            raise BadInputError(
                f"No machine of the Ray cluster has the {workplace.cores} cores of a worker (engine.cores); the "
                f"largest has {self._largest_node():g}"
            )

    def _largest_node(self) -> float:
        return max((node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]), default=0.0)

    def _room(self, workplace: Workplace, on_gpu: bool) -> int:
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if on_gpu:
            return int(sum(resources.get("GPU", 0.0) for resources in alive))
        return sum(int(resources.get("CPU", 0.0) // workplace.cores) for resources in alive)


def _gpus_here() -> int:
    import torch

    return max(1, torch.cuda.device_count())


def why_refused(answer: Message, mine: Message, mixed_hardware: bool = False) -> str | None:
    """Why a worker cannot be used, if so: what is not as it is here, and what would be right."""
    node = answer["node"]
    if "refused" in answer:
        return f"A worker on {node} cannot build the run: {answer['refused'].strip()}"
    for package, version in mine["versions"].items():
        if package == "python" or answer["versions"][package] == version:
            continue
        return (
            f"{node} has {package} {answer['versions'][package]}, and this machine {version}; install the same "
            "version there"
        )
    if answer["federation"] != mine["federation"]:
        return (
            f"The federation on {node} is another one (fingerprint {answer['federation']} instead of "
            f"{mine['federation']}); copy the store from this machine, or remove it there to have it made again"
        )
    if answer["weights"] != mine["weights"]:
        return f"The file of weights on {node} is another one; copy it from this machine"
    if answer["device"] != mine["device"]:
        return f"The worker on {node} computes on {answer['device']}, and this machine on {mine['device']}"
    if answer["bits"] != mine["bits"] and not mixed_hardware:
        return (
            f"{node} does not compute the same bits as this machine, so results would depend on who computed "
            "them; use machines of one kind, or engine.mixed_hardware=true, and no two runs will be the same"
        )
    return None
