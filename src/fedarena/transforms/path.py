"""The one way of every update: from the engine through transforms and the aggregator to the server's step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own
from fedarena.core.secret_noise import SecretSource
from fedarena.train import (
    Algorithm,
    CohortEngine,
    Crew,
    Engine,
    Groups,
    Job,
    JobArrays,
    JobContext,
    JobResults,
    Shard,
    Work,
    is_finite,
    map_groups,
)
from fedarena.train.late import LateChecks, Numbers, concatenated
from fedarena.train.memories import refusing_memories
from fedarena.train.own_code import has_own_code, refusing_own_draws
from fedarena.train.shards import StateFile
from fedarena.train.tensors import TRANSFORM_GROUP
from fedarena.train.validation import Validated, join_validated
from fedarena.transforms.aggregators import Aggregator, Mean, Partial
from fedarena.transforms.aggregators.base import ServerStep, named
from fedarena.transforms.aggregators.collected import collect_rows, collected_rows, merge_rows
from fedarena.transforms.aggregators.mean import CHANGE
from fedarena.transforms.attacks import Attack
from fedarena.transforms.fitting import Parts, check_together, check_updates
from fedarena.transforms.fixed_point import SATURATED, TRAIN_LOSS, TRAIN_SAMPLES, FixedPoint, SumForm
from fedarena.transforms.forging import forged, remembered
from fedarena.transforms.local_noise import draws_of
from fedarena.transforms.packing import packing_of
from fedarena.transforms.promises import owner, vouches
from fedarena.transforms.rows import FloatArray, IntArray, Rows, ScaledRows, check_rows
from fedarena.transforms.sending import (
    Done,
    Sent,
    as_if_nothing_was_learned,
    diverged_clients,
    kept_rows,
    refuse_what_is_not_finite,
    some_clients,
)
from fedarena.transforms.transform import SecretContext, Transform
from fedarena.transforms.wire import PACKED, PARAMS, SENT, dense, wire_bytes

_KEPT = "let server_init give what it is to keep"


@dataclass(frozen=True)
class ShardResult:
    """What is left of a shard when its updates are added up. It holds tensors and numbers, and can travel."""

    partials: dict[int, Partial]  # by the step of the server that uses them, counted within the round
    clients: IntArray
    client_states: list[tuple[IntArray, Groups]]  # what some clients keep, a row each
    losses: Numbers
    uploaded_bytes: IntArray | None  # by every client, where that depends on what it learned
    steps: int  # gradient steps of all clients
    observed: dict[str, float | Tensor]  # what transforms note about these clients, see `Transform.observe`
    validated: Validated | None = None  # how good their models are, where a policy asks; the simulator sees it
    state_file: StateFile | None = None  # where the clients' states lie instead, if a worker has written them


class UpdatePath:
    """What an algorithm's updates go through. A pure function of what it is given."""

    def __init__(
        self,
        algorithm: Algorithm,
        transforms: Sequence[Transform] = (),
        aggregator: Aggregator | None = None,
        seed: int = 0,
        attack: Attack | None = None,
        clients_noise: SecretSource | None = None,
        server_noise: SecretSource | None = None,
    ):
        """`clients_noise` is where a real client draws what protects it from the server.

        `server_noise` is where a real server draws what protects clients from all others. In a simulation there are no
        secrets: everything is drawn from the `seed` of the run.
        """
        self.algorithm, self.transforms, self.seed = algorithm, tuple(transforms), seed
        self._clients_noise, self._server_noise = clients_noise, server_noise
        self.aggregator = Mean() if aggregator is None else aggregator
        self._attack = attack if attack is not None and attack.forges_updates else None
        # Corrupted clients who see what others send can act only when all updates of a step are there.
        self._colluding = self._attack is not None and self._attack.sees != "own"
        self.sums: SumForm | None = None  # how updates are rounded where the server gets sums of them alone

    @property
    def _parts(self) -> tuple[object, ...]:
        """Whatever sees clients' updates before they are added up."""
        return (*self.transforms, self.aggregator, *([] if self._attack is None else [self._attack]))

    def check(self, update: Groups, updates_per_step: int | None, cohort: int | None = None) -> None:
        """Refuses what does not fit together; `update` is what one client of the algorithm sends.

        A step of the server is of so many updates; where that depends on who comes, of those of a cohort at most.
        """
        parts = Parts(self.algorithm, self.transforms, self.aggregator, self._attack)
        check_together(parts, update, updates_per_step, cohort)

    def server_init(self, update: Groups) -> list[Groups]:
        """What the server keeps for every transform before the first round."""
        return [transform.server_init(update) for transform in self.transforms]

    def planned_bytes(self, update: Groups) -> int:
        """What a client will upload instead of this update, as far as is known before."""
        if self.sums is not None:
            return 0  # masked updates are sent when the round is over, see `SecureRounds`
        wire = dense(update)
        for transform in self.transforms:
            wire = transform.sent(wire, None)
        return int(wire_bytes(wire))

    def collect(
        self, results: Iterable[JobResults], shard: Shard, server: Sequence[Groups], checks: LateChecks | None = None
    ) -> ShardResult:
        """At the clients: transforms their updates and adds them up. `server` has what that keeps for transforms.

        What is not finite is refused, unless there are `checks` that note what somebody else will look at.
        """
        return self.add_up((self.send(result, shard, server) for result in results), checks)

    @property
    def on_devices(self) -> int:
        """How many of the transforms, from the first on, real devices execute.

        What comes after the last of these the server can make sure of, and does so when an update arrives; unless it
        gets sums alone.
        """
        if self.sums is not None:
            return len(self.transforms)
        return max((place + 1 for place, transform in enumerate(self.transforms) if not transform.enforced), default=0)

    def send(
        self,
        result: JobResults,
        shard: Shard,
        server: Sequence[Groups],
        transforms: int | None = None,
        packs: bool = False,
    ) -> Sent:
        """The first half of `collect`, which clients do: what they send after training, and what they keep.

        `shard` has what they kept before, and `server` what the server keeps for transforms. Real devices execute only
        so many `transforms` (see `on_devices`); None: all. One real client `packs` what it sends.
        """
        diverged = diverged_clients(result)
        if diverged.any():
            result = as_if_nothing_was_learned(result, diverged)
        if result.client_states and any(map(has_own_code, self._parts)):
            # An algorithm may let clients keep the tensors that they send, and these parts may change those in place.
            result = replace(result, client_states=map_groups(torch.clone, result.client_states))
        observed: dict[str, float | Tensor] = {}
        numbers = None if transforms is None else range(transforms)
        rows, kept, uploaded = self._transform(
            replace(self._rows(result), packs=packs), shard, server, observed, numbers
        )
        if packs and rows.packed is None:
            update = ScaledRows(rows.update, rows.factors).rows()
            packing = packing_of(self.transforms[:transforms], map_groups(lambda t: t[0], update).get(PARAMS, {}))
            rows = rows if packing is None else replace(rows, packed=packing.pack(update[PARAMS]))
        if self._attack is not None and not self._colluding and rows.jobs.corrupted.any():
            rows = forged(self._attack, rows, self.transforms, server, shard)
        keeping, state = rows, {**result.client_states, **kept}
        if result.client_states and diverged.any():  # who diverged keeps what it had
            keeping, state = some_clients(rows, state, np.flatnonzero(~diverged))
        states = self._kept_by(keeping, state, shard) if len(keeping) else []
        return Sent(result, rows, diverged, states, uploaded, observed)

    def receive(self, sent: JobResults, server: Sequence[Groups], transforms: int) -> Sent:
        """What came from real devices, which have executed so many `transforms`, after what the server makes sure of.

        What they keep stays with them.
        """
        observed: dict[str, float | Tensor] = {}
        numbers = range(transforms, len(self.transforms))
        nothing_kept = Shard(sent.jobs, {}, {}, 1)
        rows, _, _ = self._transform(self._rows(sent), nothing_kept, server, observed, numbers)
        return Sent(sent, rows, diverged_clients(sent), [], None, observed)

    def add_up(self, sent: Iterable[Sent], checks: LateChecks | None = None) -> ShardResult:
        """The second half of `collect`: what clients sent, added up one after the other in the order in which it comes.

        What is not finite is refused, unless there are `checks` that note what somebody else will look at.
        """
        partials: dict[int, Partial] = {}
        states: list[tuple[IntArray, Groups]] = []
        done: list[Done] = []
        uploaded: list[IntArray] = []
        observed: dict[str, float | Tensor] = {}
        for one in sent:
            result = one.result
            added = self._added(one)
            # A sum shows whether all terms are finite, and there is less of it to look at.
            if checks is not None:
                checks.note_array(result.losses)
                for partial in added.values():
                    checks.note(partial.tensors)
            elif not (
                np.isfinite(result.losses[~one.diverged]).all()
                and all(is_finite(partial.tensors) for partial in added.values())
            ):
                refuse_what_is_not_finite(result, one.rows)
            for step, partial in added.items():
                partials[step] = self.merge(partials[step], partial) if step in partials else partial
            for name, value in one.observed.items():
                observed[name] = observed.get(name, 0.0) + value
            states += one.client_states
            if one.uploaded_bytes is not None:
                uploaded.append(one.uploaded_bytes)
            done.append(Done(result.clients, result.losses, int(result.work.steps.sum()), result.validated))
            del one, result, added, partial  # before the next one comes: a server may have room for few of them
        return ShardResult(
            partials,
            np.concatenate([some.clients for some in done]),
            states,
            concatenated([some.losses for some in done]),
            np.concatenate(uploaded) if uploaded else None,
            sum(some.steps for some in done),
            observed,
            join_validated([some.validated for some in done]),
        )

    def _added(self, sent: Sent) -> dict[int, Partial]:
        """What some clients' updates come to, for every step of the server that uses them."""
        if self.sums is not None:
            return self._rounded_sums(sent)
        add_up = collect_rows if self._colluding else self.aggregator.add_up
        return {step: add_up(some) for step, some in _by_server_step(sent.rows)}

    def _rounded_sums(self, sent: Sent) -> dict[int, Partial]:
        """Sums of what clients add to a secure sum. Rounding would hide what is not finite, so that is found before."""
        totals: dict[int, Partial] = {}
        for place, step in enumerate(sent.rows.jobs.server_steps.tolist()):
            rounded = self.secure_term(sent, place)
            totals[step] = self.merge(totals[step], rounded) if step in totals else rounded
        return totals

    def secure_term(self, sent: Sent, place: int = 0) -> Partial:
        """What one of some clients adds to a secure sum: its part of what the aggregator adds up, in whole numbers.

        Noise that makes the sum private is drawn from what the client alone knows, as all that hides something.
        """
        assert self.sums is not None
        rows = replace(sent.rows.take([place]), stream="secure sum")
        added = self.aggregator.add_up(rows)
        loss = float(sent.result.losses[place])
        if not (math.isfinite(loss) and is_finite(added.tensors)):
            refuse_what_is_not_finite(sent.result, sent.rows)
        samples = float(rows.work.samples[0])
        notes = {TRAIN_LOSS: loss * samples, TRAIN_SAMPLES: samples}
        hidden = replace(rows, secret=self._clients_noise)
        return self.sums.rounded(added, notes, draws_of(rows, "rounding"), draws_of(hidden, "noise"))

    def sum_securely(self, fixed_point: FixedPoint, update: Groups, notes: Sequence[str]) -> None:
        """Has all updates rounded from now on; `update` shows what one looks like."""
        check_updates(self.algorithm, self.transforms, update)
        example = self.nothing(update, self.server_init(update))
        changes = {group for group in example.tensors if group.removeprefix(CHANGE) in self.algorithm.change_groups}
        self.sums = SumForm(fixed_point, example, changes, notes)

    def results_of(self, engine: Engine, shard: Shard) -> Iterable[JobResults]:
        """What an engine makes of a shard, for `collect`: large dense layers as products where they are only added up.

        Most transforms, an attack, or an aggregator of another kind want to see every client's update itself.
        """
        if isinstance(engine, CohortEngine) and self._only_adds():
            return engine.train_in_products(shard)
        return engine.train(shard)

    def _only_adds(self) -> bool:
        """Whether clients' tensors are added up, each perhaps times a number, and nothing else is done with them."""
        if self._attack is not None or not vouches(self.aggregator, "adds_products", "add_up"):
            return False
        if self.sums is not None:
            return False
        if not self.transforms:
            return True
        transform, scales = self.transforms[-1], self._scales_at_last(len(self.transforms) - 1)
        return len(self.transforms) == 1 and scales and vouches(transform, "takes_products", "scaled", "observe")

    def merge(self, total: Partial, more: Partial) -> Partial:
        """Both together; `total` must not be used any more."""
        return merge_rows(total, more) if self._colluding else self.aggregator.merge(total, more)

    def settle(self, total: Partial, server: Sequence[Groups]) -> Partial:
        """What all updates of a step come to, after corrupted clients who know those of others have sent theirs."""
        if self.sums is not None:
            return self.sums.restored(total)
        if self._attack is None or not self._colluding:
            return total
        rows = collected_rows(total, self.algorithm.change_groups)
        if rows.jobs.corrupted.any():
            rows = forged(self._attack, rows, self.transforms, server)
        return self.aggregator.add_up(rows)

    def nothing(self, update: Groups, server: Sequence[Groups]) -> Partial:
        """What no update at all comes to, for a step that is made all the same; `update` shows what one looks like."""
        one = np.ones(1, dtype=np.int64)
        sent = map_groups(lambda t: torch.zeros_like(t).unsqueeze(0), update)
        jobs = JobArrays.of([Job(0, 0)])
        rows = Rows(sent, jobs, Work(one, one, one), np.zeros(1), self.algorithm.change_groups, self.seed)
        for transform, state in zip(self.transforms, server, strict=True):
            new = transform.client_init(update)
            sent, _ = transform.at_client(rows, map_groups(lambda t: t.unsqueeze(0), new), state)
            rows = replace(rows, update=map_groups(torch.zeros_like, sent))
        return self.aggregator.add_up(rows)

    def aggregate(
        self, total: Partial, kept: Groups, round: int, version: int, trusted: Groups | None = None
    ) -> tuple[Groups, Groups]:
        """At the server: what the aggregator makes of all updates, and what it keeps.

        `trusted` is the update that the server trained itself.
        """
        context = self._context("aggregator", round, version)
        method = "conclude" if is_own(type(self.aggregator).conclude) else "finish"
        with refusing_own_draws(self.aggregator, "conclude"), refusing_memories(self.aggregator, method, _KEPT):
            return self.aggregator.conclude(total, kept, ServerStep(context, trusted))

    def draw_ahead(self, update: Groups, round: int, version: int) -> None:
        """Lets transforms get ready for a step of the server; `update` shows what one looks like."""
        for number, transform in enumerate(self.transforms):
            transform.draw_ahead(update, self._server_context(number, round, version))

    def finish(self, update: Groups, server: Sequence[Groups], round: int, version: int) -> tuple[Groups, list[Groups]]:
        """At the server: what transforms make of the aggregated update, and what the server keeps for them."""
        kept = list(server)
        for number, transform in reversed(list(enumerate(self.transforms))):
            context = self._server_context(number, round, version)
            if has_own_code(transform):  # which may change in place what another part keeps
                update = map_groups(torch.clone, update)
            with refusing_own_draws(transform, "at_server"), refusing_memories(transform, "at_server", _KEPT):
                update, kept[number] = transform.at_server(update, kept[number], context)
        return update, kept

    def measure(self, server: Sequence[Groups], observed: Mapping[str, float | Tensor]) -> dict[str, float]:
        """What transforms have to say about a round, by the names of columns; the last one that does is heard."""
        measured: dict[str, float] = {}
        for number, (transform, state) in enumerate(zip(self.transforms, server, strict=True)):
            own = f"{number}:"
            noted = {name.removeprefix(own): float(value) for name, value in observed.items() if name.startswith(own)}
            measured |= transform.measure(state, noted)
        if self.sums is not None and SATURATED in self.sums.notes:
            measured[SATURATED] = float(observed.get(SATURATED, 0.0))
        return measured

    def _server_context(self, number: int, round: int, version: int) -> JobContext:
        """The same for a transform of this number, which may draw what nobody else must know."""
        stream = f"server transform {number}"
        if self._server_noise is None:
            return self._context(stream, round, version)
        noise = partial(self._server_noise.stream, stream, version)
        key = noise("key").words(1).view(np.int64)[0]
        return SecretContext(1.0, round, version, False, torch.tensor(key), noise=noise)

    def _context(self, stream: str, round: int, version: int) -> JobContext:
        """What is known about a step of the server, with random numbers of its own."""
        key = streams.bits(self.seed, stream, version).view(np.int64)
        return JobContext(1.0, round, version, False, torch.tensor(key))

    def _rows(self, result: JobResults) -> Rows:
        changes, weights = self.algorithm.change_groups, self._weights(result)
        return Rows(result.update, result.jobs, result.work, weights, changes, self.seed, validated=result.validated)

    def _weights(self, result: JobResults) -> FloatArray:
        """How much every client counts; an algorithm may give one number for all."""
        if any(transform.counts_clients_equally for transform in self.transforms):
            return np.ones(len(result.clients))
        given = np.asarray(self.algorithm.client_weight(result.work), dtype=np.float64)
        if given.shape not in ((), (len(result.clients),)):
            raise BadInputError(
                f"{_name(self.algorithm)}.client_weight must give a number for every one of {len(result.clients)} "
                f"clients, not numbers of shape {list(given.shape)}"
            )
        weights = np.broadcast_to(given, len(result.clients)).copy()
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise BadInputError(f"{_name(self.algorithm)}.client_weight must be 0 or more, not {weights.min():g}")
        return weights

    def _kept_by(self, rows: Rows, state: Groups, shard: Shard) -> list[tuple[IntArray, Groups]]:
        """What these clients keep, a row each; corrupted ones may keep more than others."""
        corrupted = rows.jobs.corrupted
        clients, on_cpu = rows.jobs.clients, map_groups(torch.Tensor.cpu, state)
        if self._attack is None or not self._attack.remembers_downloads or not corrupted.any():
            return [(clients, on_cpu)] if state else []
        theirs, others = np.flatnonzero(corrupted), np.flatnonzero(~corrupted)
        memory = map_groups(torch.Tensor.cpu, remembered(rows.take(theirs), shard))
        kept = [(clients[theirs], {**map_groups(lambda t: t[theirs], on_cpu), **memory})]
        return kept + ([(clients[others], map_groups(lambda t: t[others], on_cpu))] if state and len(others) else [])

    def _transform(
        self,
        rows: Rows,
        shard: Shard,
        server: Sequence[Groups],
        observed: dict[str, float | Tensor],
        numbers: range | None = None,
    ) -> tuple[Rows, Groups, IntArray | None]:
        """The rows that go on, what clients keep for transforms, and what they upload if that is not known before.

        The transforms are all, or those of these `numbers`; what they note is added to `observed`.
        """
        sent = self.algorithm.uploaded_bytes(rows.update)
        depends = any(transform.depends_on_data for transform in self.transforms)
        keeps = any(type(transform).client_init is not Transform.client_init for transform in self.transforms)
        example = map_groups(lambda t: torch.zeros_like(t[0]), rows.update) if depends or keeps else {}
        wire = dense(example) if depends else {}
        kept: Groups = {}
        for number in range(len(self.transforms)) if numbers is None else numbers:
            transform, name = self.transforms[number], f"{TRANSFORM_GROUP}{number}:"
            before = kept_rows(shard, rows, name, transform.client_init(example))
            scaled = self._scaled_at_last(number, rows, server)
            if scaled is not None:
                update, after = scaled.update, before
            else:
                secret = self._clients_noise if transform.hides_from_server else None
                with refusing_own_draws(transform, "at_client"):
                    own = replace(rows, stream=name, secret=secret)
                    update, after = transform.at_client(own, before, server[number])
            check_rows(update, rows, f"{_name(transform)}.at_client")
            if depends:
                wire = transform.sent(wire, update)
            packed = update[PACKED][PARAMS] if PACKED in update else rows.packed
            if PACKED not in update and type(transform).at_client is not Transform.at_client:
                packed = None  # it is no longer what is sent
            update = {group: tensors for group, tensors in update.items() if group not in (SENT, PACKED)}
            for noted, value in transform.observe(rows, update).items():
                observed[f"{number}:{noted}"] = observed.get(f"{number}:{noted}", 0.0) + value
            rows = replace(rows, update=update, factors={} if scaled is None else scaled.factors, packed=packed)
            kept |= named(name, after)
        if depends:
            sent = np.broadcast_to(np.asarray(wire_bytes(wire), dtype=np.int64), len(rows))
        return rows, kept, sent

    def _scaled_at_last(self, number: int, rows: Rows, server: Sequence[Groups]) -> ScaledRows | None:
        """What the last transform gives, where only numbers are needed of what it does: nobody else sees the rows."""
        return self.transforms[number].scaled(rows, server[number]) if self._scales_at_last(number) else None

    def _scales_at_last(self, number: int) -> bool:
        if number < len(self.transforms) - 1 or self._attack is not None:
            return False
        if not vouches(self.aggregator, "adds_scaled_rows", "add_up"):
            return False
        # What a subclass does at the client in a way of its own is not what it inherits here.
        return "scaled" in vars(owner(self.transforms[number], "at_client"))


def train_and_collect(
    engine: Engine,
    path: UpdatePath,
    shards: Sequence[Shard],
    server: Sequence[Groups],
    checks: LateChecks | None = None,
) -> Iterable[ShardResult]:
    """What is left of every shard, in their order; with `checks`, nobody has looked whether it is finite."""
    crew: Crew | None = getattr(engine, "crew", None)  # whom shards are given to, where there is one
    if crew is not None:
        return crew.collect(shards, server)

    def work(shard: Shard) -> ShardResult:
        return path.collect(path.results_of(engine, shard), shard, server, checks)

    return engine.execute(shards, work)


def _by_server_step(rows: Rows) -> Iterable[tuple[int, Rows]]:
    """The rows that each step of the server uses."""
    steps = rows.jobs.server_steps
    if (steps == steps[0]).all():
        return [(int(steps[0]), rows)]
    return [(step, rows.take(np.flatnonzero(steps == step))) for step in np.unique(steps).tolist()]


def _name(part: object) -> str:
    return type(part).__name__
