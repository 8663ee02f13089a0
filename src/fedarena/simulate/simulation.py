"""What a simulation is made of, and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError, DivergedError, NotFiniteError
from fedarena.core.limits import Limits
from fedarena.core.secret_noise import SecretSource
from fedarena.metrics import PERSONAL
from fedarena.metrics.info import MetricInfo
from fedarena.models import Task, Tensors, trainable_parameters
from fedarena.simulate.client_states.store import ClientStates
from fedarena.simulate.edges import EdgeLinks, Edges, NoEdges
from fedarena.simulate.jobs import FloatArray
from fedarena.simulate.participation import Participation
from fedarena.simulate.phones import Leaving, Load, Phones
from fedarena.simulate.policies import Policy
from fedarena.simulate.protocols import Clock, Ideal, Protocol, RoundPlan
from fedarena.simulate.schedules import Schedule
from fedarena.simulate.scoring import scored_samples
from fedarena.simulate.secure_aggregation import NoSecureAggregation, SecureAggregation, SecureRounds
from fedarena.simulate.selectors import Selector, Uniform
from fedarena.simulate.trusted import TrustedTraining
from fedarena.simulate.world import World
from fedarena.train import Algorithm, Engine, Groups, JobArrays, OtherTest, Shard, count_bytes
from fedarena.train.batches import count_processed
from fedarena.train.engine import IntArray, Part, steps_in_shares
from fedarena.train.examples import example_update
from fedarena.train.late import LateChecks
from fedarena.train.memories import refusing_memories
from fedarena.train.optimizers import training_of
from fedarena.train.outside_values import OutsideValues
from fedarena.train.own_code import has_own_code, seeded_if_own
from fedarena.train.tensors import TRANSFORM_GROUP
from fedarena.transforms import AGGREGATORS, Aggregator, ShardResult, Transform, UpdatePath, train_and_collect
from fedarena.transforms.aggregators.base import unnamed
from fedarena.transforms.attacks import Attack, NoAttack
from fedarena.transforms.canaries import Canaries
from fedarena.transforms.compressor import Compressor, Uncompressed
from fedarena.transforms.downlink import Downlink
from fedarena.transforms.poisoned_data import TriggeredData, poisoned

if TYPE_CHECKING:
    from fedarena.fleet import ClientFleet

_LEARNED = "let server_init give what it is to know, which at_server changes"


@dataclass(frozen=True)
class ClockOptions:
    """What holds for virtual time whatever the protocol: the settings ``clock.…`` of a run."""

    leaving: Leaving = "abort"  # what a phone that leaves does with its job
    overhead_seconds: Annotated[float, Limits(least=0, most=1e9)] = 0.0  # what the server takes before every round
    crash_rate: Annotated[float, Limits(least=0, below=1)] = 0.0  # share of the jobs that fail at a random moment
    start_hour: Annotated[float, Limits(least=0, most=1e6)] = 0.0  # of virtual time, counted from a midnight
    hours: Annotated[float, Limits(above=0)] | None = None  # of virtual time; the round in which they end is the last
    correlation: Annotated[float, Limits(least=-1, most=1)] = 0.0  # of clients' numbers of samples with phones' speeds
    model_bytes: Annotated[int, Limits(least=1)] | None = None  # as if the model had this size; all that is sent scales

    @property
    def start_seconds(self) -> float:
        """When the run begins."""
        return 3600 * self.start_hour

    @property
    def limit_seconds(self) -> float:
        """For how long it goes on."""
        return np.inf if self.hours is None else 3600 * self.hours


@dataclass(frozen=True)
class Simulation:
    """Everything that does not change while a run goes on."""

    seed: int
    rounds: int
    cohort: int
    task: Task
    algorithm: Algorithm
    engine: Engine
    training_clients: IntArray  # those who may be invited, sorted; each has a training sample
    evaluation_clients: IntArray  # each has a sample of the evaluated part
    evaluation_part: Part
    evaluate_every: int  # rounds; the first and the last model are always evaluated
    flops_per_sample: float
    client_ids: Callable[[Sequence[int]], list[str]]
    selector: Selector = field(default_factory=Uniform)
    protocol: Protocol = field(default_factory=Ideal)
    fleet: ClientFleet | None = None  # None: phones are infinitely fast and always there
    clock: ClockOptions = field(default_factory=ClockOptions)
    scoring_flops_per_sample: float = 0.0  # of a loss without its gradient, where clients compute such
    compute_factor: float = 1.0  # how much more a client computes on a sample than for the model's loss and gradient
    fit_clients: IntArray | None = None  # on whose training samples the model is evaluated as well
    sends: bool = True  # whether models and updates travel; they do not if the server itself trains
    transforms: tuple[Transform, ...] = ()  # of updates, in their order; the policy is one of them
    edges: Edges = field(default_factory=NoEdges)  # between clients and the server
    secure_aggregation: SecureAggregation = field(default_factory=NoSecureAggregation)
    policy: Policy | None = None  # what decides about hyperparameters of jobs; None: they are those of the run
    aggregator: Aggregator | None = None  # None: what is usual for the protocol
    attack: Attack = field(default_factory=NoAttack)  # what corrupted clients do
    epsilon_after: Callable[[int], float | None] | None = None  # privacy spent by so many steps; None: not private
    epsilon_budget: float | None = None  # a round that would spend more is not begun
    canaries: Canaries | None = None  # made-up clients, where privacy is audited
    participation: Participation | None = None  # counts who is invited, where privacy depends on it
    always_steps: bool = False  # whether the server makes a step in every round, also when no update came
    trusted: TrustedTraining | None = None  # what the server itself trains, for aggregators that compare with it
    download: Compressor = field(default_factory=Uncompressed)  # of what clients download
    client_lr_schedule: Schedule | None = None  # None: the learning rate stays as it is
    server_lr_schedule: Schedule | None = None
    class_names: Sequence[str] | None = None  # of what is predicted, where classes have names
    server_noise: SecretSource | None = None  # where a real server draws its noise; None: from the seed of the run
    real_devices: bool = False  # whether clients are real, so that what they keep is not seen here

    @cached_property
    def path(self) -> UpdatePath:
        """What updates go through."""
        aggregator = AGGREGATORS.get(self.protocol.aggregator)() if self.aggregator is None else self.aggregator
        path = UpdatePath(
            self.algorithm, self.transforms, aggregator, self.seed, self.attack, server_noise=self.server_noise
        )
        secure = self.secure_aggregation
        if secure.exists:
            example = example_update(self.algorithm, self.engine.initial_params())
            path.sum_securely(secure.fixed_point(), example, secure.notes)
        return path

    @cached_property
    def downlink(self) -> Downlink | None:
        """What models go through on their way to clients; None: they are sent as they are."""
        is_compressed = not isinstance(self.download, Uncompressed)
        return Downlink(self.algorithm, self.download, self.seed) if is_compressed else None

    @cached_property
    def edge_links(self) -> EdgeLinks | None:
        """What travels between edges and the server; None: there are none."""
        if not self.edges.exist:
            return None
        down, up = transferred_bytes(self.algorithm, self.engine.initial_params())
        return EdgeLinks(self.edges, self.edge_of, self.sent_bytes(down), self.sent_bytes(up))

    @cached_property
    def _edge_of_each(self) -> IntArray:
        """The edges of all clients, asked once where somebody's own may draw them, or count."""
        with seeded_if_own(self.edges, self.seed, "own edges"):
            return np.asarray(self.edges.edge_of(self.training_clients))

    def edge_of(self, clients: IntArray) -> IntArray:
        """The number of the edge that each of these clients belongs to."""
        if not has_own_code(self.edges):
            return self.edges.edge_of(clients)
        return self._edge_of_each[np.searchsorted(self.training_clients, clients)]

    @cached_property
    def secure_rounds(self) -> SecureRounds | None:
        """What secure aggregation does to rounds; None: there is none."""
        secure = self.secure_aggregation
        if not secure.exists:
            return None
        sums = self.path.sums
        assert sums is not None
        return SecureRounds(secure, self.seed, self.sent_bytes(sums.tensor_bytes) + sums.number_bytes)

    def summed_securely(self, plan: RoundPlan, world: World, round: int) -> RoundPlan:
        """A round whose updates the server gets as sums of groups, where secure aggregation is on."""
        return plan if self.secure_rounds is None else self.secure_rounds.closed(plan, world.phones, round)

    @cached_property
    def corrupted_clients(self) -> IntArray:
        """Those that an adversary has in its hands, sorted."""
        return self.attack.corrupted_clients(self.training_clients, self.seed)

    def are_corrupted(self, clients: IntArray, round: int) -> npt.NDArray[np.bool_]:
        """Whether each of these attacks in this round."""
        if round < self.attack.from_round or not len(self.corrupted_clients):
            return np.zeros(len(clients), dtype=np.bool_)
        places = np.searchsorted(self.corrupted_clients, clients)  # which costs as little as the cohort is small
        nearest = self.corrupted_clients[np.minimum(places, len(self.corrupted_clients) - 1)]
        return np.asarray(nearest == clients)

    @cached_property
    def triggered_test(self) -> OtherTest | None:
        """How often the trigger of an attack works, if it has one."""
        if not self.attack.has_trigger:
            return None
        return OtherTest(TriggeredData(self.engine.data, self.attack, self.seed), [self.attack.success()])

    def first_snapshot(self) -> Snapshot:
        """Where a run stands before its first round."""
        params = self.engine.initial_params()
        with seeded_if_own(self.algorithm, self.seed, "server init"):
            state = self.algorithm.server_init(params)
        example = example_update(self.algorithm, params)
        return Snapshot(
            0,
            state,
            clock=Clock(time=self.clock.start_seconds),
            transform_states=tuple(self.path.server_init(example)),
            aggregator_state=self.path.aggregator.server_init(example),
            download_state={} if self.downlink is None else self.downlink.start(state),
        )

    def broadcast(self, snapshot: Snapshot) -> Groups:
        """What clients have who download now."""
        if self.downlink is None:
            return self.algorithm.broadcast(snapshot.state)
        return self.downlink.broadcast(snapshot.state, snapshot.download_state)

    def jobs_of(self, plan: RoundPlan, round: int) -> JobArrays:
        """The jobs of a round whose updates are used, for the engine, in the order in which they are used.

        How fast a client learns is decided in the round in which it begins, as a real one would be told.
        """
        used = np.flatnonzero(plan.steps >= 0)
        jobs = plan.ended.take(used)
        # Where jobs overlap with rounds, a client may begin twice in the same one.
        rounds = jobs.numbers if self.protocol.overlaps else np.full(len(jobs), round)
        scales = None if self.client_lr_schedule is None else _scales(self.client_lr_schedule, jobs.rounds)
        corrupted = self.are_corrupted(jobs.clients, round)
        staleness, steps = plan.staleness[used], plan.steps[used]
        now = np.full(len(jobs), round)
        elsewhere = poisoned(jobs.clients, corrupted) if self.attack.poisons_data and corrupted.any() else None
        return JobArrays(
            *(jobs.clients, rounds, jobs.shares, jobs.versions, staleness, steps, corrupted, scales, now, elsewhere),
            self.hyperparameters(jobs.decisions),
            jobs.decisions,
        )

    def hyperparameters(self, decisions: FloatArray | None) -> dict[str, FloatArray] | None:
        """The settings that a policy's decisions mean; None where nothing was decided."""
        return None if self.policy is None or decisions is None else self.policy.hyperparameters(decisions)

    @cached_property
    def _policy_place(self) -> int:
        """Which of the transforms the policy is."""
        return next(place for place, transform in enumerate(self.transforms) if transform is self.policy)

    def policy_state(self, snapshot: Snapshot) -> Groups:
        """What the policy knows after a snapshot."""
        return snapshot.transform_states[self._policy_place]

    def deciding(self, snapshot: Snapshot) -> Callable[[IntArray, IntArray], FloatArray]:
        """How the policy decides about jobs of these clients and numbers that begin after a snapshot."""
        policy, state, states = self.policy, self.policy_state(snapshot), snapshot.client_states
        assert policy is not None
        keeps = bool(policy.client_init({}))
        name = f"{TRANSFORM_GROUP}{self._policy_place}:"

        def decide(clients: IntArray, numbers: IntArray) -> FloatArray:
            kept: list[Groups] = [{}] * len(clients)
            if keeps:
                kept = [unnamed(name, states.get(client) or {}) for client in clients.tolist()]
            seeded = seeded_if_own(policy, self.seed, "own policy", int(numbers.min(initial=0)))
            with seeded, refusing_memories(policy, "decide", _LEARNED):
                decisions = np.asarray(policy.decide(state, clients, numbers, kept), dtype=np.float64)
            if decisions.ndim != 2 or len(decisions) != len(clients) or not np.isfinite(decisions).all():
                raise BadInputError(
                    f"{type(policy).__name__}.decide must give a row of finite numbers for every one of "
                    f"{len(clients)} jobs, not numbers of shape {list(decisions.shape)}"
                )
            return decisions

        return decide

    def in_round(self, before: Snapshot, world: World) -> tuple[Protocol, World]:
        """The protocol of the round after a snapshot, and the world as it is then, where a policy changes rounds."""
        if self.policy is None or not self.policy.changes_rounds:
            return self.protocol, world
        seeded = seeded_if_own(self.policy, self.seed, "own round settings", before.round + 1)
        with seeded, refusing_memories(self.policy, "round_settings", _LEARNED):
            wanted = self.policy.round_settings(self.policy_state(before), before.round + 1)
        cohort, seconds = wanted.cohort, wanted.deadline_seconds
        if cohort is not None and not 1 <= cohort <= len(self.training_clients):
            raise BadInputError(
                f"The policy {type(self.policy).__name__} wants {cohort} clients in round {before.round + 1}, and "
                f"there are from 1 to {len(self.training_clients)}"
            )
        if seconds is not None and not 0 < seconds < np.inf:
            raise BadInputError(
                f"The policy {type(self.policy).__name__} wants a deadline of {seconds:g} seconds in round "
                f"{before.round + 1}; it must be above 0"
            )
        protocol = self.protocol.for_round(cohort, seconds)
        return protocol, replace(world, phones=replace(world.phones, deadline_seconds=protocol.deadline_seconds))

    def train(
        self,
        shards: Sequence[Shard],
        transform_states: Sequence[Groups],
        round: int,
        checks: LateChecks | None = None,
    ) -> Iterator[ShardResult]:
        """Has shards trained and their updates transformed and added up.

        What is not finite ends the run, unless there are `checks` that note what will be looked at later.
        """
        try:
            yield from train_and_collect(self.engine, self.path, shards, transform_states, checks)
        except NotFiniteError as error:
            raise DivergedError(error.what, round, self.client_ids([error.client])[0]) from error

    def trusted_update(self, broadcast: Groups, version: int, round: int) -> Groups | None:
        """What the server comes to by training on its own samples from this model, if it has such."""
        if self.trusted is None:
            return None
        schedule = self.client_lr_schedule
        return self.trusted.update(broadcast, version, round, None if schedule is None else schedule.scale(round))

    def send_canaries(self, params: Tensors, round: int, version: int, kept: Sequence[Groups]) -> ShardResult | None:
        """What canaries send in a round, on the way of everybody's updates; None if there are none."""
        if self.canaries is None:
            return None
        sent = self.canaries.results(example_update(self.algorithm, params), round, version)
        if sent is None:
            return None
        results, shard = sent
        return replace(self.path.collect([results], shard, kept), observed={})  # what is noted is about real clients

    def server_lr_scale(self, round: int) -> float:
        """How much of its step the server makes in this round."""
        return 1.0 if self.server_lr_schedule is None else self.server_lr_schedule.scale(round)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured: the task's metrics and their parts, also of personal models if the algorithm has such."""
        names = tuple(name for metric in self.task.metrics for name in (metric.name, *metric.part_names))
        return names + tuple(PERSONAL + name for name in names if self.scores_personal_models)

    @property
    def scores_personal_models(self) -> bool:
        """Whether clients' own models are evaluated beside the global one."""
        return self.algorithm.personalizes and not self.real_devices

    @property
    def leading_metric(self) -> MetricInfo:
        """The metric that a run is judged by."""
        return self.task.lead.info

    def is_over(self, round: int, clock: Clock) -> bool:
        """Whether this was the last round."""
        is_late = clock.time - self.clock.start_seconds >= self.clock.limit_seconds
        return round >= self.rounds or is_late or self.has_spent_budget(clock)

    def epsilon(self, version: int) -> float | None:
        """The privacy that so many steps of the server have spent, if it is accounted for."""
        return None if self.epsilon_after is None else self.epsilon_after(version)

    def has_spent_budget(self, clock: Clock) -> bool:
        """Whether another step of the server would spend more privacy than there is."""
        next_epsilon = self.epsilon(clock.version + 1)
        return self.epsilon_budget is not None and next_epsilon is not None and next_epsilon > self.epsilon_budget

    def recount_participation(self, clients_of_rounds: Iterable[IntArray], version: int) -> None:
        """Counts the jobs of all rounds so far, after which the server has made so many steps, if somebody asks."""
        if self.participation is not None:
            self.participation.prepare(self.training_clients)
            for clients in clients_of_rounds:
                self.participation.observe(clients, version)

    def note_participation(self, clients: IntArray, version: int) -> None:
        """Counts jobs that ended in a round after which the server has made so many steps, if somebody asks."""
        if self.participation is not None:
            self.participation.observe(clients, version)

    def evaluates(self, round: int, clock: Clock) -> bool:
        """Whether the model is evaluated after this round."""
        return round % self.evaluate_every == 0 or self.is_over(round, clock)

    def load(self) -> Load:
        """What a job asks of a phone."""
        # Those of the model itself, of which only the shapes matter: it is remembered as long as the run goes on.
        params = {name: p.detach() for name, p in trainable_parameters(self.task.module).items()}
        down = up = 0
        if self.sends:
            down, _ = transferred_bytes(self.algorithm, params)
            up = self.path.planned_bytes(example_update(self.algorithm, params))

        def possible_shares(clients: IntArray, wanted: FloatArray) -> FloatArray:
            samples = self.engine.data.counts(clients, "train")
            shares: FloatArray = self.algorithm.possible_shares(wanted, samples, params)
            return shares

        partial_work = self.algorithm.partial_work
        if partial_work is not None and self.protocol.overlaps:  # nobody waits for those who began at the same time
            partial_work = replace(partial_work, whole_jobs=None)
        times = self.edges.rounds  # that a client downloads, trains and uploads
        return Load(
            self.sent_bytes(down) * times,
            self.sent_bytes(up) * times,
            self.flops_per_sample,
            self.processed_samples,
            self.compute_factor,
            partial_work,
            possible_shares,
            decided_samples=self.processed_samples,
            scored_samples=scored_samples(self.algorithm, self.policy, self.engine.data, times),
            scoring_flops_per_sample=self.scoring_flops_per_sample,
        )

    def sent_bytes(self, size: int) -> int:
        """What counts for so many bytes, where the model is taken to be of another size than it is."""
        return int(self.sent_sizes(np.asarray(size)))

    def sent_sizes(self, sizes: IntArray) -> IntArray:
        """The same for many."""
        if self.clock.model_bytes is None:
            return sizes
        scaled: IntArray = np.rint(sizes * self._scale_of_bytes).astype(np.int64)
        return scaled

    @cached_property
    def outside_values(self) -> OutsideValues:
        """What own code reads of variables of its files, which must not change while the run goes on."""
        return OutsideValues(self.algorithm, self.task)

    @cached_property
    def _scale_of_bytes(self) -> float:
        """Asked before anybody trains: while workers do, the model's parameters are those of their clients.

        What is frozen, and never sent, is a part of the model like what is trained.
        """
        assert self.clock.model_bytes is not None
        return self.clock.model_bytes / count_bytes({"params": dict(self.task.module.named_parameters())})

    def processed_samples(self, clients: IntArray, shares: FloatArray, decisions: FloatArray | None = None) -> IntArray:
        """How many samples these clients compute gradients on in these shares of whole jobs."""
        samples = self.engine.data.counts(clients, "train")
        local = training_of(self.engine.local, self.hyperparameters(decisions))
        steps = steps_in_shares(shares, samples, self.algorithm, local)
        return count_processed(samples, steps, local.batch_size) * self.edges.rounds

    def world(self, current_loss: Callable[[IntArray], FloatArray] | None) -> World:
        """The clients and their phones; `current_loss` is for selectors that want to know it."""
        clock, protocol = self.clock, self.protocol
        phones = Phones(
            self.fleet,
            self.load(),
            self.seed,
            protocol.ignores_availability,
            clock.leaving,
            clock.crash_rate,
            protocol.deadline_seconds,
        )
        return World(
            seed=self.seed,
            clients=self.training_clients,
            samples=lambda clients: self.engine.data.counts(clients, "train"),
            selector=self.selector,
            phones=phones,
            overhead_seconds=clock.overhead_seconds,
            current_loss=current_loss,
            begin=None if self.edge_links is None else self.edge_links.begin,
        )


