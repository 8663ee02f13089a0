"""One block of trials, from the untrained models to the last round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedarena.hpo.lanes.arrangement import Block, Trial
from fedarena.hpo.lanes.curves import FloatArray, TrialCurves, best_rounds
from fedarena.hpo.lanes.functions import COLUMN, JOB, LaneFunctions, Tree
from fedarena.hpo.lanes.planning import BlockPlan, PlannedRounds
from fedarena.hpo.lanes.programs import Bound, Function
from fedarena.hpo.lanes.scoring import PartScores
from fedarena.metrics.info import LOSS
from fedarena.models import Tensors
from fedarena.train import Groups, Work, count_bytes, map_groups, stack_groups
from fedarena.train.engine import Part
from fedarena.train.jobs import newcomer
from fedarena.train.optimizers import optimizer_init

if TYPE_CHECKING:
    from fedarena.hpo.lanes.training import LaneTrainer

_SCORED_BYTES = {"cpu": 1 << 21, "cuda": 1 << 30}  # that models put out for samples which are scored at once
_FEWEST_SCORED = 64  # samples at once
_WARM_UPS = 2  # rounds before a GPU's graph is captured, in which libraries set themselves up


class BlockTraining:
    """Trains the trials of a block."""

    def __init__(self, trainer: LaneTrainer, block: Block):
        self._trainer, self.block, self._scene = trainer, block, trainer.scene
        self._hardware, self._programs = trainer.hardware, trainer.programs
        self._functions = functions = LaneFunctions(block.first, trainer.hardware)
        device, dtype = trainer.hardware.device, trainer.hardware.dtype
        knows_jobs = functions.asks_about_jobs or self._scene.client_lr_scale is not None
        self._plan = BlockPlan(self._scene, block, trainer.draws, trainer.samples, dtype, device, knows_jobs)
        jobs, attributes = block.hyperparameters()
        self._hyper: Tree = {
            "job": {name: torch.from_numpy(values).to(device, dtype) for name, values in jobs.items()},
            "algorithm": {name: torch.from_numpy(values).to(device, dtype) for name, values in attributes.items()},
        }
        self._name = functions.name(self._hyper)
        self._state = stack_groups([stack_groups([self._start(trial) for trial in group]) for group in block.groups])
        group_of = torch.from_numpy(self._plan.group_of).to(device)
        self._slot_hyper: Tree = map_groups(lambda t: t[group_of], self._hyper)
        self._given: Tree = {"hyper": self._hyper, "slot_hyper": self._slot_hyper, "group_of": group_of}
        self._slots = self._make_slots(group_of)
        cohorts = torch.tensor([group[0].cohort for group in block.groups], device=device, dtype=torch.float64)
        membership = (group_of == torch.arange(len(block.groups), device=device).unsqueeze(1)).to(dtype)
        at_server = {"params": self._slots["params"], "cohorts": cohorts, "membership": membership}
        self._at_server: Tree = self._given | at_server
        self._numbers = torch.arange(1, self._plan.most_steps + 1, device=device).to(dtype)
        self._bound: dict[Any, Bound] = {}
        self._make_scores()

    def _start(self, trial: Trial) -> Groups:
        """The server's state of a trial before the first round."""
        return trial.algorithm.server_init(self._trainer.start(trial))

    def _make_slots(self, group_of: Tensor) -> Tree:
        """What clients train, ``[slots, trials, …]``."""
        broadcast = map_groups(lambda t: t[group_of].clone(), self._functions.broadcasts(self._state, self._hyper))
        params = {name: p.clone() for name, p in broadcast["params"].items()}
        slots: Tree = {
            "params": params,
            "optimizer": optimizer_init(self._functions.local, params, self._hyper["job"]),
        }
        return {**slots, "broadcast": broadcast} if self._functions.looks_at_broadcast else slots

    def _make_scores(self) -> None:
        trainer, device = self._trainer, self._hardware.device
        task = self._functions.task
        models = self._functions.models(self._state, self._hyper)
        self._now = {name: p.flatten(0, 1).clone() for name, p in models.items()}
        lanes = len(self.block.trials)
        self._best: Tree = {
            "loss": torch.full((lanes,), torch.inf, dtype=torch.float64, device=device),
            "now": torch.full((lanes,), torch.nan, dtype=torch.float64, device=device),
            "alive": torch.ones(lanes, dtype=torch.bool, device=device),
        }
        if trainer.best:
            self._best["params"] = {name: p.clone() for name, p in self._now.items()}
        at_once = max(_FEWEST_SCORED, _SCORED_BYTES[device.type] // (lanes * trainer.sample_bytes[id(task)]))
        at_once = min(at_once, task.largest_batch or at_once)

        def scores(part: Part, models: Tensors, metrics: Any) -> PartScores:
            return PartScores(task, part, trainer.parts[part], metrics, models, self._programs, at_once)

        self._guide = scores("validation", self._now, task.metrics[:1]) if "validation" in trainer.parts else None
        noted = self._best["params"] if trainer.best else self._now
        self._noted = [scores(part, noted, task.metrics) for part in trainer.parts]

    def run(self, advanced: Callable[[int], None]) -> TrialCurves:
        """Trains all rounds; `advanced` is told how many rounds of trials are done after each."""
        rounds, lanes = self._scene.rounds, len(self.block.trials)
        losses = np.full((lanes, rounds if self._guide else 0), np.nan)
        steps, processed = np.zeros((2, rounds, lanes), dtype=np.int64)
        noted: dict[str, list[FloatArray]] = {}
        wanted = set(self._trainer.note_rounds.tolist())
        if 0 in wanted:
            self._note(noted)
        for first in range(0, rounds, self._plan.rounds_at_once):
            last = min(rounds, first + self._plan.rounds_at_once)
            planned = self._plan.of(first, last)
            steps[first:last] = planned.steps.reshape(last - first, lanes)
            processed[first:last] = planned.processed.reshape(last - first, lanes)
            seen = []
            for number in self._play(planned):
                seen.append(self._best["now"].clone())
                if first + number + 1 in wanted:
                    self._note(noted)
                advanced(lanes)
            if self._guide:
                losses[:, first:last] = torch.stack(seen, dim=1).cpu().numpy()
        metrics = {name: np.stack(each, axis=1) for name, each in noted.items()}
        first_trial = self.block.first
        broadcast = first_trial.algorithm.broadcast(self._start(first_trial))
        return TrialCurves(
            trials=tuple({} for _ in range(lanes)),
            note_rounds=self._trainer.note_rounds,
            metrics=self._without_failures(metrics, losses) if self._guide else metrics,
            of_best=self._trainer.best,
            losses=losses,
            model_bytes=np.full(lanes, count_bytes(first_trial.algorithm.download(broadcast))),
            upload_bytes=np.full(lanes, count_bytes(example_update(first_trial, broadcast))),
            cohorts=np.array([trial.cohort for trial in self.block.trials]),
            steps=steps.T,
            processed_samples=processed.T,
        )

    def _note(self, noted: dict[str, list[FloatArray]]) -> None:
        for scores in self._noted:
            scores.compute()
            for name, values in scores.values().items():
                noted.setdefault(name, []).append(values)

    def _without_failures(self, metrics: dict[str, FloatArray], losses: FloatArray) -> dict[str, FloatArray]:
        """NaN where there is no model any more, or none yet that is the best."""
        rounds = self._trainer.note_rounds
        if self._trainer.best:
            missing = (best_rounds(losses)[:, rounds] == 0) & (rounds > 0)
            return {name: np.where(missing, np.nan, values) for name, values in metrics.items()}
        bad = ~np.isfinite(losses)
        failed = np.where(bad.any(1), bad.argmax(1) + 1, losses.shape[1] + 1)[:, None]
        # A loss that is not finite any more says how a trial ended.
        return {
            name: np.where(rounds > failed if name.endswith(f"_{LOSS.name}") else rounds >= failed, np.nan, values)
            for name, values in metrics.items()
        }

    def _play(self, planned: PlannedRounds) -> Iterator[int]:
        """Plays rounds, and says after each which it was."""
        count = len(planned.widths)
        if not self._hardware.is_gpu:
            for number in range(count):
                widths = None if self._trainer.together else planned.widths[number]
                self._play_round(planned.round(number), widths)
                yield number
            return
        place = {name: t.clone() for name, t in planned.round(0).items()}  # a graph reads from the same memory
        graph: torch.cuda.CUDAGraph | None = None
        for number in range(count):
            torch._foreach_copy_(list(place.values()), list(planned.round(number).values()))
            if graph is not None:
                graph.replay()
            else:
                self._play_round(place, None)
                if number + 1 == _WARM_UPS and count > _WARM_UPS:
                    graph = self._capture(place)
            yield number

    def _capture(self, place: Tensors) -> torch.cuda.CUDAGraph | None:
        """A round as one graph; None where the GPU cannot, and rounds are played operation by operation."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._play_round(place, None)
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return graph

    def _play_round(self, inputs: Tensors, widths: Any) -> None:
        """One round: `widths` are those of every slot; None: all slots take their steps together."""
        functions = self._functions
        given = {**self._given, "state": self._state}
        self._run("begin", functions.begin, self._slots, given, self._without_batches(inputs))
        batches = self._batches(inputs)
        if widths is None:
            for step, (width, is_ragged) in enumerate(self._plan.common_widths):
                batch = {name: t[step] for name, t in batches.items()}
                if is_ragged:
                    batch["active"] = inputs["steps"][:, :width] > step
                self._take_step(slice(None), width, batch)
        else:
            # Every slot by itself, so that what a step needs stays in a cache.
            each = {name: t.flatten(0, 1).unsqueeze(1).unbind(0) for name, t in batches.items()}
            slots = len(widths)
            for slot, steps in enumerate(widths.tolist()):
                for step, width in enumerate(steps):
                    if width:
                        batch = {name: some[step * slots + slot] for name, some in each.items()}
                        self._take_step(slice(slot, slot + 1), width, batch)
        self._run("finish", functions.finish, self._state, self._at_server, self._without_batches(inputs))
        self._run("show", functions.show, self._now, {"state": self._state, "hyper": self._hyper}, {})
        if self._guide:
            self._guide.compute()
            self._run("judge", functions.judge, self._best, {"sums": self._guide.sums, "now": self._now}, {})

    def _batches(self, inputs: Tensors) -> Tensors:
        """What steps need, ``[steps, slots, …]``."""
        rows = inputs["rows"]
        columns = {
            COLUMN + name: values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:])
            for name, values in self._trainer.samples.columns.items()
        }
        numbers = self._numbers.unsqueeze(1).expand(rows.shape[:2])
        jobs = {name: t.expand(len(rows), *t.shape) for name, t in inputs.items() if name.startswith(JOB)}
        return {**columns, "mask": inputs["mask"], "keys": inputs["keys"], "numbers": numbers, **jobs}

    def _without_batches(self, inputs: Tensors) -> Tensors:
        return {name: t for name, t in inputs.items() if name not in ("rows", "mask", "keys")}

    def _take_step(self, slots: slice, width: int, batch: Tensors) -> None:
        key = (slots.start, width, "active" in batch)
        if key not in self._bound:
            changed = {name: self._slots[name] for name in ("params", "optimizer")}
            given: Tree = {"hyper": self._slot_hyper}
            if "broadcast" in self._slots:
                given["broadcast"] = self._slots["broadcast"]
            changed, given = pytree.tree_map(lambda t: t[slots, :width], (changed, given))
            self._bound[key] = self._programs.bind(("step", self._name), self._functions.step, changed, given, batch)
        self._bound[key](batch)

    def _run(self, what: str, function: Function, changed: Any, given: Any, batch: Tensors) -> None:
        if what not in self._bound:
            self._bound[what] = self._programs.bind((what, self._name), function, changed, given, batch)
        self._bound[what](batch)


def example_update(trial: Trial, broadcast: Groups) -> Groups:
    """What a client of a trial uploads, to see its form."""
    client = newcomer(broadcast, {})
    one = torch.ones((), device=next(iter(broadcast["params"].values())).device)
    return trial.algorithm.client_update(trial.algorithm.local_start(client), client, Work(one, one, one))[0]