@dataclass(frozen=True)
class Snapshot:
    """What is needed to go on after a round."""

    round: int
    state: Groups
    client_states: ClientStates = field(default_factory=ClientStates)
    clock: Clock = field(default_factory=Clock)
    broadcasts: Mapping[int, Groups] = field(default_factory=dict)  # older ones, from which jobs are still training
    transform_states: tuple[Groups, ...] = ()  # what the server keeps for every transform
    aggregator_state: Groups = field(default_factory=dict)  # what it keeps for the aggregator
    download_state: Groups = field(default_factory=dict)  # what it keeps about what clients hold

    def placed(self, place: Callable[[Groups], Groups]) -> Snapshot:
        """The same with the server's tensors where `place` puts them."""
        broadcasts = {version: place(groups) for version, groups in self.broadcasts.items()}
        kept = tuple(map(place, self.transform_states))
        return replace(
            self,
            state=place(self.state),
            broadcasts=broadcasts,
            transform_states=kept,
            aggregator_state=place(self.aggregator_state),
            download_state=place(self.download_state),
        )


def transferred_bytes(algorithm: Algorithm, params: Tensors) -> tuple[int, int]:
    """What a client downloads, and what it uploads if nothing happens to its update."""
    broadcast = algorithm.broadcast(algorithm.server_init(params))
    return count_bytes(algorithm.download(broadcast)), count_bytes(example_update(algorithm, params))


def _scales(schedule: Schedule, rounds: IntArray) -> FloatArray:
    """What a schedule makes of the learning rate in each of these rounds."""
    different, places = np.unique(rounds, return_inverse=True)
    return np.array([schedule.scale(round) for round in different.tolist()], dtype=np.float64)[places]
